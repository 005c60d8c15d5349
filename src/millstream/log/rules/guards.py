"""Guards: checks of other parts, which run before an operation on a log with a reserved name.

The rules of logs know neither queues nor rooms. A part that keeps its data in logs with names of its
own (`queue:jobs`, `room:lobby`) declares a guard for these names. The table of commands in
`embedded/rules.py` puts the guards before the one rule of the log, so every surface runs them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, NamedTuple, TypeVar

from millstream.store.commit.transaction import WriteTransaction

T = TypeVar("T")


class LogGuard(NamedTuple):
    """A check for the logs whose names begin with one of the prefixes."""

    prefixes: tuple[str, ...]
    check: Callable[[WriteTransaction, Any], None]
    """Called with the command before its rule runs; raises to refuse, and may change other entities."""


class GuardedRule(Generic[T]):
    """The rule of a command that names a log, with the guards that run before it."""

    __slots__ = ("_guards", "_rule", "prefixes")

    def __init__(self, rule: Callable[[WriteTransaction, Any], T], *guards: LogGuard) -> None:
        self._rule = rule
        self._guards = guards
        self.prefixes = tuple(prefix for guard in guards for prefix in guard.prefixes)
        """The names of logs that no guard concerns begin with none of these."""

    def __call__(self, tx: WriteTransaction, command: Any) -> T:
        """Run the guards of the log, then the rule; an error of a guard undoes the operation."""
        if command.log.startswith(self.prefixes):
            for guard in self._guards:
                if command.log.startswith(guard.prefixes):
                    guard.check(tx, command)
        return self._rule(tx, command)
