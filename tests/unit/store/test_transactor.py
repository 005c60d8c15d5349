"""The transactor: who commits for whom, and that nobody is left waiting.

Tests hold a commit open with an operation that waits, so that they know who waits meanwhile.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import pytest

from millstream import interrupts
from millstream.embedded.session import open_store
from millstream.engine.sqlite.engine import SqliteEngine
from millstream.errors import Closed, MillstreamError, Overloaded, Poisoned
from millstream.limits import Limits
from millstream.store.commit import gather, ticket, transactor
from millstream.store.commit.ticket import Ticket
from millstream.store.commit.transaction import WriteTransaction
from millstream.store.store import Store
from millstream.testing import MemoryEngine, Probe, SimulatedClock
from tests.interrupting import code_on_main, interrupted

PATIENCE_S = 60
"""Until a test decides that somebody waits for ever."""


def until(condition: Callable[[], bool]) -> None:
    """Spin until another thread has come there."""
    while not condition():
        os.sched_yield()


def start(**limits: int) -> Store:
    store = open_store(MemoryEngine(), limits=Limits(**limits), clock=SimulatedClock())
    Probe(store).pause_keeper()
    return store


def gather_of(store: Store) -> gather.Gather[Any]:
    return store._transactor._gather


def commits(store: Store) -> int:
    assert isinstance(store.engine, MemoryEngine)
    return store.engine.commits


def count(tx: WriteTransaction) -> int:
    """An operation that changes something."""
    return tx.take_ids(1)


class Caller(threading.Thread):
    """A thread that runs one operation, and what came of it."""

    def __init__(
        self,
        store: Store,
        operation: Callable[[WriteTransaction], Any] = count,
        name: str | None = None,
    ) -> None:
        super().__init__(daemon=True, name=name)
        self._store = store
        self._operation = operation
        self.result: Any = None
        self.error: BaseException | None = None
        self.start()

    def run(self) -> None:
        try:
            self.result = self._store.run(self._operation)
        except BaseException as error:
            self.error = error

    def finish(self) -> Caller:
        self.join(PATIENCE_S)
        assert not self.is_alive(), "a caller waits for ever"
        return self


class Hold:
    """A commit that is held open."""

    def __init__(self, store: Store) -> None:
        self._began, self._go_on = threading.Event(), threading.Event()
        self._store = store
        self.caller = Caller(store, self._wait)
        assert self._began.wait(PATIENCE_S)

    def _wait(self, tx: WriteTransaction) -> int:
        self._began.set()
        assert self._go_on.wait(PATIENCE_S)
        return count(tx)

    def await_waiting(self, number: int) -> None:
        until(lambda: len(gather_of(self._store).waiting) == number)

    def release(self) -> None:
        self._go_on.set()
        self.caller.finish()


@contextmanager
def held(store: Store) -> Iterator[Hold]:
    hold = Hold(store)
    try:
        yield hold
    finally:
        hold.release()


# Groups.


def test_a_caller_alone_commits_on_its_own_thread() -> None:
    store = start()
    assert store.run(lambda _: threading.get_ident()) == threading.get_ident()


def test_an_operation_that_is_only_attempted_waits_for_no_commit() -> None:
    store = start()
    ran: list[str] = []
    with held(store):
        assert store.attempt(lambda _: ran.append("beside")) is None
    with store.hold():
        assert store.attempt(lambda _: ran.append("kept out")) is None
    done = store.attempt(lambda _: ran.append("alone"))
    assert done is not None
    assert ran == ["alone"]
    with pytest.raises(ZeroDivisionError):
        store.attempt(lambda _: 1 // 0)
    assert store.run(lambda _: "goes on") == "goes on"
    store.close()
    with pytest.raises(Closed):
        store.attempt(count)


def test_an_operation_that_is_only_attempted_waits_for_no_other_process(tmp_path: Path) -> None:
    store = open_store(SqliteEngine(tmp_path / "a.db"))
    other = open_store(SqliteEngine(tmp_path / "a.db"))
    for one in (store, other):
        Probe(one).pause_keeper()
    first = store.run(count)
    with other.engine.write():
        assert store.attempt(count) is None
    done = store.attempt(count)
    assert done is not None
    assert done.result == first + 1
    store.close()
    other.close()


def test_those_who_wait_are_committed_together() -> None:
    store = start()
    before = commits(store)
    with held(store) as hold:
        waiting = [Caller(store) for _ in range(30)]
        hold.await_waiting(30)
    results = [caller.finish().result for caller in waiting]
    assert commits(store) == before + 2
    assert len(set(results)) == 30


def test_many_threads_need_fewer_commits_than_operations_and_each_gets_its_own_answer(
    tmp_path: Path,
) -> None:
    engine = SqliteEngine(tmp_path / "s.db")
    store = open_store(engine)
    before = engine.commits
    answers: list[int] = []
    line = threading.Barrier(16)

    def work() -> None:
        line.wait()
        answers.extend([store.run(count) for _ in range(50)])

    threads = [threading.Thread(target=work) for _ in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(answers) == list(range(min(answers), min(answers) + 800))
    assert engine.commits - before < 800
    store.close()


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> Store:
    """A store whose last commit answered three and took long: they are waited for."""
    monkeypatch.setattr(gather, "GATHER_S_MAX", PATIENCE_S)
    store = start()
    gather_of(store).expected, gather_of(store).commit_s = 3, 100.0 * PATIENCE_S
    return store


class Together:
    """An operation that would rather run with others, and answers with the thread that ran it."""

    joins = "together"

    def __call__(self, tx: WriteTransaction) -> tuple[int, int]:
        return count(tx), threading.get_ident()

    def run_all(self, tx: WriteTransaction, operations: list[Together]) -> list[tuple[int, int]]:
        return [operation(tx) for operation in operations]


def first_waits(store: Store) -> Caller:
    """A caller who waits for others."""
    caller = Caller(store, Together())
    until(lambda: gather_of(store).first is not None)
    return caller


def test_the_first_waits_for_those_who_were_answered_with_it_and_the_last_leads(
    patient: Store,
) -> None:
    before = commits(patient)
    first = first_waits(patient)
    second = Caller(patient)
    until(lambda: len(gather_of(patient).waiting) == 2)
    assert commits(patient) == before
    third = patient.run(Together())
    assert commits(patient) == before + 1
    assert second.finish().error is None
    assert first.finish().result[1] == third[1] == threading.get_ident()


def test_those_who_do_not_come_again_are_not_waited_for(patient: Store) -> None:
    gather_of(patient).commit_s = 0.0
    caller = Caller(patient, Together())
    assert caller.finish().result[1] == caller.ident
    assert gather_of(patient).expected == 1


def test_who_is_no_faster_with_others_leads_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    store = start()
    gather_of(store).expected = 3
    monkeypatch.setattr(Ticket, "wait", lambda *_: pytest.fail("it waits"))
    assert isinstance(store.run(count), int)


def test_who_sleeps_through_a_commit_is_led_for_by_its_leader_that_comes_again(
    patient: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gather, "NAP_S_MAX", PATIENCE_S)
    state = gather_of(patient)
    state.expected, state.commit_s = 1, PATIENCE_S
    napping: list[Caller] = []

    def hold(tx: WriteTransaction) -> int:
        napping.append(Caller(patient, Together()))
        until(lambda: bool(state.waiting) and state.waiting[0].naps)
        return count(tx)

    patient.run(hold)
    assert state.phase == "gathering", "the commit is over, and the other caller sleeps on"
    mine = patient.run(Together())
    (other,) = napping
    assert other.finish().result[1] == mine[1] == threading.get_ident()


def test_who_sleeps_through_a_commit_leads_if_its_leader_does_not_come_again(
    patient: Store,
) -> None:
    state = gather_of(patient)
    state.expected, state.commit_s = 1, 0.001
    napping: list[Caller] = []

    def hold(tx: WriteTransaction) -> int:
        napping.append(Caller(patient, Together()))
        until(lambda: bool(state.waiting))
        return count(tx)

    patient.run(hold)
    (other,) = napping
    assert other.finish().result[1] == other.ident


def test_coroutines_complete_the_number_too(patient: Store) -> None:
    first = first_waits(patient)
    landed = threading.Semaphore(0)
    patient.submit([Ticket(count, lambda _: landed.release()) for _ in range(2)])
    assert all(landed.acquire(timeout=PATIENCE_S) for _ in range(2))
    assert first.finish().result[1] == first.ident


def test_the_first_waits_for_long_only_while_others_sleep(patient: Store) -> None:
    gather_of(patient).commit_s = 0.0
    asleep = Ticket(count, done=True)
    patient._transactor._answered = asleep
    first = first_waits(patient)
    assert not patient._transactor._await(asleep), "it is done, so it does not commit"
    assert first.finish().result[1] == first.ident


def test_who_waits_for_others_is_told_when_the_store_is_closed(patient: Store) -> None:
    first = first_waits(patient)
    patient.close()
    assert isinstance(first.finish().error, Closed)


def test_a_group_has_a_largest_size() -> None:
    store = start(group_operations_max=2)
    before = commits(store)
    with held(store) as hold:
        waiting = [Caller(store) for _ in range(5)]
        hold.await_waiting(5)
    assert all(caller.finish().error is None for caller in waiting)
    assert commits(store) == before + 1 + 3


def test_answers_are_given_after_the_commit() -> None:
    store = start()
    before = commits(store)
    seen: list[int] = []
    answered = threading.Event()

    def on_done(_: Ticket[Any]) -> None:
        seen.append(commits(store))
        answered.set()

    store.submit([Ticket(count, on_done)])
    assert answered.wait(PATIENCE_S)
    assert seen == [before + 1]


def test_an_operation_that_raises_answers_its_own_caller_only() -> None:
    store = start()

    def fail(_: WriteTransaction) -> None:
        raise ZeroDivisionError

    with held(store) as hold:
        waiting = [Caller(store), Caller(store, fail), Caller(store)]
        hold.await_waiting(3)
    errors = [type(caller.finish().error) for caller in waiting]
    assert errors == [type(None), ZeroDivisionError, type(None)]


def test_a_clock_that_was_moved_during_a_commit_holds_nobody_up() -> None:
    clock = SimulatedClock()
    store = open_store(MemoryEngine(), clock=clock)
    Probe(store).pause_keeper()
    with held(store) as hold:
        waiting = [Caller(store), Caller(store, lambda _: clock.advance(3600)), Caller(store)]
        hold.await_waiting(3)
    for caller in waiting:
        caller.finish()
    assert Caller(store).finish().error is None


# Bounds and ends.


class SlowGate:
    """The transactor's gate; who passes it on a thread of a name goes on when allowed to."""

    def __init__(self, store: Store) -> None:
        self._gate, self._go_on = store._transactor._gate, threading.Event()
        store._transactor._gate = self

    def __enter__(self) -> None:
        self._gate.acquire()

    def __exit__(self, *_: object) -> None:
        self._gate.release()
        if threading.current_thread().name == "slow":
            assert self._go_on.wait(PATIENCE_S)

    def open(self) -> None:
        self._go_on.set()


