"""Queues that choose: priorities, groups, caps, delays and repeats against a model in plain Python.

Each run makes a queue of some kind and appends, puts at once and for later, claims, pops, finishes,
lets leases end, moves the wall clock, purges, cancels, redrives, pauses, truncates, alters, folds with tiny limits, does
what is done in the background, and opens again, through either of two handles on one file. Promises:

- No message is lost, none is held twice, and a claim gets as many as may be handed out.
- Of an ordered group one is in flight, or a run of one claim, in the order of its log, and retries
  before all others; of other groups no more than allowed.
- The best rank goes first, delays are honoured, and no cap is exceeded.
- Counts, attempts and payloads are right at any time, the doctor finds nothing wrong, and at the end
  everything can be had.

Rows of the index hold neighbours, which claims, retries and purges cut, and lanes are passed through
in steps. Runs with tiny bounds on both come to every cut.

What the model does not promise, because it does not hold, has a test under tests/unit/queue.
"""

from __future__ import annotations

import sys
import tempfile
from dataclasses import dataclass
from datetime import datetime
from fractions import Fraction
from pathlib import Path
from types import ModuleType
from typing import Any

import hypothesis
import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

import millstream
from millstream import Limits, Millstream
from millstream.doctor import examine
from millstream.errors import Conflict, LeaseLost
from millstream.format.ids import split_id
from millstream.queue.model import roster
from millstream.queue.model.message import Message, QueueInfo
from millstream.queue.rules import grouped_lane as passing
from millstream.queue.rules import index as indexing
from millstream.queue.rules import open_group
from millstream.record import wall_ms_of
from millstream.testing import Probe, SimulatedClock
from millstream.threads.queue import Queue
from tests.property.background import at_rest, peek_and_route

LOGS = ("l.a", "l.b")
INBOX, LATER = "queue:q", "queue-later:q"
STEP_S = 4
LEASE_MS = 10_000
KINDS: dict[str, dict[str, Any]] = {
    "plain": {},
    "priority": {"priority_by": "p"},
    "ordered": {"group_by": "g"},
    "ordered, priority": {"group_by": "g", "priority_by": "p"},
    "fair": {"group_by": "g", "group_in_flight": 0},
    "two at once": {"group_by": "g", "group_in_flight": 2},
    "any order": {"group_by": "g", "group_order": False},
    "any order, priority": {
        "group_by": "g",
        "group_in_flight": 2,
        "group_order": False,
        "priority_by": "p",
    },
}
HANDLES = st.integers(0, 1)
COUNTS = st.integers(1, 4) | st.just(30)
PICKS = st.lists(st.integers(0, 1_000), min_size=1, max_size=4)
HEADERS = st.fixed_dictionaries(
    {
        "g": st.sampled_from(["a", "a", "b", "c", ""]),
        "p": st.sampled_from([0, 0, 1, 3, 9, -1, 12, "5"]),
        "d": st.integers(0, 5),
    }
)
BATCHES = st.lists(HEADERS, min_size=1, max_size=8)
TIMES = st.tuples(st.sampled_from(["delay", "at"]), st.integers(0, 12))
LIMITS = st.builds(
    Limits,
    inline_bytes_max=st.sampled_from([0, 12, 2_048]),
    fold_slice_deltas=st.sampled_from([1, 3, 256]),
    fold_deltas_min=st.sampled_from([1, 5, 10_000]),
    tail_deltas_max=st.sampled_from([3, 10_000]),
    entities_cached_max=st.sampled_from([1, 10_000]),
    group_operations_max=st.just(8),
)


BOUNDS = (
    (indexing, "ROWS_PER_READ", 2),
    (open_group, "MEMBERS_PER_READ", 2),
    (passing, "PASSED_MAX", 1),
    (roster, "NAMED_MAX", 1),
)
"""What bounds one step, and its least."""


@dataclass(eq=False)
class Entry:
    """A message under one claim id; a redriven one is another entry."""

    value: bytes
    stream: str
    """A log in whose order it comes; a redriven one stands alone."""
    headers: dict[str, Any]
    wall_ms: int
    due_ms: int = 0
    due_wall_ms: int = 0
    state: str = "waits"
    tries: int = 0
    tries_before: int = 0
    """Before it was redriven, under other claim ids."""
    until_ms: int = 0
    claim_id: int = -1

    @property
    def redriven(self) -> bool:
        return self.stream.startswith("redriven")


