"""Objects with a thread or a connection that stays in the parent when the process forks.

Stores have more to do, also before a fork and in the parent: `engine/process_fork.py`.
"""

from __future__ import annotations

import os
from typing import Protocol
from weakref import WeakSet


class ForkedObject(Protocol):
    """An object that a fork copies into the child process."""

    def after_fork(self) -> None:
        """Give up the parent's thread or connection; called in the child."""


_objects: WeakSet[ForkedObject] = WeakSet()


def register(forked: ForkedObject) -> None:
    """Call `after_fork` of an object in each child process, until the object is garbage."""
    _objects.add(forked)


def _after_fork() -> None:
    for forked in list(_objects):
        forked.after_fork()


if hasattr(os, "register_at_fork"):  # not on Windows
    os.register_at_fork(after_in_child=_after_fork)
