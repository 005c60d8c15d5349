"""A group during an operation: stored state, current state, and waiting members.

Stored members are read a few at a time in claim number order, and each only once. Members added by
the operation are sorted in between. The index decides when a member may be claimed.
"""

from __future__ import annotations

import heapq

from millstream.errors import CorruptionError
from millstream.format import keys
from millstream.format.ids import split_id
from millstream.queue.model.group import GroupStanding
from millstream.queue.model.state import QueueState
from millstream.store.commit.transaction import WriteTransaction

MEMBERS_PER_READ = 64


class OpenGroup:
    """A group from its first use in an operation until it is written back."""

    __slots__ = (
        "_last_key",
        "_queue",
        "_reads",
        "added",
        "affordable",
        "before",
        "behind",
        "name",
        "now",
        "unpaid",
        "unread",
    )

    def __init__(self, queue: QueueState, name: str, standing: GroupStanding) -> None:
        self.name = name
        self.before = self.now = standing
        self.behind: list[tuple[int, int, bytes]] = []
        """Members by claim number: prefetched, or added by this operation."""
        self.added: dict[int, bytes] = {}
        """Members that were added by this operation and have no row yet."""
        self.unread = standing.waiting
        self.affordable: int | None = None
        """How many claims the group's rate allows, counted from `now`; None: not known yet."""
        self.unpaid = 0
        """Claims of this operation that `now` does not include yet."""
        self._queue = queue
        self._last_key = b""
        self._reads = 1
        """The number of members to read next. Usually a single member is enough."""

    def next_member(self, tx: WriteTransaction) -> tuple[int, bytes]:
        """Remove and return the first waiting member, stored or new."""
        behind = self.behind
        while self.unread and (not behind or behind[0][0] > self._all_read_below()):
            self._read_members(tx)
        _, claim_id, value = heapq.heappop(behind)
        return claim_id, value

    def put_back(self, claim_id: int, value: bytes) -> None:
        """Let a member wait on that `next_member` has returned."""
        heapq.heappush(self.behind, (split_id(claim_id)[1], claim_id, value))

    def _all_read_below(self) -> int:
        """Return the claim number below which all stored members have been read."""
        return split_id(keys.member_claim(self._last_key))[1] if self._last_key else -1

    def _read_members(self, tx: WriteTransaction) -> None:
        queue = self._queue
        start, stop = keys.range_of(keys.members(queue.queue_id, self.name))
        limit = min(self._reads, self.unread)
        self._reads = min(self._reads * 4, MEMBERS_PER_READ)
        if self._last_key:
            start = keys.successor(self._last_key)
        rows = tx.scan(start, stop, limit=limit)
        if not rows:
            raise CorruptionError(
                f"queue {queue.name!r}: {self.unread} members of group {self.name!r} are missing",
                what="group",
                where=self.name,
            )
        for key, value in rows:
            claim_id = keys.member_claim(key)
            heapq.heappush(self.behind, (split_id(claim_id)[1], claim_id, value))
        self._last_key = rows[-1][0]
        self.unread -= len(rows)
