"""The queue's workloads: claims in batches, one by one, from threads, in deep backlogs; routing.

Each takes turns with a plain SQLite queue (`queue_bench.py`).
"""

from __future__ import annotations

from functools import partial
from random import Random
from time import sleep
from typing import Any

from millstream.bench.consumers import (
    consumer_groups,
    consumer_one,
    consumer_priority,
    live_stream,
)
from millstream.bench.live import LivePair
from millstream.bench.measure import PAYLOAD_BYTES, ReportRow, Step, memory_mib
from millstream.bench.queue_bench import BATCH, LEASE_S, ClaimingWorker, QueueBench
from millstream.bench.reference import DUE, GROUP, PRIORITY, Order
from millstream.bench.singles import SinglesQueue
from millstream.bench.suite import Suite
from millstream.bench.turns import (
    ROUTED_QUEUES,
    Backlog,
    Crowd,
    Label,
    Side,
    alternate,
    by_region,
)
from millstream.header import HeaderMapping
from millstream.queue.rules.claims import place_routed
from millstream.queue.rules.sources import facts_of
from millstream.queue.service.router import WINDOW, route
from millstream.store.store import Store

THREADS = 16


def claim_batch(bench: QueueBench) -> ReportRow:
    """Claim, then acknowledge, in batches."""
    queue, backlog = bench.filled("batch", size=bench.sizes.backlog)

    def step() -> int:
        messages = queue.claim(BATCH)
        queue.ack(messages)
        return backlog.took(len(messages))

    return _beside_reference(bench, step, backlog, batch=BATCH).require_ratio(1.3)


def work_batch(bench: QueueBench) -> ReportRow:
    """The worker's way, in batches."""
    step, backlog = _working(bench, "work", batch=BATCH)
    row = _beside_reference(bench, step, backlog, batch=BATCH)
    return row.require_ratio(2).require_rate(200_000)


def claim_one(bench: QueueBench) -> ReportRow:
    """The worker's way, one at a time."""
    step, backlog = _working(bench, "one", batch=1)
    return _beside_reference(bench, step, backlog, batch=1).require_ratio(1.5)


def _working(bench: QueueBench, name: str, *, batch: int) -> tuple[Step, Backlog]:
    queue, backlog = bench.filled(name, size=bench.sizes.backlog)
    worker = ClaimingWorker(queue, batch)
    return lambda: backlog.took(worker.step()), backlog


def _beside_reference(bench: QueueBench, step: Step, backlog: Backlog, *, batch: int) -> ReportRow:
    reference, meter = alternate(
        [bench.reference(batch), bench.side(step, backlog)],
        bench.seconds,
        slice_s=bench.sizes.slice_s,
    )
    return bench.row(batch=batch, reference=reference, meter=meter)


def claim_threads(bench: QueueBench) -> ReportRow:
    """Let many threads claim single messages, beside a single thread."""
    single, one_backlog = _working(bench, "alone", batch=1)
    queue, backlog = bench.filled("threads", size=bench.sizes.backlog)
    crowd = Crowd([ClaimingWorker(queue, 1).step for _ in range(THREADS)])
    reference, alone, together = alternate(
        [
            bench.reference(1),
            bench.side(single, one_backlog),
            bench.side(lambda: backlog.took(crowd.step(bench.sizes.slice_s)), backlog),
        ],
        bench.seconds,
        slice_s=bench.sizes.slice_s,
    )
    row = bench.row(batch=1, reference=reference, meter=together)
    return crowd.finish(row, alone, minimum=8.0 if bench.delay_s else 2.5)


KINDS: dict[str, dict[str, Any]] = {
    "plain": {},
    "grouped": {"group_by": "tenant"},
    "priority": {"priority_by": "priority"},
}


def _by_amount(number: int) -> HeaderMapping:
    amount = number % 1_000
    return {"tenant": amount, "priority": amount % 10}


