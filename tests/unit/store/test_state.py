"""Several processes over one store: each sees every commit once, whoever folds, whoever lags.

A process is a `Store`; all of them run in this one, each with an engine of its own over one SQLite
file, or over one memory engine. The entity under test is a list that only grows: a change that is
lost, doubled or out of order shows in it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import ClassVar

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import Struct

from millstream.engine.memory.engine import MemoryEngine
from millstream.engine.protocol import Engine
from millstream.engine.sqlite.engine import SqliteEngine
from millstream.errors import CorruptionError
from millstream.format import keys
from millstream.limits import Limits
from millstream.store.commit.transaction import WriteTransaction
from millstream.store.state import delta as deltas
from millstream.store.state.entity import Entity
from millstream.store.store import Store
from millstream.testing import Faults, Probe, SimulatedClock

TRAIL = 0x7E
ROW = 0x7D


class Added(Struct, array_like=True, frozen=True):
    """One more number."""

    number: int


class Trail(Entity, array_like=True):
    """The numbers that were added, in order."""

    numbers: list[int] = []  # noqa: RUF012 (a struct copies it)

    changes: ClassVar = Added

    def apply(self, change: Added) -> None:
        self.numbers.append(change.number)

    def exists(self) -> bool:
        return bool(self.numbers)

    def view(self) -> tuple[int, ...]:
        return tuple(self.numbers)


KINDS = {TRAIL: Trail}
LIMITS = Limits(
    fold_slice_deltas=2,
    fold_deltas_min=1_000_000,
    tail_deltas_max=1_000_000,
    inline_bytes_max=20,
    entities_cached_max=1_000_000,
)


def trail(number: int) -> bytes:
    return keys.prefix(TRAIL) + number.to_bytes(8, "big")


def row(number: int) -> bytes:
    return keys.prefix(ROW) + bytes(8) + number.to_bytes(8, "big")


class Process:
    """A store, and what the tests let it do."""

    def __init__(self, engine: Engine) -> None:
        self.store = Store(engine, KINDS, limits=LIMITS, clock=SimulatedClock())
        Probe(self.store).pause_keeper()

    def add(self, key: bytes, *numbers: int) -> None:
        self.store.run(lambda tx: [tx.change(key, Added(number)) for number in numbers])

    def add_to(self, *changes: tuple[bytes, int]) -> None:
        self.store.run(lambda tx: [tx.change(key, Added(number)) for key, number in changes])

    def remove(self, key: bytes) -> None:
        self.store.run(lambda tx: tx.change(key, None))

    def fail(self, *tried: bytes) -> None:
        def operation(tx: WriteTransaction) -> None:
            for key in tried:
                tx.change(key, Added(-1))
            tx.put(row(0), b"never")
            raise ZeroDivisionError

        with suppress(ZeroDivisionError):
            self.store.run(operation)

    def fold(self) -> None:
        self.store.fold()

    def fold_slice(self) -> None:
        self.store.committer.fold_slice()

    def evict(self) -> None:
        with Probe(self.store).hold_commits():
            self.store.state.evict(0)

    def sees(self, key: bytes) -> list[int]:
        """The trail as readers find it and as the state has it, which must be the same."""
        self.store.refresh()
        shown = self.store.seen(key)
        held = self.store.look(lambda state, snapshot: state.entity(key, snapshot))
        assert isinstance(held, Trail)
        assert tuple(held.numbers) == shown
        return held.numbers

    def finds(self, key: bytes) -> bytes | None:
        return self.store.look(
            lambda state, snapshot: (
                snapshot.get(key) if state.overlay.get(key) is None else state.overlay.get(key)
            )
        )

    def lists(self) -> list[bytes]:
        start, stop = keys.range_of(keys.prefix(TRAIL))
        return self.store.look(lambda state, snap: state.find(start, stop, snap, limit=99))


Start = Callable[[], Process]


@contextmanager
def sqlite_processes(directory: Path) -> Iterator[Start]:
    started: list[Process] = []

    def start() -> Process:
        engine = SqliteEngine(directory / "s.db", durability="relaxed")
        started.append(Process(engine))
        return started[-1]

    yield start
    for process in started:
        process.store.close()


@contextmanager
def memory_processes() -> Iterator[Start]:
    engine = MemoryEngine(shared=True)
    yield lambda: Process(engine)


@pytest.fixture(params=["sqlite", "memory"])
def start(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Start]:
    made = sqlite_processes(tmp_path) if request.param == "sqlite" else memory_processes()
    with made as found:
        yield found


ONE, TWO = trail(1), trail(2)


def test_what_one_process_commits_another_sees_once(start: Start) -> None:
    a, b = start(), start()
    a.add(ONE, 1, 2)
    assert b.sees(ONE) == [1, 2]
    b.add(ONE, 3)
    assert a.sees(ONE) == [1, 2, 3]
    assert a.store.refresh() is False
    assert start().sees(ONE) == [1, 2, 3]


def test_a_process_that_a_fold_has_passed_starts_over(start: Start) -> None:
    a, b = start(), start()
    a.add(ONE, 1)
    assert b.sees(ONE) == [1]
    for number in range(2, 9):
        a.add(ONE, number)
    a.fold()
    assert b.store.state.seq + 1 < a.store.engine.last_seq()
    assert b.sees(ONE) == list(range(1, 9))
    b.add(ONE, 9)
    assert a.sees(ONE) == list(range(1, 10))


def test_folds_of_others_neither_lose_nor_double_the_changes_of_a_process(start: Start) -> None:
    a, b = start(), start()
    a.add(ONE, 1)
    b.fold()
    a.add(ONE, 2)
    b.fold()
    a.add(TWO, 3)
    b.fold()
    a.evict()
    a.add(ONE, 4)
    b.evict()
    b.fold()
    a.fold()
    a.evict()
    assert a.sees(ONE) == b.sees(ONE) == start().sees(ONE) == [1, 2, 4]
    assert a.sees(TWO) == b.sees(TWO) == start().sees(TWO) == [3]


def test_a_record_that_is_ahead_of_the_deltas_is_not_moved_again_by_them(start: Start) -> None:
    """A slice takes the oldest deltas only, but writes entities as they are now."""
    a = start()
    for number in range(1, 8):
        a.add(ONE, number)
    a.fold_slice()
    b = start()
    assert b.sees(ONE) == list(range(1, 8))
    b.add(ONE, 8)
    a.fold_slice()
    b.evict()
    assert a.sees(ONE) == b.sees(ONE) == start().sees(ONE) == list(range(1, 9))


def test_a_lagging_process_that_folds_first_learns_what_it_missed(start: Start) -> None:
    a, b = start(), start()
    for number in range(1, 6):
        a.add(ONE, number)
    b.fold()
    assert start().sees(ONE) == [1, 2, 3, 4, 5]
    assert b.sees(ONE) == [1, 2, 3, 4, 5]


def test_a_removed_entity_stays_removed_and_can_come_again(start: Start) -> None:
    a, b = start(), start()
    for number in range(1, 6):
        a.add(ONE, number)
    b.remove(ONE)
    a.add(TWO, 1)
    b.fold_slice()
    assert a.sees(ONE) == b.sees(ONE) == start().sees(ONE) == []
    assert a.lists() == b.lists() == start().lists() == [TWO]
    a.add(ONE, 6)
    b.fold_slice()
    assert a.sees(ONE) == b.sees(ONE) == start().sees(ONE) == [6]
    b.fold()
    assert a.lists() == b.lists() == start().lists() == [ONE, TWO]


def test_a_refused_operation_on_a_lagging_process_leaves_nothing(start: Start) -> None:
    a, b = start(), start()
    a.add(ONE, 1)
    b.add(ONE, 2)
    b.fold()
    b.add(TWO, 3)
    a.fail(ONE, TWO)
    assert a.sees(ONE) == [1, 2]
    assert a.sees(TWO) == [3]
    a.add(ONE, 4)
    assert a.sees(ONE) == b.sees(ONE) == start().sees(ONE) == [1, 2, 4]
    assert a.finds(row(0)) is None


def test_a_refused_operation_after_the_fold_of_another_leaves_what_can_be_folded(
    start: Start,
) -> None:
    a, b = start(), start()
    a.add(ONE, 1)
    a.add(TWO, 2)
    assert b.sees(ONE) == [1]
    b.fold()
    a.fail(ONE)
    a.fold()
    a.add(ONE, 3)
    a.fold()
    assert a.sees(ONE) == b.sees(ONE) == start().sees(ONE) == [1, 3]
    assert a.sees(TWO) == b.sees(TWO) == start().sees(TWO) == [2]


def test_rows_dropped_by_one_process_are_gone_for_all(start: Start) -> None:
    a, b = start(), start()
    a.store.run(lambda tx: [tx.put(row(n), b"%d" % n) for n in range(4)])
    assert b.finds(row(1)) == b"1"
    b.fold()
    b.store.run(lambda tx: tx.drop_all(row(1), row(3)))
    b.store.run(lambda tx: tx.drop(row(3)))
    for process in (a, b, start()):
        assert [process.finds(row(n)) for n in range(4)] == [b"0", None, None, None]


def test_ids_taken_by_several_processes_never_meet(start: Start) -> None:
    a, b = start(), start()
    taken: list[int] = []

    def take(process: Process, count: int) -> None:
        first = process.store.run(lambda tx: tx.take_ids(count))
        taken.extend(range(first, first + count))

    for turn in range(6):
        take(a, 3)
        take(b, 5_000 if turn == 2 else 1)
        if turn == 3:
            a.fold()
        if turn == 4:
            take(start(), 2)
    assert len(set(taken)) == len(taken)


@pytest.mark.parametrize("folds", [False, True])
def test_a_record_that_is_read_wrongly_once_misses_no_change(folds: bool) -> None:
    """What commits changed of it meanwhile is applied when it can be read: each change once."""
    faults = Faults()
    engine = MemoryEngine(shared=True, faults=faults)
    b = Process(engine)
    b.add(TWO, 1)
    b.add(ONE, 1)
    b.fold()
    a = Process(engine)
    assert a.sees(ONE) == [1]
    b.add_to((ONE, 2), (TWO, 2))

    # The first read is that of the fold position, the second that of a record.
    faults.on("get", CorruptionError("a bit was read wrongly", what="row", where=0), nth=2)
    a.store.refresh()
    b.add_to((TWO, 3), (ONE, 3))
    a.store.refresh()
    if folds:
        a.add(ONE, 4)
        a.fold()
    assert a.sees(ONE)[:3] == [1, 2, 3]
    assert a.sees(TWO) == [1, 2, 3]
    a.add(TWO, 4)
    a.fold()
    assert Process(engine).sees(TWO) == [1, 2, 3, 4]


def test_a_look_that_fails_in_the_middle_is_taken_up_from_the_start() -> None:
    """Some commits were applied when a read failed: they must not be applied twice."""
    faults = Faults()
    engine = MemoryEngine(shared=True, faults=faults)
    b = Process(engine)
    b.add(ONE, 1)
    a = Process(engine)
    assert a.sees(ONE) == [1]
    for number in range(2, deltas.ROWS_PER_SCAN + 4):
        b.add(ONE, number)

    faults.on("scan", CorruptionError("a bit was read wrongly", what="row", where=0), nth=2)
    with pytest.raises(CorruptionError):
        a.store.refresh()
    assert a.sees(ONE) == list(range(1, deltas.ROWS_PER_SCAN + 4))


# At random.

WHAT = [
    "add",
    "add both",
    "remove",
    "fail",
    "put",
    "drop",
    "fold slice",
    "fold",
    "evict",
    "look",
    "reopen",
]
ACTIONS = st.lists(
    st.tuples(
        st.integers(0, 2),
        st.sampled_from(WHAT),
        st.sampled_from([ONE, TWO]),
    ),
    max_size=30,
)


class Expected:
    """What every process should see."""

    def __init__(self) -> None:
        self.trails: dict[bytes, list[int]] = {ONE: [], TWO: []}
        self.rows: dict[bytes, bytes] = {}

    def check(self, process: Process) -> None:
        for key, numbers in self.trails.items():
            assert process.sees(key) == numbers
        for number in range(31):
            assert process.finds(row(number)) == self.rows.get(row(number))
        assert process.lists() == [key for key, numbers in self.trails.items() if numbers]


def run_actions(start: Start, actions: list[tuple[int, str, bytes]]) -> None:
    processes, expected = [start(), start(), start()], Expected()
    for number, (who, action, key) in enumerate(actions, start=1):
        process = processes[who]
        match action:
            case "add":
                process.add(key, number)
                expected.trails[key].append(number)
            case "add both":
                process.add_to((ONE, number), (TWO, number), (ONE, number + 100))
                expected.trails[ONE] += [number, number + 100]
                expected.trails[TWO].append(number)
            case "remove":
                process.remove(key)
                expected.trails[key] = []
            case "fail":
                process.fail(key)
            case "put":
                value = b"%d" % number * (1 if key == ONE else 30)
                process.store.run(lambda tx, n=number, v=value: tx.put(row(n), v) or add(tx, n))
                expected.rows[row(number)] = value
                expected.trails[ONE].append(number)
            case "drop":
                process.store.run(
                    lambda tx, n=number: tx.drop_all(row(n // 2), row(n)) or add(tx, n)
                )
                expected.trails[ONE].append(number)
                for gone in range(number // 2, number):
                    expected.rows.pop(row(gone), None)
            case "fold slice":
                process.fold_slice()
            case "fold":
                process.fold()
            case "evict":
                process.evict()
            case "look":
                expected.check(process)
            case "reopen":
                processes[who] = start()
    for process in (*processes, start()):
        expected.check(process)
    processes[0].fold()
    expected.check(start())


def add(tx: WriteTransaction, number: int) -> None:
    tx.change(ONE, Added(number))


@given(ACTIONS)
@settings(max_examples=300)
def test_processes_agree_whatever_they_do_in_memory(actions: list[tuple[int, str, bytes]]) -> None:
    with memory_processes() as start:
        run_actions(start, actions)


@given(ACTIONS)
@settings(max_examples=40)
def test_processes_agree_whatever_they_do_on_disk(actions: list[tuple[int, str, bytes]]) -> None:
    with TemporaryDirectory() as directory, sqlite_processes(Path(directory)) as start:
        run_actions(start, actions)
