"""The cluster's time: a count of milliseconds that survives a change of the leader.

Store time follows a boot clock. Machines have separate boot clocks, and wall clocks that differ. So
the nodes share a clock: each entry carries the leader's count, and a follower continues from the
last entry by its own boot clock. A lease then neither ends early nor freezes when the leader
changes, whatever the wall clocks say. Only a node that has just started, and has read no new entry
yet, must ask its wall clock for the age of the last entry.
"""

from __future__ import annotations

from millstream.clock import Clock
from millstream.cluster.entry import Position, SharedEntry

BOOT_ID = "cluster"


class ClusterClock:
    """A clock whose boot clock is the cluster's; the store over a node's engine uses it."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self._offset_ms = -clock.boot_ms()

    def wall_ms(self) -> int:
        """Return this machine's wall clock."""
        return self.clock.wall_ms()

    def boot_ms(self) -> int:
        """Return the cluster's time."""
        return self.clock.boot_ms() + self._offset_ms

    def boot_id(self) -> str:
        """Return an id that is equal on all nodes, and after every restart."""
        return BOOT_ID

    def seconds(self) -> float:
        """Return this machine's monotonic count of seconds."""
        return self.clock.seconds()

    def follow(self, entry: SharedEntry | Position, *, live: bool) -> None:
        """Continue from an entry; without `live`, its age comes from the wall clock."""
        passed_ms = 0 if live else max(0, self.clock.wall_ms() - entry.wall_ms)
        self._offset_ms = entry.time_ms + passed_ms - self.clock.boot_ms()