def test_who_is_answered_before_it_begins_to_wait_wakes_the_next() -> None:
    store = start()
    gate = SlowGate(store)
    with held(store) as hold:
        waiting = [Caller(store)]
        hold.await_waiting(1)
        slow = Caller(store, name="slow")
        hold.await_waiting(2)
        waiting += [Caller(store), Caller(store)]
        hold.await_waiting(4)
    gate.open()
    for caller in (slow, *waiting):
        assert caller.finish().error is None


def test_who_finds_itself_answered_wakes_one_who_is_answered_too() -> None:
    store = start()
    gate = SlowGate(store)
    landing, land = threading.Event(), threading.Event()

    def landed(_: Ticket[Any]) -> None:
        landing.set()
        assert land.wait(PATIENCE_S)

    hold = Hold(store)
    first = Caller(store)
    hold.await_waiting(1)
    slow = Caller(store, name="slow")
    hold.await_waiting(2)
    store.submit([Ticket(count, landed)])
    last = Caller(store)
    hold.await_waiting(4)
    hold._go_on.set()
    assert landing.wait(PATIENCE_S)
    gate.open()
    assert slow.finish().error is None
    land.set()
    for caller in (first, last, hold.caller):
        assert caller.finish().error is None


def test_a_ticket_may_be_woken_twice_at_once() -> None:
    class Released:
        """A lock that somebody else releases just after one has looked."""

        def locked(self) -> bool:
            return True

        def release(self) -> None:
            raise RuntimeError("release unlocked lock")

    Ticket(count, _wake=Released()).wake()


