"""The keeper works when it is woken, survives failures, and ends when it is told to."""

from __future__ import annotations

import threading

import pytest

from millstream.errors import WriteFailed
from millstream.store.keeper import QUIET_LOOKS, Keeper

PATIENCE_S = 60


def ignore(_: Exception) -> None:
    """A failure that a test does not care about."""


def test_it_starts_no_thread_before_there_is_something_to_do() -> None:
    before = set(threading.enumerate())
    keeper = Keeper(lambda: False, on_failure=ignore)
    assert not set(threading.enumerate()) - before
    keeper.stop()


def test_it_works_on_a_thread_of_its_own_until_there_is_no_more() -> None:
    left = iter([True, True, False])
    threads: list[int] = []
    done = threading.Event()

    def work() -> bool:
        threads.append(threading.get_ident())
        more = next(left, False)
        if not more:
            done.set()
        return more

    keeper = Keeper(work, on_failure=ignore)
    keeper.wake()
    assert done.wait(PATIENCE_S)
    keeper.stop()
    assert len(threads) >= 3
    assert threading.get_ident() not in threads


def test_a_failure_is_reported_and_the_next_wake_works_again() -> None:
    failures: list[Exception] = []
    failed, worked = threading.Event(), threading.Event()

    def work() -> bool:
        if not failures:
            raise WriteFailed("the disk is full")
        worked.set()
        return False

    def note(error: Exception) -> None:
        failures.append(error)
        failed.set()

    keeper = Keeper(work, on_failure=note)
    keeper.wake()
    assert failed.wait(PATIENCE_S)
    keeper.wake()
    assert worked.wait(PATIENCE_S)
    keeper.stop()
    assert [str(failure) for failure in failures] == ["the disk is full"]


def test_stopping_waits_for_the_slice_at_hand_and_takes_no_other() -> None:
    began, go_on = threading.Event(), threading.Event()
    slices: list[int] = []

    def work() -> bool:
        slices.append(1)
        began.set()
        assert go_on.wait(PATIENCE_S)
        return True

    keeper = Keeper(work, on_failure=ignore)
    keeper.wake()
    assert began.wait(PATIENCE_S)
    stopper = threading.Thread(target=keeper.stop)
    stopper.start()
    while not keeper._stopping:
        pass
    go_on.set()
    stopper.join(PATIENCE_S)
    assert not stopper.is_alive()
    assert slices == [1]
    assert keeper._thread is not None
    assert not keeper._thread.is_alive()


def test_a_pause_waits_for_the_slice_at_hand_and_what_is_due_then_waits_for_its_end() -> None:
    began, go_on, worked = threading.Event(), threading.Event(), threading.Event()
    slices: list[str] = []

    def work() -> bool:
        began.set()
        assert go_on.wait(PATIENCE_S)
        slices.append("slice")
        if len(slices) > 1:
            worked.set()
        return len(slices) == 1

    def pause() -> None:
        with keeper.pause():
            slices.append("paused")
            keeper.wake()
            held.append(not worked.wait(0.05))

    held: list[bool] = []
    keeper = Keeper(work, on_failure=ignore)
    keeper.wake()
    assert began.wait(PATIENCE_S)
    pausing = threading.Thread(target=pause)
    pausing.start()
    go_on.set()
    pausing.join(PATIENCE_S)
    assert held == [True] or slices.index("paused") > 1, "it came between two slices, or after both"
    keeper.wake()
    assert worked.wait(PATIENCE_S)
    keeper.stop()


def test_a_paused_keeper_starts_no_thread_and_looks_afterwards_at_what_woke_it() -> None:
    worked = threading.Event()

    def work() -> bool:
        worked.set()
        return False

    before = set(threading.enumerate())
    keeper = Keeper(work, on_failure=ignore)
    with keeper.pause():
        pass
    assert not set(threading.enumerate()) - before, "nothing woke it"
    with keeper.pause():
        keeper.wake()
        assert not set(threading.enumerate()) - before
    assert worked.wait(PATIENCE_S)
    keeper.stop()


def test_a_mistake_of_ours_is_told_once_and_does_not_end_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    told: list[threading.ExceptHookArgs] = []
    monkeypatch.setattr(threading, "excepthook", told.append)
    failures: list[Exception] = []
    failed, worked = threading.Semaphore(0), threading.Event()

    def work() -> bool:
        if len(failures) < 2:
            raise KeyError("nobody thought of it")
        worked.set()
        return False

    def note(error: Exception) -> None:
        failures.append(error)
        failed.release()

    keeper = Keeper(work, on_failure=note)
    for _ in range(2):
        keeper.wake()
        assert failed.acquire(timeout=PATIENCE_S)
    keeper.wake()
    assert worked.wait(PATIENCE_S)
    keeper.stop()
    assert [type(error) for error in failures] == [KeyError, KeyError]
    assert [args.exc_value for args in told] == failures[:1]


def test_a_stopped_keeper_is_not_woken_any_more() -> None:
    slices: list[int] = []
    keeper = Keeper(lambda: slices.append(1) is not None, on_failure=ignore)
    keeper.stop()
    keeper.wake()
    keeper.stop()
    assert slices == []


class Writes:
    """Writes to a file, as a test reports them."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._has_written = self._is_woken = False
        self.sleeps = threading.Semaphore(0)
        """Released when the keeper sleeps until the next write."""

    def write(self) -> None:
        with self._changed:
            self._has_written = True
            self._changed.notify()

    def wake(self) -> None:
        with self._changed:
            self._is_woken = True
            self._changed.notify()

    def wait(self, timeout_s: float) -> bool:
        with self._changed:
            if timeout_s:
                self.sleeps.release()
                self._changed.wait_for(lambda: self._has_written or self._is_woken, PATIENCE_S)
            has_written = self._has_written
            self._has_written = self._is_woken = False
            return has_written


def test_without_writes_it_sleeps_and_a_write_lets_it_look_again() -> None:
    writes, worked = Writes(), threading.Event()
    looks, messages = [0], [0]

    def look() -> bool:
        looks[0] += 1
        return messages[0] > 0

    def work() -> bool:
        messages[0] = 0
        worked.set()
        return False

    keeper = Keeper(work, on_failure=ignore, look=look, listen=lambda: writes)
    keeper.start_looking()
    assert writes.sleeps.acquire(timeout=PATIENCE_S)
    before = looks[0]
    messages[0] = 1
    assert not worked.is_set(), "nothing was written"
    writes.write()
    assert worked.wait(PATIENCE_S)
    assert looks[0] > before
    keeper.stop()


def test_a_sleeping_keeper_can_be_woken_and_stopped() -> None:
    writes, worked = Writes(), threading.Event()
    keeper = Keeper(
        lambda: worked.set() is not None,
        on_failure=ignore,
        look=lambda: False,
        listen=lambda: writes,
    )
    keeper.start_looking()
    assert writes.sleeps.acquire(timeout=PATIENCE_S)
    keeper.wake()
    assert worked.wait(PATIENCE_S)
    assert writes.sleeps.acquire(timeout=PATIENCE_S)
    keeper.stop()


def test_it_looks_all_the_time_where_no_writes_are_reported() -> None:
    enough = threading.Event()
    looks = [0]

    def look() -> bool:
        looks[0] += 1
        if looks[0] > 2 * QUIET_LOOKS:
            enough.set()
        return False

    def listen() -> Writes:
        raise OSError("not offered here")

    keeper = Keeper(lambda: False, on_failure=ignore, look=look, listen=listen)
    keeper.start_looking()
    assert enough.wait(PATIENCE_S)
    keeper.stop()
