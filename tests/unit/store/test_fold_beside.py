"""The fold joins rows beside running commits; whatever happens meanwhile, all is right.

The entity under test is a list that only grows. It is heavy, so that a slice holds few of them. The
test does something between the planning of a slice and its writing.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from typing import Any, ClassVar

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import Struct

from millstream.engine.memory.engine import MemoryEngine
from millstream.engine.memory.faults import Crash
from millstream.errors import WriteFailed
from millstream.format import keys
from millstream.limits import Limits
from millstream.store.commit.transaction import WriteTransaction
from millstream.store.state.entity import Entity
from millstream.store.state.fold import Slice
from millstream.store.store import Store
from millstream.testing import Faults, Probe, SimulatedClock

TRAIL = 0x7E


class Added(Struct, array_like=True, frozen=True):
    """One more number."""

    number: int


class Trail(Entity, array_like=True):
    """The numbers that were added."""

    numbers: list[int] = []  # noqa: RUF012 (a struct copies it)

    changes: ClassVar = Added
    weight: ClassVar[int] = 10

    def apply(self, change: Added) -> None:
        self.numbers.append(change.number)

    def exists(self) -> bool:
        return bool(self.numbers)


def trail(number: int) -> bytes:
    return keys.prefix(TRAIL) + number.to_bytes(8, "big")


ONE, TWO = trail(1), trail(2)
FEW = Limits(
    fold_slice_deltas=3,
    fold_slice_weight=20,
    fold_deltas_min=1_000_000,
    tail_deltas_max=1_000_000,
)


class Process:
    """A store, and what the tests let it do."""

    def __init__(self, engine: MemoryEngine, limits: Limits = FEW) -> None:
        self.store = Store(engine, {TRAIL: Trail}, limits=limits, clock=SimulatedClock())
        Probe(self.store).pause_keeper()

    def add(self, key: bytes, *numbers: int) -> None:
        for number in numbers:
            self.store.run(lambda tx, n=number: tx.change(key, Added(n)))

    def remove(self, key: bytes) -> None:
        self.store.run(lambda tx: tx.change(key, None))

    def fold_slice(self, meanwhile: Callable[[], object]) -> bool:
        """Fold as the background does, and do something while no lock is held."""
        with Probe(self.store).hold_commits():
            if self.store.reader.is_stale:
                return self.store.committer.commit_slice()
            planned = Slice(self.store.state, self.store.limits)
        meanwhile()
        planned.prepare()
        with Probe(self.store).hold_commits():
            return self.store.committer.commit_slice(planned)

    def fail(self, key: bytes) -> None:
        def operation(tx: WriteTransaction) -> None:
            tx.change(key, Added(-1))
            raise ZeroDivisionError

        with suppress(ZeroDivisionError):
            self.store.run(operation)

    def evict(self) -> None:
        with Probe(self.store).hold_commits():
            self.store.state.evict(0)

    def sees(self, key: bytes) -> list[int]:
        found = self.store.look(lambda state, snapshot: state.entity(key, snapshot))
        assert isinstance(found, Trail)
        return list(found.numbers)


def rows(engine: MemoryEngine, kind: int) -> dict[bytes, bytes]:
    return {key: value for key, value in engine.survivors() if key[1] == kind}


def check(engine: MemoryEngine, expected: dict[bytes, list[int]], *processes: Process) -> None:
    """Every process sees the same, before and after a last fold."""
    for process in (*processes, Process(engine)):
        for key, numbers in expected.items():
            assert process.sees(key) == numbers
    last = Process(engine)
    last.add(trail(9), 1)
    last.add(trail(9), 2)
    last.store.fold()
    stored = {key: Trail.decode(value).numbers for key, value in rows(engine, TRAIL).items()}
    assert {key: stored.get(key, []) for key in expected} == expected
    for process in (*processes, last, Process(engine)):
        for key, numbers in expected.items():
            assert process.sees(key) == numbers


def test_an_entity_changed_meanwhile_is_written_as_it_is_now() -> None:
    engine = MemoryEngine(shared=True)
    a = Process(engine)
    a.add(ONE, 1, 2, 3, 4)
    assert a.fold_slice(lambda: a.add(ONE, 5, 6))

    record = Trail.decode(rows(engine, TRAIL)[ONE])
    assert (record.lsn, record.numbers) == (a.store.state.seq, [1, 2, 3, 4, 5, 6])
    assert ONE not in a.store.state.dirty
    a.fail(ONE)
    check(engine, {ONE: [1, 2, 3, 4, 5, 6]}, a)


def test_of_an_entity_removed_meanwhile_nothing_is_left() -> None:
    engine = MemoryEngine(shared=True)
    a = Process(engine)
    a.add(ONE, 1, 2, 3, 4)
    assert a.fold_slice(lambda: a.remove(ONE))
    assert a.sees(ONE) == Process(engine).sees(ONE) == []
    check(engine, {ONE: []}, a)
    assert ONE not in rows(engine, TRAIL)


@pytest.mark.parametrize("by_another", [False, True])
def test_an_entity_made_anew_meanwhile_is_written_as_it_is_now(by_another: bool) -> None:
    engine = MemoryEngine(shared=True)
    a = Process(engine)
    other = Process(engine) if by_another else a
    a.add(ONE, 1, 2, 3, 4)
    assert a.fold_slice(lambda: other.remove(ONE) or other.add(ONE, 7))
    check(engine, {ONE: [7]}, a, other)


def test_a_slice_that_another_process_folds_meanwhile_is_given_up() -> None:
    engine = MemoryEngine(shared=True)
    a, b = Process(engine), Process(engine, replace(FEW, fold_slice_deltas=2))
    a.add(ONE, 1, 2, 3, 4)
    before = rows(engine, keys.DELTA)
    assert not a.fold_slice(b.store.committer.fold_slice)
    assert len(before) - len(rows(engine, keys.DELTA)) == 2
    assert a.store.stats()["fold_slices"] == 0
    assert a.store.fold() > 0
    b.add(ONE, 5)
    check(engine, {ONE: [1, 2, 3, 4, 5]}, a, b)


def test_a_slice_is_given_up_if_commits_and_folds_of_another_process_have_passed_it() -> None:
    engine = MemoryEngine(shared=True)
    a, b = Process(engine), Process(engine)
    a.add(ONE, 1, 2, 3, 4)

    def pass_it() -> None:
        b.remove(ONE)
        b.add(TWO, *range(9))
        b.store.fold()

    assert not a.fold_slice(pass_it)
    check(engine, {ONE: [], TWO: list(range(9))}, a, b)


def test_a_slice_is_given_up_if_a_commit_had_to_fold_meanwhile() -> None:
    engine = MemoryEngine()
    a = Process(engine, Limits(fold_deltas_min=1_000_000, tail_deltas_max=5, fold_slice_deltas=2))
    a.add(ONE, 1, 2, 3, 4)
    assert not a.fold_slice(lambda: a.add(ONE, 5, 6))
    assert a.store.stats()["fold_slices"] == 1
    check(engine, {ONE: [1, 2, 3, 4, 5, 6]}, a)


def test_a_commit_that_fails_meanwhile_takes_nothing_from_the_slice() -> None:
    faults = Faults()
    engine = MemoryEngine(faults=faults)
    a = Process(engine)
    a.add(ONE, 1, 2, 3, 4)

    def refused() -> None:
        faults.on("commit", WriteFailed("no room"))
        with pytest.raises(WriteFailed):
            a.add(ONE, 5)

    assert a.fold_slice(refused)
    check(engine, {ONE: [1, 2, 3, 4]}, a)


def test_a_slice_in_preparation_when_the_store_closes_is_left() -> None:
    engine = MemoryEngine()
    a = Process(engine)
    a.add(ONE, 1, 2, 3, 4)
    assert not a.fold_slice(a.store.close)
    check(engine.reopen(), {ONE: [1, 2, 3, 4]})


@pytest.mark.parametrize("kept", [False, True])
def test_a_crash_at_any_step_loses_and_doubles_nothing(kept: bool) -> None:
    step = 0
    while True:
        faults = Faults()
        engine = MemoryEngine(faults=faults)
        a = Process(engine)
        a.add(ONE, 1, 2, 3)
        a.add(TWO, 1)
        a.store.fold()
        a.add(ONE, 4)
        a.add(TWO, 2)
        expected = {ONE: [1, 2, 3, 4], TWO: [1, 2]}

        def changed(a: Process = a, expected: dict[bytes, list[int]] = expected) -> None:
            a.add(ONE, 5)
            expected[ONE].append(5)
            a.remove(TWO)
            expected[TWO].clear()

        faults.at(len(faults.steps) + step, Crash(kept=kept))
        try:
            a.fold_slice(changed)
            a.store.fold()
        except Crash:
            before = {ONE: [1, 2, 3, 4], TWO: [1, 2]}
            again = engine.reopen()
            found = {key: Process(again).sees(key) for key in (ONE, TWO)}
            assert found[ONE] in (before[ONE], [*before[ONE], 5])
            assert found[TWO] in (before[TWO], [])
            assert all(len(found[key]) >= len(expected[key]) or not found[key] for key in found)
            check(again, found)
            step += 1
            continue
        assert step > 20
        check(engine.reopen(), expected)
        return


def test_heavy_entities_in_memory_are_bounded_by_their_weight() -> None:
    engine = MemoryEngine()
    a = Process(engine, replace(FEW, entities_weight_max=200))
    for number in range(100):
        a.add(trail(number), number)
    state = a.store.state
    assert state.weight == 10 * 100 + 1
    a.store.fold()
    for number in range(100):
        assert a.sees(trail(number)) == [number]
        assert state.weight <= 200 + 10
    a.fail(ONE)
    a.remove(ONE)
    assert state.weight == sum(entity.weight for entity in state.entities.values())


ACTION = st.tuples(
    st.integers(0, 1),
    st.sampled_from(["add", "add", "remove", "fail", "evict", "reload", "look"]),
    st.sampled_from([ONE, TWO]),
)
ROUNDS = st.lists(st.tuples(st.lists(ACTION, max_size=6), st.lists(ACTION, max_size=3)), max_size=6)


@given(ROUNDS, st.lists(st.booleans(), min_size=6, max_size=6))
@settings(max_examples=300)
def test_processes_agree_whatever_they_do_while_one_folds(
    rounds: list[tuple[list[tuple[int, str, bytes]], list[tuple[int, str, bytes]]]],
    other_folds: list[bool],
) -> None:
    engine = MemoryEngine(shared=True)
    processes = [Process(engine), Process(engine)]
    expected: dict[bytes, list[int]] = {ONE: [], TWO: []}
    count = 0

    def act(actions: list[tuple[int, str, bytes]]) -> None:
        nonlocal count
        for who, action, key in actions:
            count += 1
            process = processes[who]
            match action:
                case "add":
                    process.add(key, count)
                    expected[key].append(count)
                case "remove":
                    process.remove(key)
                    expected[key].clear()
                case "fail":
                    process.fail(key)
                case "evict":
                    process.evict()
                case "reload":
                    process.store.reader.is_stale = True
                case "look":
                    assert process.sees(key) == expected[key]

    for (before, meanwhile), other in zip(rounds, other_folds, strict=False):
        act(before)

        def between(actions: list[Any] = meanwhile, other: bool = other) -> None:
            act(actions)
            if other:
                processes[1].store.committer.fold_slice()

        processes[0].fold_slice(between)
    check(engine, expected, *processes)