def claim_deep(bench: QueueBench) -> ReportRow:
    """The worker's way from a deep backlog, beside a shallow one, for each kind of queue."""
    sizes = bench.sizes
    details: dict[str, Any] = {"backlog": sizes.deep, "shallow_backlog": sizes.shallow}
    rows = [_deep(bench, kind, options) for kind, options in KINDS.items()]
    details |= {kind: row.details for kind, row in zip(KINDS, rows, strict=True)}
    worst = min(row.details["share_of_shallow"] for row in rows)
    growth = max(row.details["memory_growth_mib"] for row in rows)
    row = rows[0]
    row.details = details
    row.require("≥ 0.8 of the rate at the shallow backlog", worst >= 0.8)
    return row.require("memory < 100 MiB, for each kind", growth < 100)


def _deep(bench: QueueBench, kind: str, options: dict[str, Any]) -> ReportRow:
    """Measure claims from a shallow and from a deep backlog, and the memory of the deep one."""
    sizes = bench.sizes
    (queue, shallow), (deep_queue, deep) = (
        bench.filled(f"shallow-{kind}", size=sizes.shallow, options=options, label=_by_amount),
        bench.filled(f"deep-{kind}", size=sizes.deep, options=options, label=_by_amount),
    )
    worker, deep_worker = ClaimingWorker(queue, BATCH), ClaimingWorker(deep_queue, BATCH)
    shallow_side = bench.side(lambda: shallow.took(worker.step()), shallow)
    deep_side = bench.side(lambda: deep.took(deep_worker.step()), deep)
    growth = _memory_growth_mib(shallow_side, deep_side)
    reference, few, many = alternate(
        [bench.reference(BATCH), shallow_side, deep_side],
        bench.seconds / len(KINDS),
        slice_s=sizes.short_slice_s,
    )
    row = bench.row(batch=BATCH, reference=reference, meter=many)
    row.details = {
        "per_second": round(many.per_second()),
        "shallow_per_second": round(few.per_second()),
        "share_of_shallow": round(many.per_second() / few.per_second(), 3),
        "memory_growth_mib": round(growth, 1),
    }
    return row


def _memory_growth_mib(shallow: Side, deep: Side) -> float:
    """How much more memory the process uses once the deep backlog is there and was claimed from."""
    memory_mib_after = []
    for contender in (shallow, deep):
        contender.fill()
        contender.step()
        contender.settle()
        memory_mib_after.append(memory_mib())
    return memory_mib_after[1] - memory_mib_after[0]


GROUPS = 10_000


def claim_groups(bench: QueueBench) -> ReportRow:
    """Claim, then acknowledge, in batches, from a queue with the order of many groups."""
    label = partial(_by_chance, numbers=Random(17))
    options = {"group_by": "tenant", "group_in_flight": 1}
    return _ordered(bench, options, label, GROUP).require_rate(60_000)


def claim_priority(bench: QueueBench) -> ReportRow:
    """Claim, then acknowledge, in batches, from a queue with priorities."""
    return _ordered(bench, {"priority_by": "priority"}, _by_amount, PRIORITY).require_rate(80_000)


def claim_delayed(bench: QueueBench) -> ReportRow:
    """Claim, then acknowledge, in batches, messages that were put with a delay and are due."""
    return _ordered(bench, {"delay": bench.sizes.due_s}, by_region, DUE).require_rate(60_000)


def _by_chance(_: int, numbers: Random) -> HeaderMapping:
    return {"tenant": numbers.randrange(GROUPS)}


def _ordered(bench: QueueBench, options: dict[str, Any], label: Label, order: Order) -> ReportRow:
    """Claims by the batch from a queue that chooses, beside a reference that chooses alike."""
    queue, backlog = bench.filled("ordered", size=bench.sizes.backlog, options=options, label=label)

    def step() -> int:
        messages = queue.claim(BATCH)
        queue.ack(messages)
        return backlog.took(len(messages))

    def fill() -> None:
        backlog.fill()
        if order is DUE:
            sleep(bench.sizes.due_s)

    reference, meter = alternate(
        [
            bench.reference(BATCH, order=order, label=label),
            Side(step, fill, bench.store.fold),
        ],
        bench.seconds,
        slice_s=bench.sizes.slice_s,
    )
    return meter.row(beside=reference, batch=BATCH, sync_delay_ms=bench.delay_s * 1000)


