"""Forks of the process: the handles of an engine stay in the parent.

Locks on files belong to a process, and SQLite remembers inside the process which locks it holds. A
child that used, or merely kept, the handles of its parent could harm the file. So before a fork every
open store finishes its running commit and closes its handles. Afterwards parent and child open handles
of their own at the next use, and the child reads its state from the disk.

An engine without the ability `forks` keeps working in the parent; in the child, the store refuses all
calls.
"""

from __future__ import annotations

import os
import threading
from typing import Protocol, cast
from weakref import WeakSet

from millstream.engine.protocol import Engine, Suspendable
from millstream.errors import CannotOpen


class Forkable(Protocol):
    """A store, as forks see it."""

    def before_fork(self) -> None:
        """Finish the running commit, and block new commits."""

    def after_fork(self, *, in_child: bool) -> None:
        """Allow commits again."""


_stores: WeakSet[Forkable] = WeakSet()
_resting: list[Forkable] = []

opening = threading.RLock()
"""Held from an engine's first handle until its store is registered, and during every fork."""


def register(store: Forkable) -> None:
    """Register a store for forks, until the store is garbage."""
    _stores.add(store)


def suspend(engine: Engine) -> None:
    """Close the handles of an engine before a fork, if the engine can."""
    if "forks" in engine.abilities:
        cast(Suspendable, engine).suspend()


def resume(engine: Engine, *, in_child: bool) -> None:
    """Let an engine open its handles again after a fork."""
    if "forks" in engine.abilities:
        cast(Suspendable, engine).resume(in_child=in_child)


def native_fork() -> CannotOpen:
    """Return the error for a child process of a fork that Python did not notice."""
    return CannotOpen(
        "this process was forked by native code, which Python was not told of; "
        "open the store in the child instead of before the fork"
    )


def refusal(engine: Engine) -> CannotOpen | None:
    """Return the error for callers in the child, if the engine cannot cross a fork."""
    if "forks" in engine.abilities:
        return None
    return CannotOpen(
        f"{engine.place} was opened before this process was forked, and its engine does not cross a "
        "fork; open a store in the child instead",
        path=engine.place,
    )


def _before() -> None:
    opening.acquire()
    for store in list(_stores):
        store.before_fork()
        _resting.append(store)


def _after(*, in_child: bool) -> None:
    while _resting:
        _resting.pop().after_fork(in_child=in_child)
    opening.release()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(
        before=_before,
        after_in_parent=lambda: _after(in_child=False),
        after_in_child=lambda: _after(in_child=True),
    )
