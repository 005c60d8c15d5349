"""A store that is stopped, or fails, at every single step of a workload.

Promised, wherever the stop comes:
- what was acknowledged is there, with the right content, in every later opening;
- what was not acknowledged is wholly there or wholly absent;
- what failed plainly is absent, and the handle goes on as if it had not been asked;
- after an unknown outcome the handle goes on by itself, and knows what became of it;
- folds and deletions in the background change nothing that anybody can see, and leave no rows behind.

The workload is run once to count its steps, and then once for each of them.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from copy import deepcopy
from dataclasses import dataclass, field
from typing import Any

import pytest

from millstream.command import Transact
from millstream.embedded.rules import operation
from millstream.embedded.session import EmbeddedSession, open_store
from millstream.errors import (
    CorruptionError,
    EndMoved,
    InvalidInput,
    MillstreamError,
    OutcomeUnknown,
    Recovering,
    StoreError,
    WriteFailed,
)
from millstream.format import keys
from millstream.format.packing import pack_single
from millstream.log import commands as c
from millstream.log.rules.retention import tend
from millstream.record import Producer
from millstream.store.commit.ticket import Ticket
from millstream.store.store import Store
from millstream.testing import Crash, Faults, MemoryEngine, Probe, SimulatedClock, Torn
from millstream.threads.database import Millstream
from tests.crash.tight import LARGE, LIMITS

pytestmark = pytest.mark.faults


# The model: what a store should hold, said without any of its code.


@dataclass
class LogModel:
    start: int = 0
    values: dict[int, bytes] = field(default_factory=dict)
    acked: dict[str, set[int]] = field(default_factory=dict)
    metadata: dict[str, Any] = field(default_factory=dict)

    def append(self, *values: bytes) -> None:
        end = max(self.values, default=self.start - 1) + 1
        self.values |= {end + at: value for at, value in enumerate(values)}

    def truncate(self, before: int) -> None:
        self.start = before
        self.values = {at: value for at, value in self.values.items() if at >= before}


Model = dict[str, LogModel]


def holdings(ms: Millstream) -> Model:
    """The same, asked of a store; fails if offsets are not contiguous."""
    found = {}
    for info in ms.logs():
        log = ms.log(info.name)
        records = list(log.read())
        assert [r.offset for r in records] == list(range(info.start_offset, info.end_offset))
        assert (log.start_offset(), log.end_offset()) == (info.start_offset, info.end_offset)
        found[info.name] = LogModel(
            info.start_offset,
            {record.offset: record.value for record in records},
            {
                cursor.name: set(range(cursor.floor)).union(*(range(*r) for r in cursor.ranges))
                for cursor in log.cursors()
            },
            dict(log.metadata),
        )
    return found


def seen(model: Model) -> Model:
    """What a reader sees of a model: truncated positions count as acknowledged."""
    shown = deepcopy(model)
    for log in shown.values():
        log.acked = {name: done | set(range(log.start)) for name, done in log.acked.items()}
    return shown


# The workload: what is done, and what it means.

Do = Callable[[Millstream], Any]
Mean = Callable[[Model], Any]


def store_of(ms: Millstream) -> Store:
    return Probe(ms).store


def transfer(ms: Millstream) -> None:
    with ms.transaction() as tx:
        tx.append("b", b"moved")
        tx.append("b", LARGE)
        tx.append("new", b"made by a transaction")
        tx.ack(ms.log("a").cursor("reader"), 2)


def transferred(model: Model) -> None:
    model["b"].append(b"moved", LARGE)
    model["new"] = LogModel(0, {0: b"made by a transaction"})
    model["a"].acked["reader"].add(2)


def refused(ms: Millstream) -> None:
    """A transaction that changes much before its last step is refused."""
    with suppress(EndMoved), ms.transaction() as tx:
        tx.append("a", b"never")
        tx.append_many("b", [b"never"] * 3)
        tx.append("made and unmade", LARGE)
        tx.set_metadata("a", "colour", "never")
        tx.ack(ms.log("a").cursor("reader"), [0, 1, 2, 3])
        tx.append("a", b"never", expect_end=999)


def produce(ms: Millstream) -> None:
    ms.log("a").append(b"produced", producer=Producer("p", 0))


def drop_bytes(ms: Millstream) -> None:
    store = store_of(ms)
    for log_id in store.look(lambda state, snapshot: _log_ids(state, snapshot)):
        while tend(store, log_id):
            pass


def _log_ids(state: Any, snapshot: Any) -> list[int]:
    found = state.find(*keys.range_of(keys.prefix(keys.HEAD)), snapshot, limit=99)
    return [keys.number(key) for key in found]


def nothing(_: Model) -> None:
    """What upkeep means to readers."""


def appended(log: str, *values: bytes) -> tuple[Do, Mean]:
    if len(values) == 1:
        return (
            lambda ms: ms.log(log).append(values[0]),
            lambda model: model.setdefault(log, LogModel()).append(*values),
        )
    return (
        lambda ms: ms.log(log).append_many(values),
        lambda model: model.setdefault(log, LogModel()).append(*values),
    )


WORKLOAD: list[tuple[Do, Mean]] = [
    appended("a", b"zero"),
    appended("a", b"one"),
    appended("b", LARGE),
    (
        lambda ms: ms.log("a").cursor("reader"),
        lambda model: model["a"].acked.update(reader=set()),
    ),
    appended("a", b"two", LARGE, b"four"),
    (
        lambda ms: ms.log("a").cursor("reader").ack([0, 4]),
        lambda m: m["a"].acked["reader"].update({0, 4}),
    ),
    (lambda ms: ms.fold(), nothing),
    (produce, lambda model: model["a"].append(b"produced")),
    (produce, nothing),
    (refused, nothing),
    (transfer, transferred),
    (
        lambda ms: ms.log("a").metadata.update(colour="blue"),
        lambda model: model["a"].metadata.update(colour="blue"),
    ),
    (lambda ms: ms.log("a").truncate(before=3), lambda model: model["a"].truncate(3)),
    (drop_bytes, nothing),
    appended("a", b"after the truncation"),
    (lambda ms: ms.fold(), nothing),
    (refused, nothing),
    appended("b", *[b"%d" % n for n in range(20)]),
    (lambda ms: ms.log("b").truncate(before=5), lambda model: model["b"].truncate(5)),
    (lambda ms: ms.log("new").delete(), lambda model: model.pop("new")),
    (drop_bytes, nothing),
    appended("new", b"another log of that name"),
    (
        lambda ms: ms.log("a").delete_cursor("reader"),
        lambda model: model["a"].acked.pop("reader"),
    ),
    (
        lambda ms: ms.log("b").truncate(before=40, past_end=True),
        lambda model: model["b"].truncate(40),
    ),
    appended("b", b"forty"),
    (drop_bytes, nothing),
    (lambda ms: ms.fold(), nothing),
    (drop_bytes, nothing),
]


def models() -> list[Model]:
    """What the store should hold before the first operation, and after each of them."""
    found: list[Model] = [{}]
    for _, mean in WORKLOAD:
        model = deepcopy(found[-1])
        mean(model)
        found.append(model)
    return found


MODELS = models()


def open_over(engine: MemoryEngine, clock: SimulatedClock | None = None) -> Millstream:
    """A store whose background thread never starts: every step is taken by the test."""
    store = open_store(engine, limits=LIMITS, clock=clock or SimulatedClock())
    Probe(store).pause_keeper()
    return Millstream(EmbeddedSession(store))


def dry_run() -> list[str]:
    faults = Faults()
    ms = open_over(MemoryEngine(faults=faults))
    for do, _ in WORKLOAD:
        do(ms)
    return faults.steps


STEPS = dry_run()


def finish(ms: Millstream, *, done: int) -> None:
    """Do the rest of the workload, and fold: the store then holds what it should."""
    for do, _ in WORKLOAD[done:]:
        do(ms)
    ms.fold()
    drop_bytes(ms)
    ms.fold()
    assert holdings(ms) == seen(MODELS[-1])


def payload_rows(engine: MemoryEngine) -> Counter[int]:
    kinds = (keys.PAYLOAD, keys.PAYLOAD_BLOCK, keys.CURSOR, keys.HEAD, keys.NAME, keys.DELTA)
    return Counter(key[1] for key, _ in engine.survivors() if key[1] in kinds)


def test_the_workload_means_what_the_model_says_and_takes_many_steps() -> None:
    ms = open_over(MemoryEngine())
    for (do, _), model in zip(WORKLOAD, MODELS[1:], strict=True):
        do(ms)
        assert holdings(ms) == seen(model)
    assert {"begin", "put", "delete", "commit", "sent", "committed", "read", "get", "scan"} == {
        *STEPS
    }
    assert store_of(ms).stats()["fold_slices"] > 10


# Stops.


def crashes() -> Iterator[tuple[int, bool]]:
    for index, step in enumerate(STEPS):
        yield index, False
        if step == "sent":
            yield index, True


def run_until(
    end: type[Crash] | tuple[type[StoreError], ...], ms: Millstream, otherwise: int | None = None
) -> int:
    """Run the workload until that is raised; how many operations were acknowledged."""
    for done, (do, _) in enumerate(WORKLOAD):
        try:
            do(ms)
        except end:
            return done
    assert otherwise is not None, "the workload was not stopped"
    return otherwise


def run_until_crash(engine: MemoryEngine) -> int:
    """The same, the making of the store included."""
    try:
        ms = open_over(engine)
    except Crash:
        return 0
    return run_until(Crash, ms)


def test_whatever_step_it_is_stopped_at_a_store_holds_what_it_acknowledged() -> None:
    untouched = MemoryEngine()
    finish(open_over(untouched), done=0)

    for index, kept in crashes():
        faults = Faults()
        faults.at(index, Crash(kept=kept))
        engine = MemoryEngine(faults=faults)
        done = run_until_crash(engine)
        where = f"step {index} ({STEPS[index]}, kept={kept}), in operation {done}"

        first = holdings(open_over(engine.reopen()))
        again = engine.reopen()
        ms = open_over(again)
        second = holdings(ms)

        assert first == second, where
        wholly = [seen(MODELS[done]), seen(MODELS[done + 1])]
        assert second in wholly, where
        finish(ms, done=done + wholly.index(second))
        assert payload_rows(again) == payload_rows(untouched), where


def test_a_store_stopped_over_and_over_still_finishes() -> None:
    """Every fifth step ends the process; each opening does what the one before did not."""
    engine, done = MemoryEngine(), 0
    for stop in range(40, 4_000, 5):
        faults = Faults()
        faults.at(stop, Crash())
        engine = engine.reopen(faults=faults)
        try:
            ms = open_over(engine)
            held = holdings(ms)
            if done < len(WORKLOAD) and held == seen(MODELS[done + 1]):
                done += 1
            assert held == seen(MODELS[done])
            while done < len(WORKLOAD):
                WORKLOAD[done][0](ms)
                done += 1
            break
        except Crash:
            continue
    finish(open_over(engine.reopen()), done=done)


def test_a_loss_of_power_under_relaxed_durability_leaves_an_earlier_state() -> None:
    engine = MemoryEngine(durability="relaxed")
    ms = open_over(engine)
    for do, _ in WORKLOAD[:14]:
        do(ms)
    held = [seen(model) for model in MODELS[:15]]
    states = [
        holdings(open_over(engine.reopen(lost=lost))) for lost in range(engine.commits, -1, -1)
    ]
    positions = [held.index(state) for state in states]
    assert positions == sorted(positions)
    assert (positions[0], positions[-1]) == (0, held.index(held[14]))
    assert len(set(positions)) > 8


# Failures that the process survives.


def run_watched(faults: Faults, failure: type[MillstreamError] | tuple[type, ...] = ()) -> int:
    """Run the workload, looking at the store all the time and repeating what fails; how often."""
    engine = MemoryEngine(faults=faults)
    ms = open_over(engine)
    failed = 0
    for at, (do, _) in enumerate(WORKLOAD):
        where = f"operation {at}, {len(faults.steps)} steps"
        try:
            do(ms)
        except failure:
            failed += 1
            assert quietly(engine, ms) == seen(MODELS[at]), f"something is left of {where}"
            do(ms)
        assert quietly(engine, ms) == seen(MODELS[at + 1]), where
    assert holdings(open_over(engine.reopen())) == seen(MODELS[-1])
    return failed


def quietly(engine: MemoryEngine, ms: Millstream) -> Model:
    """What a store holds, asked without faults and without counting steps."""
    faults, engine.faults = engine.faults, None
    held = holdings(ms)
    engine.faults = faults
    return held


def watched_steps(*names: str) -> list[int]:
    """The steps of those names after the store was made."""
    faults = Faults()
    run_watched(faults)
    made = faults.steps.index("committed") + 1
    return [at for at, step in enumerate(faults.steps) if step in names and at >= made]


def test_a_write_that_fails_plainly_leaves_the_handle_as_it_was() -> None:
    failed = 0
    for index in watched_steps("begin", "put", "delete", "commit"):
        faults = Faults()
        faults.at(index, WriteFailed("the disk is full"))
        failed += run_watched(faults, WriteFailed)
    assert failed > 100


def test_a_read_that_fails_once_harms_nothing() -> None:
    failed = 0
    for index in watched_steps("read", "get", "scan"):
        faults = Faults()
        faults.at(index, CorruptionError("a bit was read wrongly", what="row", where=0))
        failed += run_watched(faults, (CorruptionError, StoreError))
    assert failed > 100


@pytest.mark.parametrize("kept", [True, False])
def test_after_an_unknown_outcome_the_handle_knows_and_goes_on(kept: bool) -> None:
    for index in [at for at, step in enumerate(STEPS) if step == "sent"][1:]:
        faults = Faults()
        faults.at(index, Torn(kept=kept))
        engine = MemoryEngine(faults=faults)
        ms = open_over(engine)
        done = run_until((OutcomeUnknown, Recovering), ms, otherwise=len(WORKLOAD))
        if done == len(WORKLOAD):  # a fold met it, which concerns no caller
            finish(ms, done=done)
            continue
        where = f"step {index}, in operation {done}"
        wholly = [seen(MODELS[done]), seen(MODELS[min(done + 1, len(WORKLOAD))])]
        assert holdings(ms) in wholly, where  # reads go on
        store_of(ms).recovery.attempt()
        held = holdings(ms)
        assert held in wholly, where
        reopened = open_over(engine.reopen())
        assert holdings(reopened) == held, where
        finish(ms, done=done + wholly.index(held))


def test_a_fold_that_fails_after_a_commit_does_not_make_the_commit_fail() -> None:
    faults = Faults()
    engine = MemoryEngine(faults=faults)
    ms = open_over(engine)
    log = ms.log("a")
    state = store_of(ms).state
    while state.seq - state.folded < LIMITS.tail_deltas_max:
        log.append(b"x")
    before = log.end_offset()  # with the next commit the tail is too long, and the writer folds
    faults.on("commit", WriteFailed("the disk is full"), nth=2)
    assert log.append(b"durable") == before
    assert log.append(b"next") == before + 1


# Groups.


def together(store: Store, *commands: Any) -> list[Ticket[Any]]:
    """Run commands in one group; the tickets, answered."""
    answered = threading.Semaphore(0)
    tickets = [Ticket(operation(command), lambda _: answered.release()) for command in commands]
    store.submit(tickets)
    for _ in tickets:
        answered.acquire()
    return tickets


def record(value: bytes) -> Any:
    return pack_single(value, key=None, headers=None, timestamp=None, limits=LIMITS)


@pytest.mark.parametrize("value", [b"small", LARGE], ids=["small", "large"])
def test_an_operation_that_is_refused_undoes_only_itself(value: bytes) -> None:
    engine = MemoryEngine()
    ms = open_over(engine)
    ms.log("a").append(value)
    ms.log("a").cursor("reader")
    commits = engine.commits
    tickets = together(
        store_of(ms),
        c.Append("a", record(b"1" + value)),
        Transact(
            [
                c.Append("a", record(b"never" + value)),
                c.Append("never made", record(value)),
                c.Acknowledge("a", "reader", [(0, 2)]),
                c.Append("a", record(value), expect_end=999),
            ]
        ),
        c.Append("a", record(b"2" + value)),
        c.Acknowledge("a", "reader", [(1, 2)]),
        c.Truncate("nowhere", 0),
    )

    assert engine.commits == commits + 1
    assert [type(ticket.error) for ticket in tickets] == [type(None), EndMoved] + [type(None)] * 3
    assert [tickets[0].result, tickets[2].result] == [1, 2]
    expected = {"a": LogModel(0, {0: value, 1: b"1" + value, 2: b"2" + value}, {"reader": {1}}, {})}
    assert holdings(ms) == expected
    assert holdings(open_over(engine.reopen())) == expected


def test_a_group_that_cannot_be_written_fails_as_one_and_plainly() -> None:
    faults = Faults()
    engine = MemoryEngine(faults=faults)
    ms = open_over(engine)
    ms.log("a").append(b"zero")
    faults.on("commit", WriteFailed("the disk is full"))
    tickets = together(store_of(ms), c.Append("a", record(b"never")), c.Append("b", record(LARGE)))
    assert [type(ticket.error) for ticket in tickets] == [WriteFailed, WriteFailed]
    assert tickets[0].error is not tickets[1].error

    assert ms.log("a").append(b"one") == 1
    assert holdings(ms) == {"a": LogModel(0, {0: b"zero", 1: b"one"})}
    assert holdings(open_over(engine.reopen())) == holdings(ms)


def test_an_operation_whose_undoing_meets_damage_does_not_spoil_the_store() -> None:
    """Undoing reads deltas again; if that fails, no later operation may build on the rest."""
    engine = MemoryEngine()
    ms = open_over(engine)
    for value in (b"zero", b"one"):
        ms.log("a").append(value)
    engine.corrupt(keys.delta(engine.last_seq()))

    tickets = together(
        store_of(ms),
        Transact([c.Append("a", record(b"x")), c.Append("a", record(b"x"), expect_end=999)]),
        c.Append("a", record(b"two")),
    )

    assert isinstance(tickets[0].error, MillstreamError)
    if tickets[1].error is None:
        assert tickets[1].result == 2
    assert not any(key == keys.entry(1, 0) for key, _ in engine.survivors())


def test_input_that_cannot_be_written_is_refused_and_poisons_nothing() -> None:
    ms = open_over(MemoryEngine())
    for ask in (
        lambda: ms.log("a").truncate(before=2**70),
        lambda: ms.log("a").retain(count=2**70),
        lambda: ms.log("a").append(b"x", producer=Producer("p", 2**70)),
    ):
        with pytest.raises(InvalidInput):
            ask()
    assert ms.log("a").append(b"usable") == 0
