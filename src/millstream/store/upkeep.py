"""The upkeep of the parts of a store: retention, routing, expired leases, and when they run.

Upkeep runs every second on the keeper's thread, on request, and for a moment before a store closes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextlib import suppress

from millstream.clock import Clock
from millstream.errors import CorruptionError, MillstreamError
from millstream.store.keeper import UPKEEP_S

CLOSING_UPKEEP_S = 0.25
"""The time limit of upkeep at closing, so that commands end quickly."""


class UpkeepSchedule:
    """Runs the tasks of the parts; each task does a bounded piece, and returns True if more is due."""

    def __init__(
        self, tasks: Sequence[Callable[[], bool]], clock: Clock, *, written: Callable[[], int]
    ) -> None:
        """`written` returns a number that grows with every write of this handle."""
        self._tasks = tasks
        self._clock = clock
        self._written = written
        self._due_s = 0.0
        self._written_before = 0
        """The number of writes when upkeep was last complete."""
        self._ends_s = math.inf

    def begin(self) -> None:
        """Begin anew: the first upkeep is due after an interval, and nothing was written before."""
        self._due_s = self._clock.seconds() + UPKEEP_S
        self._written_before = self._written()

    @property
    def is_ending(self) -> bool:
        """Whether tasks should stop, and leave their work to the next opened handle."""
        return self._clock.seconds() >= self._ends_s

    @property
    def is_due(self) -> bool:
        """Whether the interval is over, or upkeep was requested."""
        return self._clock.seconds() >= self._due_s

    def request(self) -> None:
        """Make upkeep due now."""
        self._due_s = 0.0

    def run(self) -> bool:
        """Run every task, even if another task finds damage; return True if more work is due."""
        has_more, failure = False, None
        for task in self._tasks:
            try:
                has_more = task() or has_more
            except CorruptionError as error:
                failure = failure or error
        if failure is not None:
            raise failure
        return has_more

    def complete(self) -> None:
        """Note that no more work is due for an interval."""
        self._due_s = self._clock.seconds() + UPKEEP_S
        if not self.is_ending:
            self._written_before = self._written()

    def end(self) -> None:
        """Let running tasks stop at once."""
        self._ends_s = -math.inf

    def run_last(self) -> None:
        """Run the tasks for a moment before closing, if there were writes since the last upkeep.

        Otherwise a store that is only opened by short commands would never delete old records.
        """
        if self._written() == self._written_before:
            return
        self._ends_s = self._clock.seconds() + CLOSING_UPKEEP_S
        with suppress(MillstreamError):  # the next opened handle does the remaining work
            while not self.is_ending and self.run():
                pass
