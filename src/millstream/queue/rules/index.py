"""The index of what may be claimed, as one operation sees and changes it.

Rows on disk order messages by class and rank; what the same operation adds or takes is kept here
until it ends, so that a message which an acknowledgement sets free can be claimed in the same
commit. Groups are opened when they are touched and written back once.
"""

from __future__ import annotations

import heapq

from msgspec.structs import replace

from millstream.errors import CorruptionError
from millstream.format import keys
from millstream.format.ids import bucket_of, split_id
from millstream.queue.model import pace
from millstream.queue.model.bucket import Bucket
from millstream.queue.model.counts import Counts
from millstream.queue.model.group import NOBODY, Group, GroupStanding
from millstream.queue.model.state import QueueState
from millstream.store.transaction import WriteTransaction

QUIET, NOISY = 0, 1
NOISY_SHARE = 0.1
NOISY_MIN = 30
"""A tenant with more than that share of what is in flight, and at least so many, lets others go
first."""

MEMBERS_PER_READ = 64

ROWS_INLINE_MAX = 250
"""More rows than that in one commit are not worth a stay in its delta."""

Rank = tuple[int, int]
Entry = tuple[Rank, int, int, str]
"""Class and rank, claim number, claim id, group: what may be claimed, the least first."""


class _Open:
    """A group that an operation has touched."""

    __slots__ = ("added", "before", "behind", "name", "now", "read_to", "reads", "unread")

    def __init__(self, name: str, standing: GroupStanding) -> None:
        self.name = name
        self.before = self.now = standing
        self.behind: list[tuple[int, int, bytes]] = []
        """Members by claim number: read ahead, or added by this operation."""
        self.added: dict[int, bytes] = {}
        """Members that this operation has added, and that no row holds yet."""
        self.read_to = b""
        self.reads = 1
        """How many to read next: mostly one is enough."""
        self.unread = standing.waiting

    def all_read_below(self) -> int:
        """Members on disk below this claim number have been read."""
        return split_id(keys.member_claim(self.read_to[:-1]))[1] if self.read_to else -1