def test_too_many_who_wait_are_told_so_at_once() -> None:
    store = start(waiting_operations_max=3)
    with held(store) as hold:
        waiting = [Caller(store) for _ in range(3)]
        hold.await_waiting(3)
        with pytest.raises(Overloaded) as refused:
            store.run(count)
        assert refused.value.waiting == 3
        with pytest.raises(Overloaded):
            store.submit([Ticket(count, lambda _: None)])
    assert all(caller.finish().error is None for caller in waiting)
    store.run(count)


def test_closing_fails_those_who_wait_and_lets_the_running_commit_finish() -> None:
    store = start()
    called_back: list[BaseException | None] = []
    hold = Hold(store)
    waiting = [Caller(store) for _ in range(3)]
    hold.await_waiting(3)
    store.submit([Ticket(count, lambda ticket: called_back.append(ticket.error))])
    closer = threading.Thread(target=store.close, daemon=True)
    closer.start()
    assert [type(caller.finish().error) for caller in waiting] == [Closed] * 3
    hold.release()
    closer.join(PATIENCE_S)

    assert not closer.is_alive()
    assert hold.caller.error is None
    assert [type(error) for error in called_back] == [Closed]
    with pytest.raises(Closed):
        store.run(count)
    with pytest.raises(Closed):
        store.submit([Ticket(count, lambda _: None)])


