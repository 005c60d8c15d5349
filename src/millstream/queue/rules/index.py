"""The index of claimable messages during an operation.

Stored rows order messages by class and rank. Entries that the operation adds or takes stay in
memory until `close`, so that a claim can take a message which an acknowledgement in the same commit
has freed. Groups are opened on first use and written back once.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Iterable, Mapping, Set

from msgspec.structs import replace

from millstream.format import keys
from millstream.format.ids import bucket_of, split_id
from millstream.queue.model import pace
from millstream.queue.model.bucket import Bucket
from millstream.queue.model.counts import Counts
from millstream.queue.model.group import NO_STANDING, NOBODY, Group, GroupStanding
from millstream.queue.model.group_limits import GroupLimit, GroupLimits
from millstream.queue.model.roster import Roster, Rostered
from millstream.queue.model.state import QueueState
from millstream.queue.rules.open_group import OpenGroup
from millstream.queue.rules.waiting_rows import find_delay
from millstream.store.commit.transaction import WriteTransaction

QUIET, NOISY = 0, 1
NOISY_SHARE = 0.1
NOISY_MIN = 30
"""A tenant with more than this share of the messages in flight, and at least this number, is noisy:
its messages are claimed after the messages of quiet tenants.
"""

ROWS_PER_READ = 16
"""The rows of the index to read first. A row of neighbours may satisfy the whole claim."""

ROWS_INLINE_MAX = 250
"""More rows than this go straight to the base table instead of the delta of their commit."""

NO_LIMITS: Mapping[str, GroupLimit] = {}

Rank = tuple[int, int]
Entry = tuple[Rank, int, int, str, int]
"""Class and rank, claim number, claim id, group, count. The smallest entry is claimed first."""


class Index:
    """The changes of an operation to ready messages, waiting messages and groups."""

    def __init__(self, tx: WriteTransaction, queue: QueueState, counts: Counts) -> None:
        self._tx = tx
        self._queue = queue
        self._counts = counts
        self._ready: dict[int, tuple[Rank, str, int]] = {}
        """Claim ids → class and rank, group, and the number of neighbours with the same."""
        self._groups: dict[str, OpenGroup] = {}
        self._heap: list[Entry] = []
        self._taken = 0
        self._flown: dict[str, int] = {}
        """Groups → the change of their number of messages in flight."""
        self._roster = Roster()
        self._limits: Mapping[str, GroupLimit] = NO_LIMITS
        self._cap, self._pace = queue.spec.group_in_flight, queue.spec.group_rate
        if queue.spec.group_by:
            self._roster = tx.entity(keys.roster(queue.queue_id), Roster)
            self._limits = tx.entity(keys.group_limits(queue.queue_id), GroupLimits).limits

    def rank(self, priority: int, at_ms: int) -> int:
        """Return a message's rank: its append time, minus a step per priority level."""
        return max(0, at_ms - priority * self._queue.spec.priority_step_ms)

    def enter(
        self, claim_id: int, count: int, *, priority: int, group: str, at_ms: int, due_ms: int
    ) -> None:
        """Make adjacent messages claimable from `due_ms` on; a message of a group waits behind its
        head.
        """
        rank = self.rank(priority, at_ms)
        is_alone = not group or not self._queue.spec.group_by
        if due_ms > self._tx.store_ms and (is_alone or not self._queue.spec.ordered):
            self.wait(claim_id, due_ms, count)
        elif is_alone:
            self._ready[claim_id] = ((QUIET, rank), "", count)
        else:
            self._join(self._group(group), claim_id, rank, due_ms)

    def retry(self, claim_id: int, *, group: str, due_ms: int) -> None:
        """Schedule a retry after a failed attempt; in an ordered group it comes before all other
        members.
        """
        self.wait(claim_id, due_ms)
        if not group or not self._queue.spec.group_by:
            return
        open_group = self._group(group)
        self._fly(group, -1)
        # A group whose limit was lowered may have another head, which stays.
        is_ordered = self._queue.spec.group_order and self._in_flight_max(group) == 1
        if open_group.now.head == NOBODY and is_ordered:
            open_group.now = replace(open_group.now, head=claim_id, rank=None)
        else:
            self._lift(open_group)

    def wait(self, claim_id: int, due_ms: int, count: int = 1) -> None:
        """Make adjacent messages wait until a time."""
        key = keys.retry(self._queue.queue_id, due_ms, claim_id)
        self._tx.put(key, keys.run_value(count))
        self._counts.waiting += count

    def leave(self, groups: Iterable[str]) -> None:
        """Note that messages of groups are no longer in flight and will not return."""
        if self._queue.spec.group_by:
            for name, count in Counter(groups).items():
                if name:
                    self._fly(name, -count)
                    if self._has_record(name):
                        self._lift(self._group(name))

    def withdraw(self, name: str, gone: Set[int], in_flight: int) -> None:
        """Remove a group's waiting and in-flight messages that were withdrawn, and choose the next
        head.
        """
        self._fly(name, -in_flight)
        if not self._has_record(name):
            return
        group, behind = self._group(name), 0
        for claim_id in gone:
            key = keys.member(self._queue.queue_id, name, claim_id)
            if self._tx.get(key) is not None:
                self._tx.erase(key)
                behind += 1
        group.unread -= behind
        group.now = replace(group.now, waiting=group.now.waiting - behind)
        if group.now.head in gone:
            group.now = replace(group.now, head=NOBODY, rank=None)
        self._lift(group)

    def promote_due(self, count_max: int) -> None:
        """Make due messages claimable, about `count_max` of them."""
        tx, queue, counts = self._tx, self._queue, self._counts
        start = keys.of_queue(keys.RETRY, queue.queue_id)[0]
        stop = keys.retry(queue.queue_id, tx.store_ms + 1, 0)
        if queue.counts.waiting + counts.waiting > 0:
            awake = self._awake_some(start, stop, count_max)  # a group may send some back to wait
            counts.waiting -= awake
        if queue.counts.scheduled > 0:
            start = keys.of_queue(keys.SCHEDULE, queue.queue_id)[0]
            stop = keys.schedule(queue.queue_id, tx.wall_ms + 1, 0)
            awake = self._awake_some(start, stop, count_max)
            counts.scheduled -= awake

    def _awake_some(self, start: bytes, stop: bytes, count_max: int) -> int:
        """Make messages listed by a range of rows claimable, about `count_max`; return their
        number.
        """
        total = 0
        while total < count_max:
            rows = self._tx.scan(start, stop, limit=ROWS_PER_READ)
            for key, value in rows:
                self._tx.erase(key)
                claim_id, count = keys.due_claim(key)[1], keys.run_count(value)
                self._awake(claim_id, count)
                total += count
            if len(rows) < ROWS_PER_READ:
                break
            start = keys.successor(rows[-1][0])
        return total

    def _awake(self, claim_id: int, count: int) -> None:
        bucket_id = bucket_of(claim_id)
        slot = claim_id - bucket_id
        bucket = self._tx.entity(keys.bucket(self._queue.queue_id, bucket_id), Bucket)
        if not bucket.marks:
            lane = max(bucket.lane, 0)
            for span in bucket.sources(slot, slot + count):
                rank = QUIET, self.rank(lane, span.at_ms)
                self._ready[bucket_id + span.slot] = rank, "", span.count
            return
        for member_slot in range(slot, slot + count):
            priority, name = bucket.mark(member_slot)
            rank_ms = self.rank(priority, bucket.arrived_ms(member_slot))
            if name and self._queue.spec.group_by:
                self._awake_member(bucket_id + member_slot, name, rank_ms)
            else:
                self._ready[bucket_id + member_slot] = (QUIET, rank_ms), "", 1

    def _awake_member(self, claim_id: int, name: str, rank: int) -> None:
        if self._has_record(name) and self._group(name).now.head == claim_id:
            self._place_head(self._group(name), rank, 0)
        elif not self._queue.is_in_lane(claim_id):
            self._join(self._group(name), claim_id, rank, 0)

    def read(self, count_max: int) -> None:
        """Build the heap for a claim of `count_max`: stored rows together with this operation's
        entries.
        """
        # A claim mostly needs a few rows, and a row of neighbours may cover all of it. So the first
        # read is small, and only a claim that needs more reads as many rows as messages are
        # missing.
        heap = [
            (rank, split_id(claim_id)[1], claim_id, group, count)
            for claim_id, (rank, group, count) in self._ready.items()
        ]
        if self._queue.counts.ready:
            start, stop = keys.of_queue(keys.READY, self._queue.queue_id)
            limit = ROWS_PER_READ
            while count_max > 0:
                rows = self._tx.scan(start, stop, limit=limit)
                for key, value in rows:
                    rank, claim_id = keys.ready_claim(key)
                    count = keys.run_count(value[:4])
                    heap.append((rank, split_id(claim_id)[1], claim_id, value[4:].decode(), count))
                    count_max -= count
                if len(rows) < limit:
                    break
                start, limit = keys.successor(rows[-1][0]), max(count_max, 1)
        heapq.heapify(heap)
        self._heap = heap

    def best(self) -> Entry | None:
        """Return the entry to claim next."""
        return self._heap[0] if self._heap else None

    def take(self, count_max: int) -> tuple[int, int]:
        """Claim the best entry, up to `count_max` neighbours, and raise the next head of its group.

        Returns the first claim id and the number of claims.
        """
        rank, _, claim_id, name, count = heapq.heappop(self._heap)
        self._hide(claim_id, rank, count)
        size = min(count, count_max)
        self._taken += size
        if size < count:
            self._show(claim_id + size, rank, "", count - size)
        if not name:
            return claim_id, size
        group = self._group(name)
        self._fly(name, 1)
        self._pay(group, 1)
        group.now = GroupStanding(group.now.waiting, paid_until_ms=group.now.paid_until_ms)
        self._lift(group)
        if (head := group.now.head) in self._ready:
            self._push(head)
        return claim_id, size

    def admits(self, name: str) -> bool:
        """Count a message of the lane as in flight, if its group allows another; return whether it
        does.
        """
        flown, limit, rate = self._flown.get(name, 0), self._cap, self._pace
        if name in self._limits:
            limit, rate = self._in_flight_max(name), self._rate(name)
        if limit and self._roster.flying.get(name, 0) + flown >= limit:
            return False
        group = self._group(name) if rate or self._has_record(name) else None
        if group is not None and (
            group.now.head != NOBODY or group.now.waiting or not self._may_claim(group)
        ):
            return False
        if not limit and self._class(name) == NOISY:
            return False
        if group is not None:
            group.unpaid += 1
        self._flown[name] = flown + 1
        self._taken += 1
        return True

    def _may_claim(self, group: OpenGroup) -> bool:
        """Return whether the rate of a group allows another claim now."""
        rate = self._rate(group.name)
        if not rate:
            return True
        if group.affordable is None:
            paid_ms, burst = group.now.paid_until_ms, self._queue.spec.group_burst
            group.affordable = pace.affordable(rate, paid_ms, self._tx.store_ms, burst)
        return group.unpaid < group.affordable

    def _pay(self, group: OpenGroup, claims: int = 0) -> None:
        """Charge the rate of a group with its claims in this operation that are not paid yet."""
        claims, rate = claims + group.unpaid, self._rate(group.name)
        if rate and claims:
            paid_ms, burst = group.now.paid_until_ms, self._queue.spec.group_burst
            paid_ms = pace.paid(rate, paid_ms, self._tx.store_ms, claims, burst)
            group.now = replace(group.now, paid_until_ms=paid_ms)
        group.unpaid, group.affordable = 0, None

    def _in_flight_max(self, name: str) -> int:
        """Return the most messages of a group in flight; 0 for any number."""
        limit = self._limits.get(name) if self._limits else None
        return self._cap if limit is None or limit.in_flight is None else limit.in_flight

    def _rate(self, name: str) -> float:
        """Return the claims per second of a group; 0 for any number."""
        limit = self._limits.get(name) if self._limits else None
        return self._pace if limit is None or limit.rate is None else limit.rate

    def relimit(self, name: str) -> None:
        """Apply the new limits of a group to its waiting messages; what its rate has used up is
        forgotten.
        """
        group = self._group(name)
        group.unpaid, group.affordable = 0, None
        group.now = replace(group.now, paid_until_ms=pace.NEVER_MS)
        head, rank = group.now.head, group.now.rank
        limit = self._in_flight_max(name)
        if head != NOBODY and rank is None:
            self._awake_head(group)
        elif rank is not None and limit and self._flying(name) >= limit:
            self._hide(head, rank, 1)
            group.now = replace(group.now, head=NOBODY, rank=None)
            self._join(group, head, rank[1], 0)
        self._lift(group)

    def _awake_head(self, group: OpenGroup) -> None:
        """Make a head claimable that waited for the rate of its group only."""
        tx, queue, head = self._tx, self._queue, group.now.head
        bucket_id = bucket_of(head)
        bucket = tx.entity(keys.bucket(queue.queue_id, bucket_id), Bucket)
        slot = head - bucket_id
        row = find_delay(tx, queue, head, bucket.until_ms[slot], 0, exact=False)
        if bucket.until_ms[slot] > tx.store_ms or row is None or row.kind != "waiting":
            return  # its own time has not come
        if row.count == 1:
            tx.erase(row.key)
            self._counts.waiting -= 1
            priority = bucket.mark(slot)[0]
            self._place_head(group, self.rank(priority, bucket.arrived_ms(slot)), 0)

    def pass_over(
        self, claim_id: int, name: str, *, priority: int, at_ms: int, due_ms: int
    ) -> None:
        """Move a blocked message from the lane into its group."""
        if due_ms > self._tx.store_ms:
            self._tx.erase(keys.retry(self._queue.queue_id, due_ms, claim_id))
            self._counts.waiting -= 1
        group = self._group(name)
        self._join(group, claim_id, self.rank(priority, at_ms), due_ms)
        if group.now.head == claim_id and claim_id in self._ready:
            self._push(claim_id)

    def counted(self) -> None:
        """Stop adding claimed messages: the queue's counts include them from now on."""
        self._taken = 0

    def close(self) -> None:
        """Write the collected changes."""
        tx, queue_id = self._tx, self._queue.queue_id
        rows = len(self._ready) + sum(len(group.added) for group in self._groups.values())
        home = rows > ROWS_INLINE_MAX
        opened, closed = [], []
        for name, group in self._groups.items():
            self._pay(group)
            self._reclassify(group)
            for claim_id, value in group.added.items():
                tx.put(keys.member(queue_id, name, claim_id), value, home=home)
            if group.now != group.before:
                tx.change(keys.group(queue_id, name), group.now)
                if group.before == NO_STANDING:
                    opened.append(name)
                elif group.now == NO_STANDING:
                    closed.append(name)
        for claim_id, (rank, name, count) in self._ready.items():
            value = keys.run_value(count, full=True) + name.encode()
            tx.put(keys.ready(queue_id, rank, claim_id), value, home=home)
            self._counts.ready += count
        flew = [name for name, by in self._flown.items() for _ in range(by)]
        landed = [name for name, by in self._flown.items() for _ in range(-by)]
        if flew or landed or opened or closed:
            tx.change(keys.roster(queue_id), Rostered(flew, landed, opened, closed))

    def _has_record(self, name: str) -> bool:
        """Return whether a group may have a record; if not, all its waiting messages are in the
        lane.
        """
        roster = self._roster
        return name in self._groups or name in roster.named or not roster.names_all

    def _group(self, name: str) -> OpenGroup:
        open_group = self._groups.get(name)
        if open_group is None:
            standing = self._tx.entity(keys.group(self._queue.queue_id, name), Group).standing
            open_group = self._groups[name] = OpenGroup(self._queue, name, standing)
        return open_group

    def _flying(self, name: str) -> int:
        """Return the number of a group's messages in flight, including this operation's."""
        return self._roster.flying.get(name, 0) + self._flown.get(name, 0)

    def _fly(self, name: str, by: int) -> None:
        self._flown[name] = self._flown.get(name, 0) + by

    def _join(self, group: OpenGroup, claim_id: int, rank: int, due_ms: int) -> None:
        value = rank.to_bytes(8, "big") + due_ms.to_bytes(8, "big")
        heapq.heappush(group.behind, (split_id(claim_id)[1], claim_id, value))
        group.added[claim_id] = value
        group.now = replace(group.now, waiting=group.now.waiting + 1)
        self._lift(group)

    def _lift(self, group: OpenGroup) -> None:
        """Make the next member the group head, if the group may have another message in flight."""
        now, limit = group.now, self._in_flight_max(group.name)
        if now.head != NOBODY or not now.waiting or (limit and self._flying(group.name) >= limit):
            return
        claim_id, value = group.next_member(self._tx)
        rank, due_ms = int.from_bytes(value[:8], "big"), int.from_bytes(value[8:], "big")
        if group.added.pop(claim_id, None) is None:
            self._tx.erase(keys.member(self._queue.queue_id, group.name, claim_id))
        group.now = replace(now, waiting=now.waiting - 1, head=claim_id)
        self._place_head(group, rank, due_ms)

    def _place_head(self, group: OpenGroup, rank: int, due_ms: int) -> None:
        """Make the head claimable, or let it wait until it is due and the group's rate allows it."""
        self._pay(group)
        now = group.now
        if not self._may_claim(group):
            due_ms = max(due_ms, pace.next_ms(self._rate(group.name), now.paid_until_ms))
        if due_ms > self._tx.store_ms:
            self.wait(now.head, due_ms)
        else:
            self._show_head(group, rank)

    def _show_head(self, group: OpenGroup, rank: int) -> None:
        shown = (self._class(group.name), rank)
        group.now = replace(group.now, rank=shown)
        self._ready[group.now.head] = (shown, group.name, 1)

    def _class(self, name: str) -> int:
        if self._in_flight_max(name):
            return QUIET
        in_flight = self._flying(name)
        if in_flight < NOISY_MIN:
            return QUIET
        total = self._queue.counts.in_flight + self._counts.in_flight + self._taken
        return NOISY if in_flight > total * NOISY_SHARE else QUIET

    def _reclassify(self, group: OpenGroup) -> None:
        """Move a group's head between the classes when its tenant became quiet or noisy."""
        now = group.now
        if now.head == NOBODY or now.rank is None or now.rank[0] == self._class(group.name):
            return
        self._hide(now.head, now.rank, 1)
        self._show_head(group, now.rank[1])

    def _show(self, claim_id: int, rank: Rank, name: str, count: int) -> None:
        self._ready[claim_id] = rank, name, count
        self._push(claim_id)

    def _push(self, claim_id: int) -> None:
        rank, name, count = self._ready[claim_id]
        heapq.heappush(self._heap, (rank, split_id(claim_id)[1], claim_id, name, count))

    def _hide(self, claim_id: int, rank: Rank, count: int) -> None:
        if self._ready.pop(claim_id, None) is None:
            self._tx.erase(keys.ready(self._queue.queue_id, rank, claim_id))
            self._counts.ready -= count
