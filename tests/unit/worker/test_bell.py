"""The bell of a worker's threads: signals reach the main thread while it waits."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from millstream.threads.worker_runtime import Bell

PATIENCE_S = 30.0


@pytest.fixture
def another_thread() -> Iterator[int]:
    """A thread that signals can be sent to, and that waits meanwhile."""
    over = threading.Event()
    thread = threading.Thread(target=over.wait, args=(PATIENCE_S,))
    thread.start()
    assert thread.ident is not None
    yield thread.ident
    over.set()
    thread.join()


@pytest.fixture
def bell() -> Iterator[Bell]:
    """A bell that a signal rings."""
    bell = Bell()

    def ring(number: int, frame: Any) -> None:
        bell.ring()

    before = signal.signal(signal.SIGUSR1, ring)
    yield bell
    signal.signal(signal.SIGUSR1, before)


def test_a_signal_that_does_not_interrupt_the_wait_rings_the_bell(
    bell: Bell, another_thread: int
) -> None:
    # The handler runs on the main thread, which this signal does not wake from its sleep: as one
    # that comes just before the sleep.
    timer = threading.Timer(0.05, signal.pthread_kill, (another_thread, signal.SIGUSR1))
    timer.start()
    assert bell.wait(PATIENCE_S)
    timer.join()


def test_a_wait_of_several_turns_ends_in_time() -> None:
    assert not Bell().wait(0.6)


def test_a_bell_that_was_rung_before_is_heard_at_once() -> None:
    bell = Bell()
    bell.ring()
    assert bell.wait(0)
    assert not bell.wait(0)
