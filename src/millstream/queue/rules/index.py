"""The index of claimable messages during an operation.

The index decides which messages are ready, which wait for a time, and which wait behind the head of
their group. Ready messages are kept by `ready.py`. Groups are opened on first use and written back
once.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Mapping, Set

from msgspec.structs import replace

from millstream.format import keys
from millstream.format.ids import bucket_of, split_id
from millstream.queue.model import rates
from millstream.queue.model.bucket import Bucket
from millstream.queue.model.counts import Counts
from millstream.queue.model.group import NO_STANDING, NOBODY, Group, GroupStanding
from millstream.queue.model.roster import Roster, Rostered, movements
from millstream.queue.model.state import QueueState
from millstream.queue.rules.group_caps import GroupCaps
from millstream.queue.rules.open_group import OpenGroup
from millstream.queue.rules.ready import ROWS_PER_READ, ReadyRows
from millstream.queue.rules.waiting_rows import find_delay
from millstream.store.commit.transaction import WriteTransaction

QUIET, NOISY = 0, 1
NOISY_SHARE = 0.1
NOISY_MIN = 30
"""A tenant with more than this share of the messages in flight, and at least this number, is noisy:
its messages are claimed after the messages of quiet tenants.
"""

ROWS_INLINE_MAX = 250
"""More rows than this go straight to the base table instead of the delta of their commit."""


class Index:
    """The changes of an operation to ready messages, waiting messages and groups."""

    def __init__(self, tx: WriteTransaction, queue: QueueState, counts: Counts) -> None:
        self._tx = tx
        self._queue = queue
        self._counts = counts
        self.ready = ReadyRows(tx, queue, counts)
        self._groups: dict[str, OpenGroup] = {}
        self._taken = 0
        self._flown: dict[str, int] = {}
        """Groups → the change of their number of messages in flight."""
        self.takes_runs = False
        """Whether the claim takes several messages of an ordered group."""
        self._run_groups: set[str] = set()
        """Groups of which this claim has taken a message."""
        roster = Roster()
        self._caps = GroupCaps(tx, queue)
        if queue.spec.group_by:
            roster = tx.entity(keys.roster(queue.queue_id), Roster)
        self._was_flying, self._named = roster.flying, roster.named
        self._names_all = roster.names_all

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
            self.ready.added[claim_id] = ((QUIET, rank), "", count)
        else:
            self._join(self._group(group), claim_id, rank, due_ms)

    def retry(self, claim_id: int, *, priority: int, group: str, at_ms: int, due_ms: int) -> None:
        """Schedule a retry after a failed attempt; in an ordered group it waits for all messages in
        flight, and comes before all later members.
        """
        if not group or not self._queue.spec.group_by:
            self.wait(claim_id, due_ms)
            return
        open_group = self._group(group)
        self._fly(group, -1)
        # A group whose limit was lowered may have another head, which stays.
        if open_group.now.head == NOBODY and self._caps.is_ordered(group):
            self._join(open_group, claim_id, self.rank(priority, at_ms), due_ms)
        else:
            self.wait(claim_id, due_ms)
            self._lift(open_group)

    def wait(self, claim_id: int, due_ms: int, count: int = 1) -> None:
        """Make adjacent messages wait until a time."""
        key = keys.retry(self._queue.queue_id, due_ms, claim_id)
        self._tx.put(key, keys.run_value(count))
        self._counts.waiting += count

    def leave(self, groups: Mapping[str, int]) -> None:
        """Note that so many messages of groups are no longer in flight and will not return."""
        if not self._queue.spec.group_by:
            return
        flown = self._flown
        for name, count in groups.items():
            if name:
                flown[name] = flown.get(name, 0) - count
        for name in [] if self._has_no_records() else groups:
            if name and self._has_record(name):
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
                self.ready.added[bucket_id + span.slot] = rank, "", span.count
            return
        for member_slot in range(slot, slot + count):
            priority, name = bucket.mark(member_slot)
            rank_ms = self.rank(priority, bucket.arrived_ms(member_slot))
            if name and self._queue.spec.group_by:
                self._awake_member(bucket_id + member_slot, name, rank_ms)
            else:
                self.ready.added[bucket_id + member_slot] = (QUIET, rank_ms), "", 1

    def _awake_member(self, claim_id: int, name: str, rank: int) -> None:
        if self._has_record(name) and self._group(name).now.head == claim_id:
            self._place_head(self._group(name), rank, 0)
        elif not self._queue.is_in_lane(claim_id):
            self._join(self._group(name), claim_id, rank, 0)

    def take(self, count_max: int) -> tuple[int, int]:
        """Claim the best entry, up to `count_max` neighbours, and raise the next head of its group.

        Returns the first claim id and the number of claims.
        """
        (_, _, claim_id, name, _), size = self.ready.take(count_max)
        self._taken += size
        if not name:
            return claim_id, size
        group = self._group(name)
        self._fly(name, 1)
        self._caps.pay(group, 1)
        self._run_groups.add(name)
        group.now = GroupStanding(group.now.waiting, paid_until_ms=group.now.paid_until_ms)
        self._lift(group)
        self.ready.offer(group.now.head)
        return claim_id, size

    def take_behind(self, name: str, count_max: int) -> Iterator[int]:
        """Claim the members behind a claimed head, in order, if the claim takes runs of an ordered
        group; yield their claim ids.
        """
        if not name or not self.may_run(name):
            return
        group = self._group(name)
        while count_max and group.now.waiting and self._caps.may_claim(group):
            claim_id, value = group.next_member(self._tx)
            if int.from_bytes(value[8:], "big") > self._tx.store_ms:
                group.put_back(claim_id, value)
                return
            self._unlist(group, claim_id)
            self._fly(name, 1)
            self._caps.pay(group, 1)
            self._taken += 1
            count_max -= 1
            yield claim_id

    def admits(self, name: str) -> bool:
        """Count a message of the lane as in flight, if its group allows another; return whether it
        does.
        """
        if not self._allows(name, 1):
            return False
        self._admit(name, 1)
        return True

    def admits_all(self, groups: Mapping[str, int]) -> bool:
        """Count messages of the lane as in flight, if their groups allow all of them; else count none.

        False is no refusal: the messages must then be asked for one by one.
        """
        counts = (self._was_flying, self._flown)
        if not self.takes_runs and self._has_no_records() and self._caps.allow_all(groups, counts):
            for name, count in groups.items():
                self._flown[name] = self._flown.get(name, 0) + count
            self._taken += sum(groups.values())
            return True
        if not all(self._allows(name, count) for name, count in groups.items()):
            return False
        for name, count in groups.items():
            self._admit(name, count)
        return True

    def _allows(self, name: str, count: int) -> bool:
        """Return whether a group allows more messages of the lane in flight."""
        caps = self._caps
        limit, rate = caps.in_flight, caps.per_second
        if name in caps.limits:
            limit, rate = caps.in_flight_max(name), caps.rate(name)
        in_flight = self._was_flying.get(name, 0) + self._flown.get(name, 0)
        if limit and in_flight + count > limit and not self._is_run(name, in_flight):
            return False
        if rate or self._has_record(name):
            group = self._group(name)
            now = group.now
            if now.head != NOBODY or now.waiting or not self._caps.may_claim(group, count):
                return False
        if limit or in_flight + count <= NOISY_MIN:
            return True
        return count == 1 and self._class(name) == QUIET

    def may_run(self, name: str) -> bool:
        """Return whether the claim takes several messages of a group."""
        return self.takes_runs and self._caps.is_ordered(name)

    def _is_run(self, name: str, in_flight: int) -> bool:
        """Return whether the claim may take several messages of an ordered group.

        The group must have had none in flight before this claim.
        """
        may_begin = not in_flight or name in self._run_groups
        return may_begin and self.may_run(name)

    def _admit(self, name: str, count: int) -> None:
        """Count messages of a group as in flight, and as claims that its rate must pay for."""
        group = self._groups.get(name)
        if group is not None:
            group.unpaid += count
        self._flown[name] = self._flown.get(name, 0) + count
        self._taken += count
        if self.takes_runs:
            self._run_groups.add(name)

    def relimit(self, name: str) -> None:
        """Apply the new limits of a group to its waiting messages; what its rate has used up is
        forgotten.
        """
        group = self._group(name)
        group.unpaid, group.affordable = 0, None
        group.now = replace(group.now, paid_until_ms=rates.NEVER_MS)
        head, rank = group.now.head, group.now.rank
        limit = self._caps.in_flight_max(name)
        if head != NOBODY and rank is None:
            self._awake_head(group)
        elif rank is not None and limit and self._flying(name) >= limit:
            self.ready.remove(head, rank, 1)
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
        if group.now.head == claim_id:
            self.ready.offer(claim_id)

    def counted(self) -> None:
        """Stop adding claimed messages: the queue's counts include them from now on."""
        self._taken = 0

    def close(self) -> None:
        """Write the collected changes."""
        tx, queue_id = self._tx, self._queue.queue_id
        rows = len(self.ready.added) + sum(len(group.added) for group in self._groups.values())
        home = rows > ROWS_INLINE_MAX
        opened, closed = [], []
        for name, group in self._groups.items():
            self._caps.pay(group)
            self._reclassify(group)
            for claim_id, value in group.added.items():
                tx.put(keys.member(queue_id, name, claim_id), value, home=home)
            if group.now != group.before:
                tx.change(keys.group(queue_id, name), group.now)
                if group.before == NO_STANDING:
                    opened.append(name)
                elif group.now == NO_STANDING:
                    closed.append(name)
        self.ready.write(home=home)
        flew, landed = movements(self._flown)
        if flew or landed or opened or closed:
            tx.change(keys.roster(queue_id), Rostered(flew, landed, opened, closed))

    def _has_no_records(self) -> bool:
        """Whether no group has a record."""
        return self._names_all and not self._named and not self._groups

    def _has_record(self, name: str) -> bool:
        """Return whether a group may have a record; if not, all its waiting messages are in the
        lane.
        """
        return name in self._named or name in self._groups or not self._names_all

    def _group(self, name: str) -> OpenGroup:
        open_group = self._groups.get(name)
        if open_group is None:
            standing = self._tx.entity(keys.group(self._queue.queue_id, name), Group).standing
            open_group = self._groups[name] = OpenGroup(self._queue, name, standing)
        return open_group

    def _flying(self, name: str) -> int:
        """Return the number of a group's messages in flight, including this operation's."""
        return self._was_flying.get(name, 0) + self._flown.get(name, 0)

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
        now, limit = group.now, self._caps.in_flight_max(group.name)
        if now.head != NOBODY or not now.waiting or (limit and self._flying(group.name) >= limit):
            return
        claim_id, value = group.next_member(self._tx)
        rank, due_ms = int.from_bytes(value[:8], "big"), int.from_bytes(value[8:], "big")
        self._unlist(group, claim_id)
        group.now = replace(group.now, head=claim_id)
        self._place_head(group, rank, due_ms)

    def _unlist(self, group: OpenGroup, claim_id: int) -> None:
        """Remove a member from those that wait behind the head."""
        if group.added.pop(claim_id, None) is None:
            self._tx.erase(keys.member(self._queue.queue_id, group.name, claim_id))
        group.now = replace(group.now, waiting=group.now.waiting - 1)

    def _place_head(self, group: OpenGroup, rank: int, due_ms: int) -> None:
        """Make the head claimable, or let it wait until it is due and the group's rate allows it."""
        self._caps.pay(group)
        now = group.now
        if not self._caps.may_claim(group):
            due_ms = max(due_ms, rates.next_ms(self._caps.rate(group.name), now.paid_until_ms))
        if due_ms > self._tx.store_ms:
            self.wait(now.head, due_ms)
        else:
            self._show_head(group, rank)

    def _show_head(self, group: OpenGroup, rank: int) -> None:
        shown = (self._class(group.name), rank)
        group.now = replace(group.now, rank=shown)
        self.ready.added[group.now.head] = (shown, group.name, 1)

    def _class(self, name: str) -> int:
        if self._caps.in_flight_max(name):
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
        self.ready.remove(now.head, now.rank, 1)
        self._show_head(group, now.rank[1])