def claim_singles_batch(bench: QueueBench) -> ReportRow:
    """Claim and acknowledge single appends in batches."""
    folded, live = _singles(bench, "folded", BATCH), _singles(bench, "live", BATCH)
    contenders = Side(folded.apart, folded.fill, bench.store.fold), Side(live.apart, live.fill)
    return _claim_singles(bench, *contenders, batch=BATCH).require_ratio(1.2).require_rate(150_000)


def claim_singles_one(bench: QueueBench) -> ReportRow:
    """Claim single appends one at a time, as a worker does."""
    folded, live = _singles(bench, "folded", 1), _singles(bench, "live", 1)
    contenders = Side(folded.at_once, folded.fill, bench.store.fold), Side(live.at_once, live.fill)
    return _claim_singles(bench, *contenders, batch=1).require_ratio(1.1)


def _singles(bench: QueueBench, name: str, batch: int) -> SinglesQueue:
    return SinglesQueue(bench.store, name, size=bench.sizes.shallow, batch=batch)


def _claim_singles(bench: QueueBench, folded: Side, live: Side, *, batch: int) -> ReportRow:
    """Measure a folded and an unfolded log beside the reference."""
    reference, meter, as_left = alternate(
        [bench.reference(batch), folded, live],
        bench.seconds / 4,
        slice_s=bench.sizes.short_slice_s,
    )
    row = bench.row(batch=batch, reference=reference, meter=meter)
    row.details = {"live_per_second": round(as_left.per_second())}
    return row


def live_one(bench: QueueBench) -> ReportRow:
    """One thread publishes and another claims and acknowledges, message by message."""
    log = bench.store.log("live")
    queue = bench.store.queue("live", sources="live", start="earliest", lease=LEASE_S)
    pair = LivePair(log, queue, bytes(PAYLOAD_BYTES))
    reference, meter = alternate(
        [bench.reference(1), Side(lambda: pair.step(bench.sizes.slice_s))],
        bench.seconds,
        slice_s=bench.sizes.slice_s,
    )
    pair.close()
    row = bench.row(batch=1, reference=reference, meter=meter)
    row.p50_ms, row.p99_ms = pair.meter.percentile_ms(0.5), pair.meter.percentile_ms(0.99)
    return row.require_rate(3_500).require("p50 ≤ 0.4 ms", row.p50_ms <= 0.4)


def route_many(bench: QueueBench) -> ReportRow:
    """Route a log to many queues with different filters; count messages routed by every queue."""
    log = bench.store.log("events")
    names = [f"events-{index}" for index in range(ROUTED_QUEUES)]
    for index, name in enumerate(names):
        condition = f"region = 'r{index}' AND amount >= {index * 10}"
        bench.store.queue(name, sources="events", start="earliest", filter=condition, lease=LEASE_S)
    backlog = Backlog(
        lambda values, headers: log.append_many(values, headers=headers), size=bench.sizes.backlog
    )
    routed = 0

    def step() -> int:
        nonlocal routed
        before, routed = routed, min(_route(bench.raw_store, name) for name in names)
        return backlog.took(routed - before)

    row = _beside_reference(bench, step, backlog, batch=BATCH)
    row.details = {
        "queues": ROUTED_QUEUES,
        "evaluations_per_second": round(row.per_second * ROUTED_QUEUES),
    }
    return row.require_rate(100_000)


def _route(store: Store, name: str) -> int:
    """Route messages to a queue without claiming any; return the offset behind the last one."""
    facts = store.view(lambda view: facts_of(view, name))
    assert facts is not None
    routed = route(store, facts, facts.fresh + WINDOW)
    store.run(lambda tx: place_routed(tx, name, routed))
    return routed[0].stop if routed else facts.sources[0].position


SUITE = Suite(
    QueueBench,
    claim_batch,
    work_batch,
    claim_one,
    claim_threads,
    claim_deep,
    claim_groups,
    claim_priority,
    claim_delayed,
    claim_singles_batch,
    claim_singles_one,
    consumer_one,
    consumer_groups,
    consumer_priority,
    live_one,
    live_stream,
    route_many,
    apart=True,
)