class Index:
    """What one operation changes about what is ready, waits, and belongs to groups."""

    def __init__(self, tx: WriteTransaction, queue: QueueState, counts: Counts) -> None:
        self._tx = tx
        self._queue = queue
        self._counts = counts
        self._ready: dict[int, tuple[Rank, str]] = {}
        self._gone: set[bytes] = set()
        self._groups: dict[str, _Open] = {}
        self._heap: list[Entry] = []
        self._taken = 0

    # What becomes claimable.

    def rank(self, priority: int, at_ms: int) -> int:
        """A message's place among all: when it came, earlier for each level of priority."""
        return max(0, at_ms - priority * self._queue.spec.priority_step_ms)

    def enter(self, claim_id: int, *, priority: int, group: str, at_ms: int, due_ms: int) -> None:
        """A message may be claimed from `due_ms` on, in its group's turn."""
        rank = self.rank(priority, at_ms)
        is_alone = not group or not self._queue.spec.group_by
        if due_ms > self._tx.store_ms and (is_alone or not self._queue.spec.ordered):
            self._wait(claim_id, due_ms)
        elif is_alone:
            self._ready[claim_id] = ((QUIET, rank), "")
        else:
            self._join(self._group(group), claim_id, rank, due_ms)

    def retry(self, claim_id: int, *, group: str, due_ms: int) -> None:
        """An attempt ended and is to be repeated: in an ordered group, before all others."""
        self._wait(claim_id, due_ms)
        if not group or not self._queue.spec.group_by:
            return
        found = self._group(group)
        found.now = replace(found.now, in_flight=max(0, found.now.in_flight - 1))
        if self._queue.spec.ordered:
            found.now = replace(found.now, head=claim_id, rank=None)
        else:
            self._lift(found)

    def leave(self, group: str) -> None:
        """A message of a group is no longer in flight, and will not come again."""
        if group and self._queue.spec.group_by:
            found = self._group(group)
            found.now = replace(found.now, in_flight=max(0, found.now.in_flight - 1))
            self._lift(found)

    def go_on(self, group: str) -> None:
        """Messages of a group were withdrawn: the next one may have its turn."""
        self._lift(self._group(group))

    def promote_due(self, most: int) -> None:
        """Let messages whose time has come be claimed."""
        tx, queue = self._tx, self._queue
        start = keys.of_queue(keys.RETRY, queue.queue_id)[0]
        stop = keys.retry(queue.queue_id, tx.store_ms + 1, 0)
        if queue.counts.waiting + self._counts.waiting > 0:
            for key, _ in tx.scan(start, stop, limit=most):
                self._awake(key)
                self._counts.waiting -= 1
        if queue.counts.scheduled > 0:
            start = keys.of_queue(keys.SCHEDULE, queue.queue_id)[0]
            stop = keys.schedule(queue.queue_id, tx.wall_ms + 1, 0)
            for key, _ in tx.scan(start, stop, limit=most):
                self._awake(key)
                self._counts.scheduled -= 1

    def _awake(self, key: bytes) -> None:
        self._tx.erase(key)
        claim_id = keys.due_claim(key)[1]
        bucket_id = bucket_of(claim_id)
        slot = claim_id - bucket_id
        bucket = self._tx.entity(keys.bucket(self._queue.queue_id, bucket_id), Bucket)
        priority, name = bucket.mark(slot)
        rank = self.rank(priority, bucket.arrived_ms(slot))
        if not name or not self._queue.spec.group_by:
            self._ready[claim_id] = ((QUIET, rank), "")
            return
        group = self._group(name)
        if group.now.head == claim_id:
            self._place_head(group, rank, 0)
        else:
            self._join(group, claim_id, rank, 0)

    # What is claimed.

    def read(self, most: int) -> None:
        """Get ready to claim so many: see what is there, with what this operation has added."""
        heap = [
            (rank, split_id(claim_id)[1], claim_id, group)
            for claim_id, (rank, group) in self._ready.items()
        ]
        if self._queue.counts.ready:
            start, stop = keys.of_queue(keys.READY, self._queue.queue_id)
            limit = most + len(self._gone)
            for key, value in self._tx.scan(start, stop, limit=limit):
                rank, claim_id = keys.ready_claim(key)
                if key not in self._gone:
                    heap.append((rank, split_id(claim_id)[1], claim_id, value.decode()))
        heapq.heapify(heap)
        self._heap = heap

    def best(self) -> Entry | None:
        """What is to be claimed next."""
        return self._heap[0] if self._heap else None

    def take(self) -> int:
        """Claim it; the next of its group, if there is one, takes its place. Answers its id."""
        rank, _, claim_id, name = heapq.heappop(self._heap)
        self._hide(claim_id, rank)
        self._taken += 1
        if not name:
            return claim_id
        group = self._group(name)
        now, rate = group.now, self._queue.spec.group_rate
        paid_ms = now.paid_until_ms
        if rate:
            paid_ms = pace.paid(rate, paid_ms, self._tx.store_ms, 1)
        group.now = GroupStanding(now.waiting, now.in_flight + 1, NOBODY, None, paid_ms)
        self._lift(group)
        head = group.now.head
        if head in self._ready:
            heapq.heappush(self._heap, (self._ready[head][0], split_id(head)[1], head, name))
        return claim_id

    def counted(self) -> None:
        """What was taken counts as in flight from now on."""
        self._taken = 0

    def close(self) -> None:
        """Write what is left."""
        tx, queue_id = self._tx, self._queue.queue_id
        rows = len(self._ready) + sum(len(group.added) for group in self._groups.values())
        home = rows > ROWS_INLINE_MAX
        for name, group in self._groups.items():
            self._reclassify(group)
            for claim_id, value in group.added.items():
                tx.put(keys.member(queue_id, name, claim_id), value, home=home)
            if group.now != group.before:
                tx.change(keys.group(queue_id, name), group.now)
        for claim_id, (rank, name) in self._ready.items():
            tx.put(keys.ready(queue_id, rank, claim_id), name.encode(), home=home)
        self._counts.ready += len(self._ready)

    # Groups.

    def _group(self, name: str) -> _Open:
        found = self._groups.get(name)
        if found is None:
            standing = self._tx.entity(keys.group(self._queue.queue_id, name), Group).standing
            found = self._groups[name] = _Open(name, standing)
        return found

    def _join(self, group: _Open, claim_id: int, rank: int, due_ms: int) -> None:
        value = rank.to_bytes(8, "big") + due_ms.to_bytes(8, "big")
        heapq.heappush(group.behind, (split_id(claim_id)[1], claim_id, value))
        group.added[claim_id] = value
        group.now = replace(group.now, waiting=group.now.waiting + 1)
        self._lift(group)

    def _lift(self, group: _Open) -> None:
        """Make the next member the group head, if the group has room for one in flight."""
        now, most = group.now, self._queue.spec.group_in_flight
        if now.head != NOBODY or not now.waiting or (most and now.in_flight >= most):
            return
        claim_id, value = self._next_member(group)
        rank, due_ms = int.from_bytes(value[:8], "big"), int.from_bytes(value[8:], "big")
        if group.added.pop(claim_id, None) is None:
            self._tx.erase(keys.member(self._queue.queue_id, group.name, claim_id))
        group.now = replace(now, waiting=now.waiting - 1, head=claim_id)
        self._place_head(group, rank, due_ms)

    def _place_head(self, group: _Open, rank: int, due_ms: int) -> None:
        """The head may be claimed, once it is due and the group's rate allows it."""
        now, rate = group.now, self._queue.spec.group_rate
        if rate and not pace.affordable(rate, now.paid_until_ms, self._tx.store_ms):
            due_ms = max(due_ms, pace.next_ms(rate, now.paid_until_ms))
        if due_ms > self._tx.store_ms:
            self._wait(now.head, due_ms)
        else:
            self._show_head(group, rank)

    def _next_member(self, group: _Open) -> tuple[int, bytes]:
        """The first that waits, on disk or added just now; each is read only once."""
        behind = group.behind
        while group.unread and (not behind or behind[0][0] > group.all_read_below()):
            self._read_members(group)
        _, claim_id, value = heapq.heappop(behind)
        return claim_id, value

    def _read_members(self, group: _Open) -> None:
        start, stop = keys.range_of(keys.members(self._queue.queue_id, group.name))
        limit = min(group.reads, group.unread)
        group.reads = min(group.reads * 4, MEMBERS_PER_READ)
        rows = self._tx.scan(group.read_to or start, stop, limit=limit)
        if not rows:
            raise CorruptionError(
                f"queue {self._queue.name!r}: {group.unread} members of group {group.name!r} "
                "are missing",
                what="group",
                where=group.name,
            )
        for key, value in rows:
            claim_id = keys.member_claim(key)
            heapq.heappush(group.behind, (split_id(claim_id)[1], claim_id, value))
        group.read_to = rows[-1][0] + b"\x00"
        group.unread -= len(rows)

    def _show_head(self, group: _Open, rank: int) -> None:
        shown = (self._class(group), rank)
        group.now = replace(group.now, rank=shown)
        self._ready[group.now.head] = (shown, group.name)

    def _class(self, group: _Open) -> int:
        in_flight = group.now.in_flight
        if self._queue.spec.group_in_flight or in_flight < NOISY_MIN:
            return QUIET
        total = self._queue.counts.in_flight + self._counts.in_flight + self._taken
        return NOISY if in_flight > total * NOISY_SHARE else QUIET

    def _reclassify(self, group: _Open) -> None:
        """A tenant has become quiet or noisy: its head moves to its place."""
        now = group.now
        if now.head == NOBODY or now.rank is None or now.rank[0] == self._class(group):
            return
        self._hide(now.head, now.rank)
        self._show_head(group, now.rank[1])

    # Rows.

    def _wait(self, claim_id: int, due_ms: int) -> None:
        self._tx.put(keys.retry(self._queue.queue_id, due_ms, claim_id), b"")
        self._counts.waiting += 1

    def _hide(self, claim_id: int, rank: Rank) -> None:
        if self._ready.pop(claim_id, None) is None:
            key = keys.ready(self._queue.queue_id, rank, claim_id)
            self._tx.erase(key)
            self._gone.add(key)
            self._counts.ready -= 1
