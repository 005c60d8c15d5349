"""The listeners of a store: functions that the store calls at each commit.

Other parts hand listeners to a store when it is opened, or add them later. Several listeners can hear
the same event. The committing thread calls the listeners, so a listener must be quick.
"""

from __future__ import annotations

from collections.abc import Callable
from threading import Lock
from typing import Any

from millstream.errors import MillstreamError
from millstream.store.commit.ticket import Ticket
from millstream.store.state.delta import Delta

GroupListener = Callable[[list[Ticket[Any]]], list[Ticket[Any]]]
"""Called with a group before it runs; returns more operations to run behind it, in the same commit.

Their tickets call back when the commit is over, whether it succeeded or failed."""

DeltaListener = Callable[[Delta[Any]], None]
"""Called under the mutex with the changes that this process is about to commit.

The commit may still fail."""

CommitListener = Callable[[int, float, float, float], None]
"""Called after a group is committed and before its callers are answered.

The arguments are the number of operations, the seconds of the commit, and of these the seconds of the
sync, and the seconds of the wait for the lock of other processes."""

PoisonListener = Callable[[MillstreamError], None]
"""Called once, on any thread, if something acknowledged is missing from the disk."""


class Listeners:
    """The functions to call, in the order in which they were added; `add` is for any thread."""

    __slots__ = ("_lock", "commit", "delta", "group", "poison")

    def __init__(self) -> None:
        self._lock = Lock()
        self.group: tuple[GroupListener, ...] = ()
        self.delta: tuple[DeltaListener, ...] = ()
        self.commit: tuple[CommitListener, ...] = ()
        self.poison: tuple[PoisonListener, ...] = ()

    def add(
        self,
        *,
        group: GroupListener | None = None,
        delta: DeltaListener | None = None,
        commit: CommitListener | None = None,
        poison: PoisonListener | None = None,
    ) -> None:
        """Add listeners; a function that was added before is not called twice.

        Each addition makes a new tuple, so a commit that is just calling the old one goes on undisturbed.
        """
        with self._lock:
            if group is not None and group not in self.group:
                self.group = (*self.group, group)
            if delta is not None and delta not in self.delta:
                self.delta = (*self.delta, delta)
            if commit is not None and commit not in self.commit:
                self.commit = (*self.commit, commit)
            if poison is not None and poison not in self.poison:
                self.poison = (*self.poison, poison)

    def forget_groups(self) -> None:
        """Drop the listeners of groups, in the child of a fork: their waiting threads are in the parent."""
        self._lock = Lock()  # a thread of the parent may have held the old one
        self.group = ()
