"""A commit in flight is a layer over the durable state: merged when it is durable, dropped if it fails.

The entity under test is a list that only grows, as in `test_state`: a change that is lost, doubled or out
of order shows in it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, ClassVar

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millstream.embedded.session import KINDS as ALL_KINDS
from millstream.engine.memory.engine import MemoryEngine
from millstream.engine.memory.faults import Pause
from millstream.errors import InvalidInput, WriteFailed
from millstream.format import keys
from millstream.format.ids import decode_seq_block
from millstream.queue.model.queue_changes import Arrived
from millstream.queue.model.state import QueueState
from millstream.store.commit.ticket import Ticket
from millstream.store.commit.transaction import WriteTransaction
from millstream.store.state import published
from millstream.store.state.entity import Entity
from millstream.store.store import Store
from millstream.testing import Faults, Probe, SimulatedClock
from tests.unit.store.test_state import LIMITS, TRAIL, Added, Process, row, trail

PATIENCE_S = 60.0
ONE, TWO = trail(1), trail(2)


class Fussy(Entity, array_like=True):
    """The numbers that were added; a negative number fails after it was added."""

    numbers: list[int] = []  # noqa: RUF012 (a struct copies it)

    changes: ClassVar = Added

    def apply(self, change: Added) -> None:
        self.numbers.append(change.number)
        if change.number < 0:
            raise InvalidInput("a negative number")

    def exists(self) -> bool:
        return bool(self.numbers)

    def view(self) -> tuple[int, ...]:
        return tuple(self.numbers)


class Disk:
    """A memory engine with faults, and the processes over it."""

    def __init__(self) -> None:
        self.faults = Faults()
        self._engine = MemoryEngine(faults=self.faults, shared=True)

    def start(self) -> Process:
        return Process(self._engine)

    @contextmanager
    def pausing(self, step: str, work: Callable[[], object]) -> Iterator[None]:
        """Let a thread work until its commit has come to a step, and go on after the block."""
        with Pause() as pause:
            self.faults.on(step, pause)
            worker = threading.Thread(target=work, daemon=True)
            worker.start()
            pause.wait_until_reached()
            yield
        worker.join(PATIENCE_S)
        assert not worker.is_alive()


@pytest.fixture
def disk() -> Disk:
    return Disk()


def commit(store: Store, operations: Sequence[Callable[[WriteTransaction], Any]]) -> list[Any]:
    """Run operations as one group; return the result or the error of each."""
    over = threading.Semaphore(0)
    tickets = [Ticket(operation, lambda _: over.release()) for operation in operations]
    store.submit(tickets)
    for _ in tickets:
        assert over.acquire(timeout=PATIENCE_S)
    return [ticket.result if ticket.error is None else type(ticket.error) for ticket in tickets]


def test_a_reader_beside_a_commit_sees_the_durable_state_and_does_not_wait(disk: Disk) -> None:
    process = disk.start()
    process.add(ONE, 1)
    with disk.pausing("sent", lambda: process.add_to((ONE, 2), (TWO, 3))):
        assert process.sees(ONE) == [1]
        assert process.sees(TWO) == []
        assert process.lists() == [ONE]
    assert (process.sees(ONE), process.sees(TWO)) == ([1, 2], [3])
    assert process.lists() == [ONE, TWO]


@pytest.mark.parametrize("changes_max", [0, 2, 1_000])
def test_readers_beside_many_commits_see_each_of_them_once(
    disk: Disk, monkeypatch: pytest.MonkeyPatch, changes_max: int
) -> None:
    monkeypatch.setattr(published, "CHANGES_MAX", changes_max)
    process = disk.start()
    for number in range(0, 12, 3):
        process.add(ONE, number)
        process.add(ONE, number + 1)
        with disk.pausing("sent", lambda n=number: process.add(ONE, n + 2)):
            assert process.sees(ONE) == list(range(number + 2))
    assert process.sees(ONE) == disk.start().sees(ONE) == list(range(12))


def test_an_entity_that_a_commit_removes_is_read_until_the_commit_is_durable(disk: Disk) -> None:
    process = disk.start()
    process.add(ONE, 1)
    with disk.pausing("sent", lambda: process.remove(ONE)):
        assert process.sees(ONE) == [1]
    with disk.pausing("sent", lambda: process.add(ONE, 2)):
        assert process.sees(ONE) == []
    assert process.sees(ONE) == disk.start().sees(ONE) == [2]


def test_a_reader_that_evicts_entities_takes_nothing_from_a_commit_in_flight(disk: Disk) -> None:
    process = disk.start()
    process.add(ONE, 1)
    process.add(TWO, 2)
    process.fold()
    process.add(TWO, 3)
    with disk.pausing("sent", lambda: process.add(ONE, 4)):
        process.store.look(lambda state, snapshot: state.evict(0))
        assert process.sees(ONE) == [1]
    assert process.sees(ONE) == disk.start().sees(ONE) == [1, 4]


def test_a_reader_merges_a_commit_that_it_finds_on_the_disk(disk: Disk) -> None:
    process = disk.start()
    process.add(ONE, 1)
    with disk.pausing("committed", lambda: process.add(ONE, 2)):
        assert process.sees(ONE) == [1, 2]
    process.add(ONE, 3)
    assert process.sees(ONE) == disk.start().sees(ONE) == [1, 2, 3]


def test_a_reader_beside_a_fold_finds_entities_without_a_record(disk: Disk) -> None:
    process = disk.start()
    process.add(ONE, 1)
    process.add(TWO, 2)
    process.add(TWO, 3)
    with disk.pausing("sent", process.fold_slice):
        assert process.lists() == [ONE, TWO]
        assert process.sees(ONE) == [1]
    assert process.lists() == disk.start().lists() == [ONE, TWO]


@pytest.mark.parametrize("is_read", [False, True])
def test_a_commit_that_fails_leaves_the_durable_state_and_later_commits_are_right(
    disk: Disk, is_read: bool
) -> None:
    process = disk.start()
    process.store.run(lambda tx: tx.put(row(1), b"kept") or tx.change(ONE, Added(1)))
    first_id = process.store.run(lambda tx: tx.take_ids(1))

    def write(tx: WriteTransaction) -> int:
        tx.change(ONE, Added(2))
        tx.change(TWO, Added(2))
        tx.drop(row(1))
        tx.put(row(2), b"new")
        return tx.take_ids(100_000)

    disk.faults.on("commit", WriteFailed("no space"))
    with pytest.raises(WriteFailed):
        process.store.run(write)
    if is_read:
        assert (process.sees(ONE), process.sees(TWO)) == ([1], [])
        assert (process.finds(row(1)), process.finds(row(2))) == (b"kept", None)
    assert process.store.run(write) == first_id + 1
    block = process.store.look(lambda _, snapshot: snapshot.get(keys.ID_BLOCK_KEY))
    assert block is not None
    assert decode_seq_block(block).end > first_id + 100_000, "the ids are reserved again"
    for each in (process, disk.start()):
        assert (each.sees(ONE), each.sees(TWO)) == ([1, 2], [2])
        assert (each.finds(row(1)), each.finds(row(2))) == (None, b"new")


def test_a_failed_fold_changes_nothing(disk: Disk) -> None:
    process = disk.start()
    for number in range(4):
        process.add(ONE, number)
    disk.faults.on("commit", WriteFailed("no space"))
    with pytest.raises(WriteFailed):
        process.fold_slice()
    assert process.lists() == [ONE]
    process.fold()
    assert process.sees(ONE) == disk.start().sees(ONE) == [0, 1, 2, 3]


def test_an_operation_that_fails_after_its_first_change_leaves_the_others_intact(
    disk: Disk,
) -> None:
    process = disk.start()
    process.add(ONE, 0)

    def add(tx: WriteTransaction, number: int) -> bytes | None:
        tx.change(ONE, Added(number))
        tx.put(row(number), b"%d" % number)
        return tx.get(row(1))

    def fail(tx: WriteTransaction) -> None:
        tx.change(ONE, Added(-1))
        tx.change(TWO, Added(-1))
        tx.drop(row(1))
        raise InvalidInput("no")

    results = commit(process.store, [lambda tx: add(tx, 1), fail, lambda tx: add(tx, 2)])
    assert results == [b"1", InvalidInput, b"1"]
    for each in (process, disk.start()):
        assert (each.sees(ONE), each.sees(TWO)) == ([0, 1, 2], [])
        assert each.finds(row(1)) == b"1"


def test_a_change_that_fails_half_way_is_undone() -> None:
    store = Store(MemoryEngine(), {TRAIL: Fussy}, limits=LIMITS, clock=SimulatedClock())
    Probe(store).pause_keeper()
    results = commit(
        store,
        [
            lambda tx: tx.change(ONE, Added(1)),
            lambda tx: tx.change(ONE, Added(-1)),
            lambda tx: tx.change(ONE, Added(2)),
        ],
    )
    assert results == [None, InvalidInput, None]
    assert store.seen(ONE) == (1, 2)
    store.run(lambda tx: tx.change(ONE, Added(3)))
    assert store.seen(ONE) == (1, 2, 3)


STEPS = st.lists(
    st.lists(
        st.tuples(st.sampled_from(["put", "put home", "drop", "drop range"]), st.integers(0, 9)),
        max_size=4,
    ),
    max_size=8,
)


@given(STEPS, STEPS)
def test_operations_of_a_group_see_the_rows_of_those_before_them(
    stored: list[list[tuple[str, int]]], steps: list[list[tuple[str, int]]]
) -> None:
    process, rows = Process(MemoryEngine()), dict[bytes, bytes]()
    start, stop = row(0), row(10)

    def work(tx: WriteTransaction, step: list[tuple[str, int]]) -> None:
        for what, number in step:  # the drops of an operation come before its puts
            if what == "drop":
                tx.drop(row(number))
                rows.pop(row(number), None)
            elif what == "drop range":
                tx.drop_all(row(number), row(number + 2))
                for gone in (number, number + 1):
                    rows.pop(row(gone), None)
        for what, number in step:
            if what.startswith("put"):
                value = b"%d" % len(rows) * (30 if what == "put home" else 1)
                tx.put(row(number), value, home=what == "put home")
                rows[row(number)] = value

    def look(tx: WriteTransaction) -> None:
        assert tx.scan(start, stop, limit=99) == sorted(rows.items())
        assert tx.scan(start, stop, limit=2) == sorted(rows.items())[:2]
        held = [(key, tx.overlay.get(key)) for key in sorted(rows)]
        held = [(key, value) for key, value in held if value is not None]
        assert all(value == rows[key] for key, value in held)
        assert tx.overlay.keys(start, stop) == [key for key, _ in held]
        for at in (start, row(4)):
            behind = [entry for entry in held if entry[0] >= at]
            assert tx.overlay.rows_from(at, limit=2) == behind[:2]
            assert tx.overlay.after(at) == (behind[0] if behind else None)

    for step in stored:
        commit(process.store, [lambda tx, step=step: work(tx, step)])
    group = [
        work_or_look for step in steps for work_or_look in (lambda tx, s=step: work(tx, s), look)
    ]
    if group:
        assert commit(process.store, group) == [None] * len(group)
    for each in (process, Process(process.store.engine)):
        for number in range(10):
            assert each.finds(row(number)) == rows.get(row(number))


MUTABLE = (list, dict, set, bytearray)


@pytest.mark.parametrize("kind", ALL_KINDS.values(), ids=lambda kind: kind.__name__)
def test_a_copy_of_an_entity_shares_nothing_that_changes(kind: type[Entity]) -> None:
    entity = kind.blank()
    copy = entity.copied()
    assert type(copy) is kind
    for name in entity.__struct_fields__:
        value = getattr(entity, name)
        if isinstance(value, MUTABLE) or type(value).__hash__ is None:
            assert getattr(copy, name) is not value, name


def test_a_copy_of_a_queue_has_lanes_of_its_own() -> None:
    queue = QueueState(1, eras=[(0, -1, 2)])
    queue.apply(Arrived(0, 1, 2, 0, 2))
    copy = queue.copied()
    before = copy.encode()
    queue.apply(Arrived(0, 1, 4, 2, 2))
    assert copy.encode() == before
    assert queue.encode() != before
