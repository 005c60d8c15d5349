"""Waits without a thread or an event loop of their own: when to look, and what to sleep for.

A wait is written once, as a generator. It looks at the store, yields a `Sleep`, and looks again
when that has ended; in the end it returns its answer. `wait` takes its steps on the caller's
thread. The session of coroutines takes them in its pool, and awaits the sleeps.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator, Iterator
from contextlib import ExitStack, contextmanager
from typing import Generic, TypeVar

from msgspec import Struct

from millstream.store.watch import Wake, Watch

T = TypeVar("T")


class Sleep(Struct, frozen=True):
    """Until one of the entities may have changed, or the time is up."""

    keys: tuple[bytes, ...]
    """Of entities, or of all of a type, as `Watch` has them."""
    is_over: Callable[[], bool]
    """Looks once more when the watch has begun: a change before that woke no one."""
    seconds: float | None
    """None is unlimited."""


class Done(Struct, Generic[T], frozen=True):
    """The wait is over."""

    answer: T


Waiting = Generator[Sleep, None, T]
"""Yields sleeps, and returns a `T` in the end."""


def step_of(waiting: Waiting[T]) -> Sleep | Done[T]:
    """The next step of a wait; a value, since an exception of generators crosses no future."""
    try:
        return next(waiting)
    except StopIteration as end:
        return Done(end.value)


@contextmanager
def watching(watch: Watch, sleep: Sleep, wake: Wake) -> Iterator[None]:
    """Call `wake`, from any thread, whenever something changes that would end the sleep."""
    with ExitStack() as watches:
        for key in sleep.keys:
            watch.add(key, wake)
            watches.callback(watch.remove, key, wake)
        yield


def wait(watch: Watch, waiting: Waiting[T]) -> T:
    """The answer of a wait, whose thread sleeps meanwhile."""
    while isinstance(step := step_of(waiting), Sleep):
        changed = threading.Event()
        with watching(watch, step, changed.set):
            if not step.is_over():
                changed.wait(step.seconds)
    return step.answer
