"""Signals that come inside a block wait for its end; other threads, handlers in C and waits."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import apsw
import pytest

import millstream
from millstream import Limits
from millstream.engine.sqlite import file
from millstream.interrupts import acquire, deferred
from tests.interrupting import code_on_main, interrupted


class TimeIsUp(Exception):
    """Raised by the handler of a signal."""


Install = Callable[[int, Any], None]


@pytest.fixture
def install() -> Iterator[Install]:
    """Set handlers for the length of a test."""
    before: list[tuple[int, Any]] = []

    def install(number: int, handler: Any) -> None:
        before.append((number, signal.signal(number, handler)))

    yield install
    for number, handler in reversed(before):
        signal.signal(number, handler)


def raise_time_is_up(*_: object) -> None:
    raise TimeIsUp


def test_a_handler_runs_after_the_block_and_may_raise(install: Install) -> None:
    install(signal.SIGUSR1, raise_time_is_up)
    steps = []

    def work() -> None:
        with deferred:
            signal.raise_signal(signal.SIGUSR1)
            steps.append("finished")
        steps.append("not reached")

    with pytest.raises(TimeIsUp):
        work()
    assert steps == ["finished"]
    assert signal.getsignal(signal.SIGUSR1) is raise_time_is_up
    with pytest.raises(TimeIsUp):
        signal.raise_signal(signal.SIGUSR1)


def test_nested_blocks_end_with_the_outermost(install: Install) -> None:
    calls: list[int] = []
    install(signal.SIGUSR1, lambda number, _: calls.append(number))
    with deferred:
        with deferred:
            signal.raise_signal(signal.SIGUSR1)
        assert deferred.have_come
        assert calls == []
    assert calls == [signal.SIGUSR1]
    assert not deferred.have_come


def test_handlers_run_in_order_once_each_and_the_error_of_the_block_is_kept(
    install: Install,
) -> None:
    calls: list[int] = []

    def note(number: int, _: object) -> None:
        calls.append(number)
        raise TimeIsUp

    install(signal.SIGUSR2, note)
    install(signal.SIGUSR1, note)

    def work() -> None:
        with deferred:
            for number in (signal.SIGUSR2, signal.SIGUSR1, signal.SIGUSR2):
                signal.raise_signal(number)
            raise KeyError("of the block")

    with pytest.raises(TimeIsUp) as raised:
        work()
    assert calls == [signal.SIGUSR2, signal.SIGUSR1]
    first = raised.value.__context__
    assert isinstance(first, TimeIsUp)
    assert isinstance(first.__context__, KeyError)


def test_a_handler_that_was_set_inside_the_block_stays(install: Install) -> None:
    install(signal.SIGUSR1, raise_time_is_up)
    with deferred:
        signal.signal(signal.SIGUSR1, signal.default_int_handler)
    assert signal.getsignal(signal.SIGUSR1) is signal.default_int_handler


def test_a_handler_that_was_set_between_two_blocks_waits_too(install: Install) -> None:
    with deferred:
        pass
    install(signal.SIGUSR1, raise_time_is_up)
    have_come = []

    def work() -> None:
        with deferred:
            signal.raise_signal(signal.SIGUSR1)
            have_come.append(deferred.have_come)

    with pytest.raises(TimeIsUp):
        work()
    assert have_come == [True]


@pytest.mark.parametrize("action", [signal.SIG_IGN, signal.SIG_DFL])
def test_signals_without_a_handler_are_left_alone(install: Install, action: Any) -> None:
    install(signal.SIGURG, action)  # is ignored by default
    with deferred:
        assert signal.getsignal(signal.SIGURG) is action
        signal.raise_signal(signal.SIGURG)
        assert not deferred.have_come


def test_a_block_of_another_thread_does_nothing(install: Install) -> None:
    install(signal.SIGUSR1, raise_time_is_up)
    inside: list[object] = []

    def enter() -> None:
        with deferred:
            inside.append(signal.getsignal(signal.SIGUSR1))

    on_thread(enter)
    assert inside == [raise_time_is_up]


def test_only_the_main_thread_sees_that_signals_have_come(install: Install) -> None:
    install(signal.SIGUSR1, lambda *_: None)
    seen: list[bool] = []
    with deferred:
        signal.raise_signal(signal.SIGUSR1)
        on_thread(lambda: seen.append(deferred.have_come))
        assert deferred.have_come
    assert seen == [False]


def on_thread(work: Callable[[], object]) -> None:
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()


def test_a_child_that_another_thread_forked_is_not_in_the_block_of_its_parent(
    install: Install,
) -> None:
    install(signal.SIGUSR1, raise_time_is_up)
    codes: list[int] = []

    def fork() -> None:
        child = os.fork()
        if not child:
            same = signal.getsignal(signal.SIGUSR1) is raise_time_is_up
            os._exit(0 if same and not deferred.have_come else 1)
        codes.append(os.waitpid(child, 0)[1])

    def work() -> None:
        with deferred:
            signal.raise_signal(signal.SIGUSR1)
            on_thread(fork)

    with pytest.raises(TimeIsUp):
        work()
    assert codes == [0]


# Waits.


def test_the_wait_for_a_lock_ends_when_a_signal_comes(install: Install) -> None:
    install(signal.SIGUSR1, lambda *_: None)
    lock = threading.Lock()
    assert acquire(lock)
    assert not acquire(lock, timeout_s=0.001)
    main = threading.get_ident()
    with deferred:
        pressing = threading.Thread(target=lambda: signal.pthread_kill(main, signal.SIGUSR1))
        pressing.start()
        assert not acquire(lock)
        pressing.join()
    lock.release()
    assert acquire(lock, timeout_s=0.001)


@pytest.fixture
def place(tmp_path: Path) -> Path:
    return tmp_path / "a.db"


def waits_for_the_file(over: threading.Event) -> None:
    """Return when the main thread waits for the lock of another writer of the file."""
    while not over.is_set():
        if any(code.co_filename == file.__file__ for code in code_on_main()):
            return
        os.sched_yield()


@pytest.mark.parametrize("work", ["append", "fold"])
def test_an_interrupt_ends_the_wait_for_another_process(place: Path, work: str) -> None:
    with millstream.open(place, limits=Limits(fold_slice_deltas=2)) as ms:
        log = ms.log("x")
        for number in range(5):
            log.append(str(number))
        other = apsw.Connection(str(place))
        other.set_busy_timeout(60_000)
        other.execute("BEGIN IMMEDIATE")
        with interrupted(waits_for_the_file):
            ms.fold() if work == "fold" else log.append(b"never")
        other.close()
        assert log.append(b"5") == 5
        assert ms.fold()
        assert [record.text for record in log.read()] == list("012345")


def test_a_handler_that_raises_nothing_lets_the_caller_wait_on(
    place: Path, install: Install
) -> None:
    main, handled = threading.get_ident(), threading.Event()
    install(signal.SIGUSR1, lambda *_: handled.set())
    with millstream.open(place) as ms:
        log = ms.log("x")
        log.append(b"0")
        other = apsw.Connection(str(place))
        other.set_busy_timeout(60_000)
        other.execute("BEGIN IMMEDIATE")

        def press_and_let_go() -> None:
            waits_for_the_file(threading.Event())
            signal.pthread_kill(main, signal.SIGUSR1)
            handled.wait()
            other.close()

        helper = threading.Thread(target=press_and_let_go)
        helper.start()
        assert log.append(b"1") == 1
        helper.join()
        assert handled.is_set()
        assert len(log) == 2
