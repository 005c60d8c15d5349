"""Forks: no handle of an engine crosses one.

Locks on files belong to a process, and SQLite remembers inside the process which it holds; a child
that used, or merely kept, its parent's handles could harm the file. So before a fork every open
store finishes its running commit and lets go of its handles; afterwards parent and child each
open their own at the next use. The child starts from what is on disk.

An engine without the ability `forks` goes on in the parent. In the child, its store refuses all use.
"""

from __future__ import annotations

import os
import threading
from typing import Protocol, cast
from weakref import WeakSet

from millstream.engine.protocol import Engine, Suspendable
from millstream.errors import CannotOpen


class Forkable(Protocol):
    """What takes part: a store."""

    def before_fork(self) -> None:
        """Come to rest, and stay there."""

    def after_fork(self, *, in_child: bool) -> None:
        """Go on."""


_stores: WeakSet[Forkable] = WeakSet()
_resting: list[Forkable] = []

opening = threading.RLock()
"""Held from an engine's first handle until its store is registered, and during every fork."""


def register(store: Forkable) -> None:
    """Have a store take part in forks for as long as it lives."""
    _stores.add(store)


def suspend(engine: Engine) -> None:
    """Before a fork: have an engine let go of its handles, if it can."""
    if "forks" in engine.abilities:
        cast(Suspendable, engine).suspend()


def resume(engine: Engine, *, in_child: bool) -> None:
    """After a fork: the engine opens its handles again when they are needed."""
    if "forks" in engine.abilities:
        cast(Suspendable, engine).resume(in_child=in_child)


def refusal(engine: Engine) -> CannotOpen | None:
    """What callers in the child are told by a store whose engine does not cross a fork."""
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