def test_each_caller_gets_an_exception_of_its_own() -> None:
    store = start()
    hold = Hold(store)
    waiting = [Caller(store) for _ in range(2)]
    hold.await_waiting(2)
    store._transactor.refuse(Overloaded("refused", waiting=7))
    errors = [caller.finish().error for caller in waiting]
    hold.release()
    assert errors[0] is not errors[1]
    assert [error.waiting for error in errors if isinstance(error, Overloaded)] == [7, 7]


# Interruptions. Only the main thread can be interrupted by a signal; tests run on it.


def interrupted_in(function: str) -> AbstractContextManager[None]:
    """Press Ctrl-C as soon as the main thread stands in a function of that name."""
    files = (transactor.__file__, ticket.__file__, interrupts.__file__)

    def stands_there() -> bool:
        return any(
            code.co_name == function and code.co_filename in files for code in code_on_main()
        )

    return interrupted(lambda over: until(lambda: over.is_set() or stands_there()))


def test_an_interrupted_waiter_withdraws_and_strands_nobody() -> None:
    store = start()
    ran: list[str] = []
    hold = Hold(store)
    with interrupted_in("wait"):
        store.run(lambda _: ran.append("withdrawn"))
    waiting = [Caller(store) for _ in range(3)]
    hold.await_waiting(3)
    hold.release()
    assert all(caller.finish().error is None for caller in waiting)
    assert ran == []


def test_a_caller_interrupted_in_the_commit_of_another_passes_the_wake_up_on() -> None:
    """The commit stores its operation, and wakes its callers one after the other."""
    store = start()
    hold = Hold(store)
    callers = [Caller(store)]
    hold.await_waiting(1)
    running, go_on = threading.Event(), threading.Event()

    def block(tx: WriteTransaction) -> None:
        running.set()
        assert go_on.wait(PATIENCE_S)

    def moment(over: threading.Event) -> None:
        hold.await_waiting(2)  # the main thread
        callers.extend([Caller(store, block)])
        hold.await_waiting(3)
        callers.append(Caller(store))
        hold.await_waiting(4)
        hold.release()
        assert running.wait(PATIENCE_S)

    ran: list[str] = []
    with interrupted(moment):
        store.run(lambda _: ran.append("x"))
    go_on.set()
    assert all(caller.finish().error is None for caller in callers)
    assert ran == ["x"]
    assert Caller(store).finish().error is None


def test_a_signal_whose_handler_raises_nothing_costs_no_answer() -> None:
    store = start()
    hold = Hold(store)
    main, handled = threading.get_ident(), threading.Event()
    running, go_on = threading.Event(), threading.Event()

    def block(tx: WriteTransaction) -> None:
        running.set()
        assert go_on.wait(PATIENCE_S)

    def press() -> None:
        hold.await_waiting(2)
        signal.pthread_kill(main, signal.SIGUSR2)  # while it waits in line
        assert handled.wait(PATIENCE_S)
        hold.await_waiting(2)
        hold.release()
        assert running.wait(PATIENCE_S)
        handled.clear()
        signal.pthread_kill(main, signal.SIGUSR2)  # while another caller commits for it
        assert handled.wait(PATIENCE_S)
        go_on.set()

    before = signal.signal(signal.SIGUSR2, lambda *_: handled.set())
    blocking = Caller(store, block)
    hold.await_waiting(1)
    helper = threading.Thread(target=press)
    helper.start()
    ran: list[str] = []
    store.run(lambda _: ran.append("x"))
    helper.join()
    assert blocking.finish().error is None
    assert ran == ["x"]
    signal.signal(signal.SIGUSR2, before)


