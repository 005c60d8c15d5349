"""Waits as generators, written once for threads and event loops.

A wait reads the store, yields a `Sleep`, reads again after the sleep, and finally returns an answer.
`wait` runs the steps on the caller's thread. The session for coroutines runs the steps in its pool and
awaits the sleeps.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator, Iterator
from contextlib import ExitStack, contextmanager
from typing import Generic, TypeVar

from msgspec import Struct

from millstream.store.wait_breaker import BreakableWait
from millstream.store.watch import Wake, Watch

T = TypeVar("T")


class Sleep(Struct, frozen=True):
    """A sleep until an entity may have changed, or the time is up."""

    keys: tuple[bytes, ...]
    """Keys of entities, or the first two bytes of the keys of a type, as in `Watch`."""
    is_over: Callable[[], bool]
    """Checks again after the watch has begun, because earlier changes woke no waiter."""
    seconds: float | None
    """The timeout; None means no timeout."""


class Done(Struct, Generic[T], frozen=True):
    """The end of a wait."""

    answer: T


Waiting = Generator[Sleep, None, T]
"""Yields sleeps, and returns a `T`."""


def step_of(waiting: Waiting[T]) -> Sleep | Done[T]:
    """Return the next step of a wait as a value, because a future cannot raise `StopIteration`."""
    try:
        return next(waiting)
    except StopIteration as end:
        return Done(end.value)


@contextmanager
def watching(watch: Watch, sleep: Sleep, wake: Wake) -> Iterator[None]:
    """Call `wake`, from any thread, at each change that could end the sleep."""
    with ExitStack() as watches:
        for key in sleep.keys:
            watch.add(key, wake)
            watches.callback(watch.remove, key, wake)
        yield


def wait(watch: Watch, waiting: Waiting[T]) -> T:
    """Run a wait on this thread, and return its answer."""
    while isinstance(step := step_of(waiting), Sleep):
        changed = threading.Event()
        with BreakableWait(changed.set), watching(watch, step, changed.set):
            if not step.is_over():
                changed.wait(step.seconds)
    return step.answer