def number_of(entry: Entry) -> int:
    """The number of a claimed message in its queue."""
    return split_id(entry.claim_id)[1]


class OrderedQueueMachine(RuleBasedStateMachine):
    """Two handles on one file, and how the queue should stand."""

    def __init__(self) -> None:
        super().__init__()
        self.patch = pytest.MonkeyPatch()
        self.directory = tempfile.TemporaryDirectory()
        self.clock = SimulatedClock()
        self.handles: list[Millstream] = []
        self.entries: list[Entry] = []
        self.entry_of: dict[bytes, Entry] = {}
        self.held: list[Message] = []
        self.seen: dict[str, int] = {}
        self.seen_by: dict[str, Entry] = {}
        self.unrouted: list[Entry] = []
        self.duplicates = self.failures = self.number = 0
        self.paused = self.lapsed = False
        self.tokens = Fraction(0)
        self.tokens_ms = 0
        self.paid: dict[str, list[int]] = {}

    @initialize(
        limits=LIMITS,
        kind=st.sampled_from([*KINDS, "priority", "ordered"]),
        exponent=st.integers(0, 2),
        most=st.integers(1, 3),
        backoff_s=st.sampled_from([0, 5]),
        delay_s=st.sampled_from([0, 0, 0, 3]),
        caps=st.fixed_dictionaries(
            {
                "max_in_flight": st.sampled_from([0, 0, 3]),
                "rate": st.sampled_from([0.0, 0.0, 0.0, 0.5, 2.0]),
                "group_rate": st.sampled_from([0.0, 0.0, 0.0, 0.5, 2.0]),
            }
        ),
        dedup=st.sampled_from([False, False, True]),
        bounded=st.sets(st.sampled_from(BOUNDS)),
    )
    def begin(
        self,
        limits: Limits,
        kind: str,
        exponent: int,
        most: int,
        backoff_s: int,
        delay_s: int,
        caps: dict[str, float],
        dedup: bool,
        bounded: set[tuple[ModuleType, str, int]],
    ) -> None:
        for module, name, least in bounded:
            self.patch.setattr(module, name, least)
        self.limits, self.kind, self.caps, self.dedup = limits, kind, caps, dedup
        self.most, self.backoff_ms, self.delay_ms = most, backoff_s * 1000, delay_s * 1000
        options = KINDS[kind]
        self.group_most: int = options.get("group_in_flight", 1) if "group_by" in options else 0
        self.grouped = "group_by" in options
        self.ordered = self.group_most == 1 and options.get("group_order", True)
        self.ranked = kind == "priority"
        self.rated = bool(caps["group_rate"])  # what waits for a rate waits on if it is lifted
        self.tokens = Fraction(max(1, caps["rate"]))
        self.handles = [self.open(), self.open()]
        self.handles[0].queue(
            "q",
            sources="l.*",
            lease=LEASE_MS / 1000,
            max_attempts=most,
            backoff=backoff_s,
            delay=delay_s,
            bucket_exponent=exponent,
            priority_step=STEP_S,
            dedup_by="d" if dedup else "",
            dedup_window=15,
            dead_letter="dead",
            done_retention=0,
            **options,
            **caps,  # type: ignore[arg-type]
        )

    def open(self) -> Millstream:
        path = Path(self.directory.name) / "model.db"
        return millstream.open(path, limits=self.limits, clock=self.clock, durability="relaxed")

    def teardown(self) -> None:
        try:
            if self.handles and sys.exc_info()[0] is None:
                self.nothing_is_lost()
        finally:
            for handle in self.handles:
                handle.close()
            self.directory.cleanup()
            self.patch.undo()

    def queue(self, handle: int) -> Queue:
        return self.handles[handle].queue("q")

    @property
    def now_ms(self) -> int:
        return self.clock.boot_ms()

    def store_ms(self, told: datetime | None) -> int:
        """The store time of a moment that was just told."""
        return 0 if told is None else wall_ms_of(told) - self.clock.wall_ms() + self.now_ms

    def group(self, entry: Entry) -> str:
        return entry.headers["g"] if self.grouped else ""

    # What comes in.

    @rule(handle=HANDLES, log=st.sampled_from(LOGS), batch=BATCHES)
    def append(self, handle: int, log: str, batch: list[dict[str, Any]]) -> None:
        values = [self.value() for _ in batch]
        self.handles[handle].log(log).append_many(values, headers=batch)
        self.came(log, values, batch)

    @rule(handle=HANDLES, batch=BATCHES)
    def put(self, handle: int, batch: list[dict[str, Any]]) -> None:
        values = [self.value() for _ in batch]
        if len(batch) == 1:
            self.queue(handle).put(values[0], headers=batch[0])
        else:
            self.queue(handle).put_many(values, headers=batch)
        self.came(INBOX, values, batch)

    @rule(handle=HANDLES, batch=BATCHES, time=TIMES)
    def put_for_later(
        self, handle: int, batch: list[dict[str, Any]], time: tuple[str, int]
    ) -> None:
        values = [self.value() for _ in batch]
        how, seconds = time
        wall_ms = self.clock.wall_ms() + seconds * 1000
        options: dict[str, Any] = {"delay": seconds} if how == "delay" else {"at": wall_ms}
        queue = self.queue(handle)
        if len(batch) == 1:
            queue.put(values[0], headers=batch[0], **options)
        else:
            queue.put_many(values, headers=batch, **options)
        entries = self.came(LATER, values, batch)
        for entry in entries:
            if how == "at" and not self.group(entry):
                entry.due_wall_ms, entry.due_ms = wall_ms, 0
            else:
                entry.due_ms = self.now_ms + seconds * 1000
        self.route()

    def value(self) -> bytes:
        self.clock.advance(0.001)  # of two logs, one was first
        self.number += 1
        return b"%d:" % self.number + b"x" * (self.number % 3 * 40)

    def came(self, log: str, values: list[bytes], batch: list[dict[str, Any]]) -> list[Entry]:
        wall_ms, due_ms = self.clock.wall_ms(), self.now_ms + self.delay_ms
        found = [
            Entry(value, log, headers, wall_ms, due_ms)
            for value, headers in zip(values, batch, strict=True)
        ]
        self.entries += found
        self.unrouted += found
        self.entry_of.update((entry.value, entry) for entry in found)
        return found

    def route(self) -> None:
        """Messages get their place, and repeats are dropped, by the times at which they came."""
        for entry in self.unrouted:
            known = str(entry.headers["d"])
            if self.dedup and self.seen.get(known, -1) > entry.wall_ms:
                entry.state = "gone"
                self.duplicates += 1
            elif self.dedup:
                self.seen[known] = entry.wall_ms + 15_000
                self.seen_by[known] = entry
        self.unrouted.clear()

    def look(self, handle: int) -> list[Message]:
        """Peek at everything that waits; that also routes, if no commit is in flight meanwhile."""
        self.settled(handle)
        with at_rest(self.handles):
            found = peek_and_route(self.handles[handle], "q", 1_000)
        self.route()
        return found

    # What may go out.

    def due(self, entry: Entry) -> bool:
        return entry.due_ms <= self.now_ms and entry.due_wall_ms <= self.clock.wall_ms()

    def waiting(self) -> list[Entry]:
        return [entry for entry in self.entries if entry.state == "waits"]

    def flying(self, group: str) -> int:
        flying = self.in_state("in_flight")
        return sum(self.group(entry) == group for entry in flying)

    def heads(self, group: str) -> list[Entry]:
        """Of an ordered group, what may be the next: a retry, or the oldest of any log."""
        members = [entry for entry in self.waiting() if self.group(entry) == group]
        again = [entry for entry in members if entry.tries]
        if again:
            return [min(again, key=number_of)]
        firsts = list({entry.stream: entry for entry in reversed(members)}.values())
        oldest = min((entry.wall_ms for entry in firsts if not entry.redriven), default=0)
        return [entry for entry in firsts if entry.redriven or entry.wall_ms == oldest]

    def run(self, group: str) -> tuple[int, int]:
        """How many messages of an ordered group a claim of runs gets: at least, and at most."""
        members = [entry for entry in self.waiting() if self.group(entry) == group]
        if any(entry.redriven for entry in members):
            return 0, sum(self.due(entry) for entry in members)  # their order is not known
        members.sort(key=lambda entry: (not entry.tries, entry.tries and number_of(entry)))
        again = sum(bool(entry.tries) for entry in members)
        members[again:] = sorted(members[again:], key=lambda entry: entry.wall_ms)
        due = [self.due(entry) for entry in members]
        count = (*due, False).index(False)
        return count, count

    def claimable(self, *, runs: bool = False) -> tuple[int, int]:
        """How many messages a claim gets, if it asks for all: at least, and at most."""
        if self.paused:
            return 0, 0
        least = most = 0
        groups: dict[str, int] = {}
        for entry in self.waiting():
            groups.setdefault(self.group(entry), 0)
            groups[self.group(entry)] += self.due(entry)
        for group, count in groups.items():
            low = high = count
            if group and self.ordered:
                due = [self.due(entry) for entry in self.heads(group)]
                free = not self.flying(group)
                low, high = int(free and all(due)), int(free and any(due))
                if runs and free:
                    low, high = self.run(group)
            elif group and self.group_most:
                low = high = min(count, self.group_most - self.flying(group))
            if group and self.rated:
                low = 0
            least, most = least + low, most + high
        allowed = self.allowed()
        return min(least, allowed), min(most, allowed)

    def allowed(self) -> int:
        found = 1_000
        if cap := int(self.caps["max_in_flight"]):
            found = cap - len(self.in_state("in_flight"))
        if rate := self.caps["rate"]:
            passed = Fraction(self.now_ms - self.tokens_ms, 1000)
            self.tokens = min(self.tokens + passed * Fraction(rate), Fraction(max(1, rate)))
            self.tokens_ms = self.now_ms
            found = min(found, int(self.tokens))
        return found

    @rule(handle=HANDLES, count=COUNTS, picks=st.just([]) | PICKS)
    def claim(self, handle: int, count: int, picks: list[int]) -> None:
        self.settled(handle)
        acked = self.choose(picks)
        for message in acked:
            self.entry_of[message.value].state = "done"
        self.route()
        least, most = self.claimable()
        found = self.queue(handle).claim(count, ack=acked)
        assert min(count, least) <= len(found) <= min(count, most)
        self.delivered(found)
        self.held += found

    @precondition(lambda self: self.ordered)
    @rule(handle=HANDLES, count=COUNTS, picks=st.just([]) | PICKS)
    def claim_runs(self, handle: int, count: int, picks: list[int]) -> None:
        """Claim several messages of each group: all that are routed, in one commit."""
        self.look(handle)
        acked = self.choose(picks)
        for message in acked:
            self.entry_of[message.value].state = "done"
        least, most = self.claimable(runs=True)
        if passing.PASSED_MAX == 1:
            least = 0  # a claim that is cut short takes no more of the groups that it has begun
        found = self.queue(handle).claim(count, ack=acked, group_runs=True)
        assert min(count, least) <= len(found) <= min(count, most)
        self.delivered(found, runs=True)
        self.held += found

    @rule(handle=HANDLES, count=COUNTS)
    def pop(self, handle: int, count: int) -> None:
        self.settled(handle)
        self.route()
        least, most = self.claimable()
        if self.caps["max_in_flight"] or passing.PASSED_MAX == 1:
            count = 1  # what was popped makes room for more, of its group too
        found = self.queue(handle).pop(count)
        assert min(count, least) <= len(found) <= min(count, most)
        self.delivered(found)
        for message in found:
            self.entry_of[message.value].state = "done"

    def delivered(self, found: list[Message], *, runs: bool = False) -> None:
        begun = {self.group(self.entry_of[message.value]) for message in found} if runs else set()
        for group in begun - {""}:
            assert not self.flying(group), "a group that has one in flight"
        for message in found:
            entry = self.entry_of[message.value]
            assert entry.state == "waits", "handed out twice, or back from the dead"
            assert self.due(entry), "before its time"
            group = self.group(entry)
            if group and self.ordered:
                assert runs or not self.flying(group), "two of a group at once"
                assert entry in self.heads(group), "not in the order of its group"
            elif group and self.group_most:
                assert self.flying(group) < self.group_most
            if self.ranked and not entry.redriven:
                self.best(entry)
            self.pay(entry, group)
            assert message.headers == entry.headers
            if entry.claim_id >= 0:
                assert message.claim_id == entry.claim_id
            entry.claim_id = message.claim_id
            entry.tries += 1
            assert message.attempt == entry.tries
            assert self.store_ms(message.until) == self.now_ms + LEASE_MS
            entry.state, entry.until_ms = "in_flight", self.store_ms(message.until)
        if cap := self.caps["max_in_flight"]:
            assert len(self.in_state("in_flight")) <= cap

    def best(self, entry: Entry) -> None:
        others = [self.rank(one) for one in self.waiting() if self.due(one) and not one.redriven]
        assert self.rank(entry) == min(others), "not the best rank"

    def rank(self, entry: Entry) -> int:
        found = entry.headers["p"]
        priority = min(max(found, 0), 9) if isinstance(found, int) else 0
        return entry.wall_ms - priority * STEP_S * 1000

    def pay(self, entry: Entry, group: str) -> None:
        self.tokens -= 1
        rate = self.caps["group_rate"]
        if not group or not rate:
            return
        times = self.paid.setdefault(group, [])
        times.append(self.now_ms)
        for index, since_ms in enumerate(times):
            most = rate * (self.now_ms - since_ms) / 1000 + max(1, rate)
            assert len(times) - index <= most, "more than the rate of a group"

    # How attempts end.

    def live(self) -> list[Message]:
        self.expire()
        return [message for message in self.held if self.is_held(message)]

    def is_held(self, message: Message) -> bool:
        entry = self.entry_of[message.value]
        same = (entry.claim_id, entry.tries) == (message.claim_id, message.attempt)
        return same and entry.state == "in_flight"

    def choose(self, picks: list[int]) -> list[Message]:
        live = self.live()
        chosen = [live[pick % len(live)] for pick in picks if live]
        return list({message.claim_id: message for message in chosen}.values())

    def expire(self) -> None:
        for entry in self.entries:
            if entry.state == "in_flight" and entry.until_ms <= self.now_ms:
                self.end(entry, "nack", 0)
                self.lapsed = True

    def end(self, entry: Entry, outcome: str, delay_ms: int | None) -> None:
        if outcome == "ack":
            entry.state = "done"
        elif outcome == "fail" or entry.tries >= self.most:
            entry.state = "failed"
            self.failures += 1
        else:
            entry.state = "waits"
            entry.due_wall_ms = 0
            entry.due_ms = self.now_ms + (self.backoff_ms if delay_ms is None else delay_ms)

    @precondition(lambda self: self.held)
    @rule(
        handle=HANDLES,
        picks=PICKS,
        outcome=st.sampled_from(["ack", "nack", "nack", "fail"]),
        delay_s=st.none() | st.integers(0, 8),
    )
    def finish(self, handle: int, picks: list[int], outcome: str, delay_s: int | None) -> None:
        chosen = self.choose(picks)
        options: dict[str, Any] = {"delay": delay_s} if outcome == "nack" else {}
        getattr(self.queue(handle), outcome)(chosen, **options)
        for message in chosen:
            delay_ms = None if delay_s is None else delay_s * 1000
            self.end(self.entry_of[message.value], outcome, delay_ms)

    @rule(handle=HANDLES, count=COUNTS, delay_s=st.none() | st.integers(0, 8))
    def claim_and_give_back(self, handle: int, count: int, delay_s: int | None) -> None:
        self.claim(handle, count, [])
        self.finish(1 - handle, list(range(0, 1_000, 3))[: len(self.held)], "nack", delay_s)
        self.claim(handle, count, [])

    @precondition(lambda self: self.held)
    @rule(handle=HANDLES, picks=PICKS)
    def finish_in_steps(self, handle: int, picks: list[int]) -> None:
        chosen = self.choose(picks)
        with self.handles[handle].transaction() as tx:
            for index, message in enumerate(chosen):
                (tx.fail if index % 2 else tx.ack)(message)
        for index, message in enumerate(chosen):
            self.end(self.entry_of[message.value], "fail" if index % 2 else "ack", None)

    @precondition(lambda self: self.held)
    @rule(handle=HANDLES, picks=PICKS)
    def renew(self, handle: int, picks: list[int]) -> None:
        if chosen := self.choose(picks):
            until_ms = self.store_ms(self.queue(handle).renew(chosen))
            for message in chosen:
                self.entry_of[message.value].until_ms = until_ms

    @precondition(lambda self: self.held)
    @rule(handle=HANDLES, pick=st.integers(0, 1_000))
    def come_too_late(self, handle: int, pick: int) -> None:
        late = [one for one in self.held if one.attempt < self.entry_of[one.value].tries]
        if late:
            with pytest.raises(LeaseLost):
                self.queue(handle).ack(late[pick % len(late)])

    # The queue as a whole, and what lies under it.

    @rule(handle=HANDLES)
    def purge(self, handle: int) -> None:
        if self.dedup:
            self.look(handle)  # of what is not routed, nobody knows how much is a repeat
        queue = self.settled(handle)
        gone = self.waiting()
        assert queue.purge() == len(gone)
        self.unrouted.clear()
        for entry in gone:
            entry.state = "gone"

    @rule(handle=HANDLES, pick=st.integers(0, 1_000), by_id=st.booleans())
    def cancel(self, handle: int, pick: int, by_id: bool) -> None:
        """What waits is never handed out then, and its repeat is taken."""
        waiting = self.look(handle)
        if not waiting:
            return
        message = waiting[pick % len(waiting)]
        name = message.id if by_id and message.id is not None else message
        assert self.queue(1 - handle).cancel(name)
        entry = self.entry_of[message.value]
        assert entry.state == "waits"
        entry.state = "gone"
        known = str(entry.headers["d"])
        if self.seen_by.get(known) is entry:
            del self.seen_by[known], self.seen[known]

    @precondition(lambda self: self.held)
    @rule(handle=HANDLES, picks=PICKS)
    def cancel_too_late(self, handle: int, picks: list[int]) -> None:
        for message in self.choose(picks):
            assert not self.queue(handle).cancel(message)

    @rule(handle=HANDLES, limit=st.none() | st.integers(0, 3), rate=st.none() | st.just(0.5))
    def redrive(self, handle: int, limit: int | None, rate: float | None) -> None:
        queue = self.settled(handle)
        chosen = [self.entry_of[message.value] for message in queue.failed()][:limit]
        assert queue.redrive(limit=limit, rate=rate) == len(chosen)
        for index, entry in enumerate(chosen):
            assert entry.state == "failed"
            entry.state = "gone"
            due_ms = self.now_ms + int(index * 1000 / rate) if rate else 0
            self.number += 1
            stream = f"redriven {self.number}"
            made = Entry(entry.value, stream, entry.headers, entry.wall_ms, due_ms)
            made.tries_before = entry.tries_before + entry.tries
            self.entries.append(made)
            self.entry_of[entry.value] = made

    @rule(handle=HANDLES, paused=st.booleans())
    def pause(self, handle: int, paused: bool) -> None:
        queue = self.queue(handle)
        queue.pause() if paused else queue.resume()
        self.paused = paused

    @rule(handle=HANDLES, change=st.sampled_from(["priority_by", "group_by"]))
    def alter_what_is_in_use(self, handle: int, change: str) -> None:
        self.look(handle)
        if self.waiting() or self.in_state("in_flight"):
            with pytest.raises(Conflict):
                self.queue(handle).alter(**{change: "other"})

    @precondition(lambda self: self.grouped)
    @rule(handle=HANDLES, rate=st.sampled_from([0.0, 0.5, 2.0]))
    def alter_rate(self, handle: int, rate: float) -> None:
        """A group's rate may change while messages wait; what it has paid so far still counts."""
        self.queue(handle).alter(group_rate=rate)
        self.caps["group_rate"] = rate
        self.rated = self.rated or bool(rate)
        self.paid.clear()

    @rule(handle=HANDLES, what=st.sampled_from(["fold", "reopen", "keep", "examine", 0, 1, 2]))
    def disturb(self, handle: int, what: str | int) -> None:
        """What nobody may notice: folding, opening again, upkeep, other sizes of buckets."""
        if what == "examine":
            found = examine(Path(self.directory.name) / "model.db").problems
            assert [one for one in found if one.severity != "waste"] == []
        elif what == "fold":
            self.handles[handle].fold()
        elif what == "reopen":
            self.handles[handle].close()
            self.handles[handle] = self.open()
        elif what == "keep":
            Probe(self.handles[handle]).upkeep()
        else:
            self.queue(handle).alter(bucket_exponent=what)

    @rule(handle=HANDLES, log=st.sampled_from((*LOGS, INBOX, LATER)), more=st.integers(-4, 9))
    def truncate(self, handle: int, log: str, more: int) -> None:
        """Up to some record, or past the end: there is a gap then, of which nothing is lost."""
        target = self.handles[handle].log(log)
        target.truncate(before=max(0, target.end_offset() + more), past_end=True)
        target.enforce_retention()

    @rule(seconds=st.integers(1, 12) | st.sampled_from([0.25, 0.5, 3_600]))
    def advance(self, seconds: float) -> None:
        self.clock.advance(seconds)

    @precondition(lambda self: not self.dedup)
    @rule(handle=HANDLES, seconds=st.integers(1, 10))
    def jump(self, handle: int, seconds: int) -> None:
        self.look(handle)  # what is left of a queue's delay is known when it is routed
        self.clock.jump(seconds)

    # What can be seen.

    def in_state(self, state: str) -> list[Entry]:
        return [entry for entry in self.entries if entry.state == state]

    def settled(self, handle: int) -> Queue:
        """The queue, with ended leases taken back."""
        queue = self.queue(handle)
        assert queue.claim(0) == []
        self.expire()
        self.lapsed = False
        return queue

    @invariant()
    def counts_are_right(self) -> None:
        self.expire()
        if not self.handles or self.lapsed:
            return  # whether the store has taken ended leases back by now is its own affair
        info = self.info(self.number % 2)
        for state in ("in_flight", "done", "failed"):
            assert getattr(info, state) == len(self.in_state(state)), state
        self.route()
        placed = info.available + info.delayed
        assert placed <= len(self.waiting()) <= placed + info.unrouted
        assert info.paused == self.paused
        assert info.lost == 0

    def info(self, handle: int) -> QueueInfo:
        info = self.queue(handle).info()
        assert info is not None
        return info

    @rule(handle=HANDLES)
    def peek(self, handle: int) -> None:
        found = self.look(handle)
        assert sorted(one.value for one in found) == sorted(one.value for one in self.waiting())
        info = self.info(handle)
        assert (info.unrouted, info.duplicates) == (0, self.duplicates)
        assert info.available + info.delayed == len(found)
        if not self.ordered and not self.rated:  # see test_groups for these
            assert info.delayed == sum(not self.due(entry) for entry in self.waiting())

    @rule(handle=HANDLES, state=st.sampled_from(["in_flight", "failed"]))
    def peek_at_others(self, handle: int, state: str) -> None:
        found = self.settled(handle).peek(1_000, state=state)
        expected = self.in_state(state)
        assert sorted(one.value for one in found) == sorted(one.value for one in expected)
        for message in found:
            entry = self.entry_of[message.value]
            assert message.attempt == entry.tries
            told = self.queue(handle).attempts(message)
            assert len(told) == entry.tries_before + entry.tries

    def nothing_is_lost(self) -> None:
        """At the end, everything that was not finished can be had."""
        queue = self.queue(0)
        queue.resume()
        self.paused = False
        queue.alter(rate=0.0, max_in_flight=0)
        self.caps.update(rate=0.0, max_in_flight=0)
        for _ in range(150):
            self.clock.advance(5)
            self.claim(0, 30, [])
            live = self.live()
            queue.ack(live)
            for message in live:
                self.entry_of[message.value].state = "done"
            if not self.waiting() and not self.in_state("in_flight"):
                break
        else:
            raise AssertionError("messages are stuck")
        self.settled(0)
        self.counts_are_right()
        self.peek(1)
        self.disturb(0, "examine")
        dead = self.handles[0].log("dead").info()
        assert (0 if dead is None else dead.end_offset) == self.failures


TestOrderedQueueModel = OrderedQueueMachine.TestCase
TestOrderedQueueModel.settings = hypothesis.settings(
    stateful_step_count=40,
    max_examples=min(500, hypothesis.settings().max_examples * 3 // 2),
    suppress_health_check=[hypothesis.HealthCheck.too_slow, hypothesis.HealthCheck.data_too_large],
)
