"""The queue's benchmark: every workload runs, in a moment, and reports what is documented."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from millstream.bench import queue as workloads
from millstream.bench.measure import PAYLOAD_BYTES, StepMeter
from millstream.bench.queue_bench import REFERENCE_MIN, ClaimingWorker, QueueBench, Sizes
from millstream.bench.reference import GROUP, PRIORITY, ReferenceQueue
from millstream.bench.turns import Backlog, Side, alternate
from millstream.header import HeaderMapping

TINY = Sizes(
    backlog=2_000, shallow=1_000, deep=3_000, slice_s=0.01, short_slice_s=0.005, due_s=0.02
)
FIELDS = {"workload", "payload_bytes", "per_second", "p50_ms", "p99_ms", "required", "passed"}
BESIDE = {"beside_per_second", "ratio"}
DETAILS = {
    "claim_threads": {"threads", "one_thread_per_second", "times_one_thread"},
    "claim_deep": {"backlog", "shallow_backlog", *workloads.KINDS},
    "claim_singles_batch": {"live_per_second"},
    "claim_singles_one": {"live_per_second"},
    "route_many": {"queues", "evaluations_per_second"},
}


@pytest.mark.parametrize("name", workloads.SUITE.workloads)
def test_a_workload_reports_the_documented_fields(name: str, tmp_path: Path) -> None:
    started: list[str] = []
    (row,) = workloads.SUITE.run(
        [name],
        directory=tmp_path,
        seconds_each=0.02,
        sync_delay_ms=0.1,
        started=started.append,
        sizes=TINY,
    )
    found = json.loads(msgspec.json.encode(row))
    assert started == [name]
    assert found.keys() >= FIELDS | BESIDE
    assert found["per_second"] > 0
    assert found["beside_per_second"] > 0
    assert found["sync_delay_ms"] == 0.1
    assert found.get("details", {}).keys() == DETAILS.get(name, set())
    assert not list(tmp_path.iterdir()), "the files of a run are removed"


def test_a_run_beside_a_slow_reference_is_void(tmp_path: Path) -> None:
    bench = QueueBench(tmp_path, seconds_each=0.01, sync_delay_ms=0, sizes=TINY)
    slow, fast = StepMeter(), StepMeter()
    slow.messages, slow.elapsed_s = REFERENCE_MIN[1] - 1, 1.0
    fast.messages, fast.elapsed_s = REFERENCE_MIN[1], 1.0
    assert "4,199 messages/s by 1" in bench.row(batch=1, reference=slow, meter=fast).void
    assert not bench.row(batch=1, reference=fast, meter=slow).void
    bench.close()


def test_the_reference_hands_out_each_message_once_and_in_order(tmp_path: Path) -> None:
    queue = ReferenceQueue(tmp_path / "reference.db")
    headers: list[HeaderMapping] = [{"number": number} for number in range(250)]
    queue.put_many([bytes([number]) for number in range(250)], headers)
    seen: list[tuple[bytes, Any]] = []
    while claims := queue.claim(100):
        seen += [(payload, msgspec.msgpack.decode(packed)) for _, _, packed, payload in claims]
        queue.ack(claims)
    assert seen == [(bytes([number]), {"number": number}) for number in range(250)]
    queue.close()


def test_a_reference_with_priorities_hands_out_the_highest_first(tmp_path: Path) -> None:
    queue = ReferenceQueue(tmp_path / "reference.db", order=PRIORITY)
    queue.put_many([b"a", b"b", b"c"], [{"priority": 1}, {"priority": 2}, {"priority": 1}])
    assert sorted(payload for *_, payload in queue.claim(2)) == [b"a", b"b"]
    assert [payload for *_, payload in queue.claim(2)] == [b"c"]
    queue.close()


def test_a_reference_with_groups_hands_out_one_of_each_at_a_time(tmp_path: Path) -> None:
    queue = ReferenceQueue(tmp_path / "reference.db", order=GROUP)
    queue.put_many([b"a1", b"a2", b"b1"], [{"tenant": 1}, {"tenant": 1}, {"tenant": 2}])
    first = queue.claim(3)
    assert sorted(payload for *_, payload in first) == [b"a1", b"b1"]
    assert queue.claim(3) == []
    queue.ack(first)
    assert [payload for *_, payload in queue.claim(3)] == [b"a2"]
    queue.close()


def test_a_backlog_is_topped_up_with_payloads_that_differ(tmp_path: Path) -> None:
    put: list[bytes] = []
    backlog = Backlog(lambda values, _: put.extend(values), size=2_000)
    backlog.fill()
    assert len(put) == 2_000
    backlog.took(1)
    backlog.fill()
    assert len(put) == 3_000
    assert len(set(put)) == 3_000
    assert {len(value) for value in put} == {PAYLOAD_BYTES}


def test_a_worker_acknowledges_what_it_held(tmp_path: Path) -> None:
    bench = QueueBench(tmp_path, seconds_each=0.01, sync_delay_ms=0, sizes=TINY)
    queue, backlog = bench.filled("work", size=1_000)
    backlog.fill()
    worker = ClaimingWorker(queue, 100)
    assert sum(worker.step() for _ in range(11)) == 1_000
    info = queue.info()
    assert info is not None
    assert (info.available, info.in_flight, info.done) == (0, 0, 1_000)
    bench.close()


def test_settling_counts_as_work_and_filling_does_not() -> None:
    calls: list[str] = []

    def side(name: str) -> Side:
        return Side(
            lambda: calls.append(f"{name} works") or 1,  # type: ignore[func-returns-value]
            lambda: calls.append(f"{name} fills"),
            lambda: calls.append(f"{name} settles"),
        )

    one, two = alternate([side("one"), side("two")], 1e-9, slice_s=1e-9)
    assert calls[4:] == [
        *("one fills", "one settles", "one works", "one settles"),
        *("two fills", "two settles", "two works", "two settles"),
    ]
    assert one.messages == two.messages == 1
    assert one.elapsed_s > one.step_s[0]