def test_an_interrupted_first_strands_nobody(patient: Store) -> None:
    with interrupted_in("wait"):
        patient.run(Together())
    assert Caller(patient).finish().error is None


@pytest.mark.parametrize(("crowd", "place"), [(1, "_commit_alone"), (2, "_commit_for_all")])
def test_an_interrupted_leader_that_waits_for_its_turn_strands_nobody(
    crowd: int, place: str
) -> None:
    store = start()
    gather_of(store).expected = crowd
    with store._transactor.turn, interrupted_in(place):
        store.run(count)
    assert Caller(store).finish().error is None


def test_who_waits_for_its_turn_when_the_store_is_poisoned_is_told_so() -> None:
    store = start()
    before = commits(store)
    with Probe(store).hold_commits():
        caller = Caller(store)
        until(lambda: gather_of(store).phase == "committing")
        store._poison(RuntimeError("a fold failed"))
    assert isinstance(caller.finish().error, Poisoned)
    assert commits(store) == before


def test_a_leader_interrupted_in_its_commit_leaves_nobody_waiting() -> None:
    store = start()

    def interrupt(_: WriteTransaction) -> None:
        raise KeyboardInterrupt

    with held(store) as hold:
        waiting = [Caller(store), Caller(store, interrupt), Caller(store)]
        hold.await_waiting(3)
    for caller in waiting:
        caller.finish()
        assert caller.error is None or isinstance(caller.error, MillstreamError | KeyboardInterrupt)
    Caller(store).finish()


def test_a_leader_that_a_signal_keeps_from_its_commit_leaves_it_to_another(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    store = start()
    before = commits(store)
    commit_group = store.committer.commit_group
    leaders: list[str] = []

    def gives_up(group: list[Ticket[Any]], *, waits: bool) -> bool:
        leaders.append(threading.current_thread().name)
        if len(leaders) == 1:
            return False
        return commit_group(group, waits=waits)

    with held(store) as hold:
        waiting = [Caller(store), Caller(store), Caller(store)]
        hold.await_waiting(3)
        monkeypatch.setattr(store.committer, "commit_group", gives_up)
    results = [caller.finish().result for caller in waiting]
    assert sorted(results) == list(range(min(results), min(results) + 3))
    assert leaders[1] != leaders[0]
    assert commits(store) >= before + 2
    assert Caller(store).finish().error is None


class InterruptingClock(SimulatedClock):
    """Interrupts the thread of that name when it looks at the time."""

    def seconds(self) -> float:
        if threading.current_thread().name == "interrupted":
            raise KeyboardInterrupt
        return super().seconds()


def test_a_leader_interrupted_before_its_commit_answers_nobody_as_if_it_had_committed() -> None:
    store = open_store(MemoryEngine(), clock=InterruptingClock())
    Probe(store).pause_keeper()
    before = commits(store)
    with held(store) as hold:
        committer = Caller(store, name="interrupted")
        hold.await_waiting(1)
        waiting = [Caller(store), Caller(store)]
        hold.await_waiting(3)
    assert isinstance(committer.finish().error, KeyboardInterrupt)
    for caller in waiting:
        caller.finish()
        assert caller.error is None
        assert caller.result is not None
    assert commits(store) == before + 2


def test_a_store_may_close_while_its_commit_thread_begins(monkeypatch: pytest.MonkeyPatch) -> None:
    store = start()
    begin = threading.Thread.start
    closers: list[threading.Thread] = []
    errors: list[BaseException] = []

    def close() -> None:
        try:
            store.close()
        except BaseException as error:
            errors.append(error)

    def begin_late(thread: threading.Thread) -> None:
        if thread.name == "millstream-commit":
            closers.append(threading.Thread(target=close))
            begin(closers[0])
            closers[0].join(PATIENCE_S)
        begin(thread)

    monkeypatch.setattr(threading.Thread, "start", begin_late)
    ended = threading.Event()
    ticket = Ticket(count, lambda _: ended.set())
    store._transactor.submit([ticket])
    assert ended.wait(PATIENCE_S)
    assert isinstance(ticket.error, Closed)
    assert not errors
    assert not closers[0].is_alive()
