"""The cluster's time: one count of milliseconds that goes on when another node leads.

Store time follows a boot clock. Machines have boot clocks of their own, and wall clocks that differ.
So the nodes share one: each entry carries the leader's count, and a follower goes on from the last
entry by its own boot clock. A lease then neither ends early nor freezes when the leader changes,
whatever the wall clocks say. Only a node that has just started, and has heard of no new entry yet,
has to ask its wall clock how long ago the last entry was.
"""

from __future__ import annotations

from millstream.clock import Clock
from millstream.cluster.entry import Position, SharedEntry

BOOT_ID = "cluster"


class ClusterClock:
    """A clock whose boot clock is the cluster's; the store over a node's engine is opened with it."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self._offset_ms = -clock.boot_ms()

    def wall_ms(self) -> int:
        """This machine's wall clock."""
        return self.clock.wall_ms()

    def boot_ms(self) -> int:
        """The cluster's time."""
        return self.clock.boot_ms() + self._offset_ms

    def boot_id(self) -> str:
        """The same on all nodes, and after every restart."""
        return BOOT_ID

    def seconds(self) -> float:
        """This machine's monotonic count of seconds."""
        return self.clock.seconds()

    def follow(self, entry: SharedEntry | Position, *, live: bool) -> None:
        """Go on from an entry: one that came just now, or one that was stored a while ago."""
        passed_ms = 0 if live else max(0, self.clock.wall_ms() - entry.wall_ms)
        self._offset_ms = entry.time_ms + passed_ms - self.clock.boot_ms()
