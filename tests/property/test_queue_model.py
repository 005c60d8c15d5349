"""A queue against a model in plain Python, through every road that a message can take.

The machine appends, puts, claims, finishes with good, stale and repeated claims, lets leases end,
jumps the wall clock, purges, cancels, redrives, replaces what has failed, pauses, truncates logs, alters the
bucket size, deletes the queue and makes it again, folds with tiny limits, closes and opens again, and
does each through either of two handles on one file.
Promises:

- No message is lost, none is held by two at once, and each is delivered in its log's order first.
- One acknowledgement is accepted; the same again is a success, a stale one is `LeaseLost`, and then
  nothing of that call has happened.
- Ended leases are delivered again, delays are honoured, and jumps of the wall clock do neither.
- Counts, attempts and payloads are right, also after a truncation, a fold or a reopen; attempts go on
  through a redrive.
- What is done is forgotten once its retention is over, within a minute and not before; its
  acknowledgement can be repeated for ten minutes, whatever the retention.
- The age of a queue is that of a message that can be claimed: no delayed one has an age, and none is
  older than since it was appended, or is due.
- What waits can be cancelled, by its id or as a peek shows it, and nothing else can; it is never
  delivered, and its state is told as long as that of what is done.
- What is in flight can be asked to stop: it is cancelled if its attempt is given back or its lease
  ends, and keeps its end if it is acknowledged or fails.
- The result of what is done, and the last error and progress of all else, are told as they were
  given by the one whose lease held; a repeat changes none of it.
- The RFC's records, made at any time, say of every message what the queue says.
"""

from __future__ import annotations

import tempfile
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

import hypothesis
import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

import millstream
from millstream import Limits, Millstream
from millstream.errors import LeaseLost
from millstream.format import rfc
from millstream.queue.model.message import Message
from millstream.queue.model.own_logs import LATER_ID, later_of
from millstream.record import wall_ms_of
from millstream.testing import Probe, SimulatedClock
from millstream.threads.queue import Queue
from tests.property.background import at_rest, peek_and_route

LOGS = ("l.a", "l.b")
INBOX = "queue:q"
HANDLES = st.integers(0, 1)
COUNTS = st.integers(1, 4) | st.just(30)
PICKS = st.lists(st.integers(0, 1_000), min_size=1, max_size=4)
FOR_EVER_MS = 10**15
REPEATS_MS = 600_000
"""How long an acknowledgement can be repeated, whatever the retention."""

OUTCOMES = {"ack": "done", "nack": "again", "fail": "failed"}
LIMITS = st.builds(
    Limits,
    inline_bytes_max=st.sampled_from([0, 40, 2_048]),
    fold_slice_deltas=st.sampled_from([1, 3, 256]),
    fold_deltas_min=st.sampled_from([1, 5, 10_000]),
    tail_deltas_max=st.sampled_from([3, 10_000]),
    entities_cached_max=st.sampled_from([1, 10_000]),
    group_operations_max=st.just(8),
)


@dataclass
class Attempt:
    """One claim of a message, and how it ended."""

    claimed_ms: int
    consumer: str
    outcome: str = "in_flight"
    reason: str = ""


@dataclass(eq=False)
class Entry:
    """A message under one claim id; a redriven one is another entry."""

    log: str
    offset: int
    value: bytes
    claim_id: int | None = None
    state: str = "unrouted"
    due_ms: int = 0
    until_ms: int = 0
    done_ms: int = 0
    came_ms: int = 0
    """When it was appended, redriven or replaced, in store time."""
    again: bool = False
    """Whether it was redriven."""
    requested: bool = False
    """Whether its consumer is asked to stop."""
    result: bytes | None = None
    error: bytes | None = None
    progress: bytes | None = None
    past: list[Attempt] = field(default_factory=list)
    """The attempts before that."""
    tries: list[Attempt] = field(default_factory=list)


def decoded(
    records: list[rfc.RfcRecord],
) -> tuple[dict[str, dict[int, int]], list[list[tuple[int, str]]]]:
    """Of each state, the claim ids and how often each was claimed; and all attempts at messages."""
    states: dict[str, dict[int, int]] = {
        state: {} for state in ("available", "in_flight", "done", "failed")
    }
    attempts = []
    for record in records:
        match rfc.RecordType(record.key[1]):
            case rfc.RecordType.ACTIVE:
                available, in_flight = rfc.decode_active(record.value)
                states["available"] |= {one.claim_id: one.attempts for one in available}
                states["in_flight"] |= {one.claim_id: one.attempts for one in in_flight}
                assert all(one.metadata for one in (*available, *in_flight))
            case rfc.RecordType.DONE:
                done = rfc.decode_finished(record.value)
                states["done"] |= {one.claim_id: one.attempts for one in done}
            case rfc.RecordType.FAILED:
                failed = rfc.decode_finished(record.value)
                states["failed"] |= {one.claim_id: one.attempts for one in failed}
            case rfc.RecordType.ATTEMPTS:
                made = rfc.decode_attempts(record.value)
                attempts.append([(one.claimed_at_ms, one.consumer_id) for one in made])
    return states, attempts


class QueueMachine(RuleBasedStateMachine):
    """Two handles on one file, and how the queue should stand."""

    def __init__(self) -> None:
        super().__init__()
        self.directory = tempfile.TemporaryDirectory()
        self.clock = SimulatedClock()
        self.handles: list[Millstream] = []
        self.entries: list[Entry] = []
        self.by_claim: dict[int, Entry] = {}
        self.held: list[Message] = []
        self.ends: dict[str, int] = dict.fromkeys((*LOGS, INBOX), 0)
        self.first: dict[str, int] = dict.fromkeys((*LOGS, INBOX), -1)
        self.paused = self.altered = self.lapsed = self.went_back = self.jumped = False
        self.number = self.cancelled = 0

    @initialize(
        limits=LIMITS,
        exponent=st.integers(0, 2),
        most=st.integers(1, 3),
        backoff_s=st.sampled_from([0, 5]),
        delay_s=st.sampled_from([0, 0, 3]),
        retention_s=st.sampled_from([0, 1, 30, 700]),
    )
    def begin(
        self,
        limits: Limits,
        exponent: int,
        most: int,
        backoff_s: int,
        delay_s: int,
        retention_s: int,
    ) -> None:
        self.limits, self.retention_ms = limits, retention_s * 1000 or FOR_EVER_MS
        self.most, self.backoff_ms, self.delay_ms = most, backoff_s * 1000, delay_s * 1000
        self.handles = [self.open(), self.open()]
        self.make(0, exponent)

    def make(self, handle: int, exponent: int) -> None:
        self.handles[handle].create_queue(
            "q",
            sources="l.*",
            filter="take = TRUE",
            lease=10,
            max_attempts=self.most,
            backoff=self.backoff_ms / 1000,
            delay=self.delay_ms / 1000,
            bucket_exponent=exponent,
            done_retention=0 if self.retention_ms == FOR_EVER_MS else self.retention_ms / 1000,
        )

    def open(self) -> Millstream:
        path = Path(self.directory.name) / "model.db"
        return millstream.open(path, limits=self.limits, clock=self.clock, durability="relaxed")

    def teardown(self) -> None:
        try:
            if self.handles:
                self.nothing_is_lost()
        finally:
            for handle in self.handles:
                handle.close()
            self.directory.cleanup()

    def queue(self, handle: int) -> Queue:
        return self.handles[handle].queue("q")

    @property
    def now_ms(self) -> int:
        return self.clock.boot_ms()

    def store_ms(self, told: datetime | None) -> int:
        """The store time of a moment that was just told."""
        return 0 if told is None else wall_ms_of(told) - self.clock.wall_ms() + self.now_ms

    # What comes in.

    @rule(handle=HANDLES, log=st.sampled_from(LOGS), takes=st.lists(st.booleans(), max_size=12))
    def append(self, handle: int, log: str, takes: list[bool]) -> None:
        values = [self.value() for _ in takes]
        headers = [{"take": take} for take in takes]
        self.handles[handle].log(log).append_many(values, headers=headers)
        self.came(log, values, takes)

    @rule(handle=HANDLES, count=st.integers(1, 12))
    def put(self, handle: int, count: int) -> None:
        values = [self.value() for _ in range(count)]
        if count == 1:
            assert self.queue(handle).put(values[0]) == self.ends[INBOX]
        else:
            assert len(self.queue(handle).put_many(values)) == count
        self.came(INBOX, values, [True] * count)

    def value(self) -> bytes:
        self.number += 1
        return b"%d:" % self.number + b"x" * (self.number % 3 * 40)

    def came(self, log: str, values: list[bytes], takes: list[bool]) -> None:
        for value, take in zip(values, takes, strict=True):
            if take:
                self.entries.append(Entry(log, self.ends[log], value, came_ms=self.now_ms))
            self.ends[log] += 1
        if self.delay_ms:
            # Else the background routes sooner or later, and a delay counts from then. A peek routes
            # for its answer alone while a keeper, of either handle, has a commit in flight.
            with at_rest(self.handles):
                peek_and_route(self.handles[0], "q", 0)
            for entry in self.in_state("unrouted"):
                entry.state, entry.due_ms = "available", self.now_ms + self.delay_ms

    # What goes out.

    @rule(
        handle=HANDLES,
        count=COUNTS,
        lease_s=st.none() | st.integers(1, 20),
        consumer=st.sampled_from(["ann", "bob"]),
        picks=st.just([]) | PICKS,
    )
    def claim(
        self, handle: int, count: int, lease_s: int | None, consumer: str, picks: list[int]
    ) -> None:
        chosen = self.choose(picks)
        results = self.results_for(chosen)
        if self.judge(chosen, "ack") == "lost":
            with pytest.raises(LeaseLost):
                self.queue(handle).claim(count, ack=chosen, results=results)
            return
        self.settle_first(handle)
        self.finished(chosen, "ack", results=results)
        claimable = self.claimable()
        found = self.queue(handle).claim(
            count, lease=lease_s, consumer=consumer, ack=chosen, results=results
        )
        lease_ms = 10_000 if lease_s is None else lease_s * 1000
        assert len(found) == min(count, len(claimable))
        for message in found:
            entry = self.delivered(message, claimable, consumer)
            assert self.store_ms(message.until) == self.now_ms + lease_ms
            entry.state, entry.until_ms = "in_flight", self.store_ms(message.until)
        self.held += found

    @rule(handle=HANDLES, count=COUNTS)
    def pop(self, handle: int, count: int) -> None:
        self.settle_first(handle)
        claimable = self.claimable()
        queue = self.queue(handle)
        found = queue.pop(count)
        assert len(found) == min(count, len(claimable))
        for message in found:
            entry = self.delivered(message, claimable, queue._consumer)
            entry.state, entry.tries[-1].outcome, entry.done_ms = "done", "done", self.now_ms
        self.held += found

    def settle_first(self, handle: int) -> None:
        """A claim does not yet give out what it takes back itself: see test_leases.py."""
        self.settled(handle)

    def claimable(self) -> list[Entry]:
        """What a claim may answer."""
        self.expire()
        if self.paused:
            return []
        return [
            entry
            for entry in self.entries
            if entry.state == "unrouted"
            or (entry.state == "available" and entry.due_ms <= self.now_ms)
        ]

    def delivered(self, message: Message, claimable: list[Entry], consumer: str) -> Entry:
        entry = self.by_claim.get(message.claim_id)
        if entry is None:
            (entry,) = [
                one
                for one in claimable
                if one.claim_id is None and (one.log, one.offset) == (message.log, message.offset)
            ]
            entry.claim_id = message.claim_id
            self.by_claim[message.claim_id] = entry
            # What was held back is ranked by the wall clock, so that has to go forward.
            if not entry.again and not (self.delay_ms and (self.altered or self.went_back)):
                assert entry.offset > self.first[entry.log], "not in the order of the log"
                self.first[entry.log] = entry.offset
        assert entry in claimable, f"{entry} was not there to be claimed"
        claimable.remove(entry)
        entry.tries.append(Attempt(self.now_ms, consumer))
        assert message.attempt == len(entry.tries)
        self.same(message, entry)
        return entry

    def same(self, message: Message, entry: Entry) -> None:
        assert (message.log, message.offset) == (entry.log, entry.offset)
        assert message.value == entry.value
        assert message.headers == ({"take": True} if entry.log in LOGS else {})

    # How attempts end.

    def choose(self, picks: list[int]) -> list[Message]:
        """Some of what was ever claimed, mostly of late; nothing twice.

        Of what was done too long ago it is not known whether an acknowledgement is recognised.
        """
        known = [one for one in self.held if not self.is_old(self.by_claim[one.claim_id])]
        chosen = [known[-1 - pick % min(len(known), 12)] for pick in picks if known]
        unique = {message.claim_id: message for message in chosen}
        return list(unique.values())

    def is_old(self, entry: Entry) -> bool:
        """Whether it was done so long ago that its acknowledgement may be forgotten."""
        kept_ms = max(self.retention_ms, REPEATS_MS)
        return entry.state == "done" and entry.done_ms + kept_ms <= self.now_ms

    def is_over(self, entry: Entry, late_ms: int = 0) -> bool:
        """Whether it is done or cancelled, and its retention is over, for so long."""
        over_ms = entry.done_ms + self.retention_ms + late_ms
        return entry.state in ("done", "cancelled") and over_ms <= self.now_ms

    def judge(self, messages: list[Message], outcome: str) -> str:
        """What becomes of a call: 'fine', or 'lost' if the lease of any message was lost."""
        self.expire()
        verdicts = [self.judge_one(message, outcome) for message in messages]
        return "lost" if "lost" in verdicts else "fine"

    def judge_one(self, message: Message, outcome: str) -> str:
        entry = self.by_claim[message.claim_id]
        if message.attempt != len(entry.tries):
            return "lost"
        if entry.state == "in_flight":
            return "held"
        if outcome == "nack":
            ended = entry.tries[-1].reason != "lease expired"
            if entry.state == "cancelled" and entry.tries[-1].outcome == "cancelled":
                return "repeated" if ended else "lost"
            is_last = entry.state == "failed" and len(entry.tries) >= self.most
            return "repeated" if (entry.state == "available" or is_last) and ended else "lost"
        return "repeated" if entry.state == OUTCOMES[outcome] else "lost"

    def results_for(self, messages: list[Message]) -> list[bytes | None]:
        """Results for some of the messages: none, small ones and large ones."""
        self.number += 1
        sizes = [None, 10, 3_000]
        chosen = [sizes[(self.number + message.claim_id) % 3] for message in messages]
        return [None if size is None else b"%d" % self.number * size for size in chosen]

    def finished(
        self,
        messages: list[Message],
        outcome: str,
        delay_ms: int | None = None,
        *,
        results: list[bytes | None] | None = None,
        error: bytes | None = None,
    ) -> None:
        given = results or [None] * len(messages)
        for message, result in zip(messages, given, strict=True):
            if self.judge_one(message, outcome) == "held":
                entry = self.by_claim[message.claim_id]
                self.end(entry, outcome, "why", delay_ms)
                entry.result = result
                if error is not None:
                    entry.error, entry.progress = error, None

    def end(self, entry: Entry, outcome: str, reason: str, delay_ms: int | None) -> None:
        state = OUTCOMES[outcome]
        if state == "again" and entry.requested:
            self.was_cancelled(entry)
            entry.tries[-1].outcome, entry.tries[-1].reason = "cancelled", reason
            return
        if state == "again" and len(entry.tries) >= self.most:
            state = "failed"
        entry.requested = False
        entry.tries[-1].outcome, entry.tries[-1].reason = state, reason
        entry.state = "available" if state == "again" else state
        entry.done_ms = self.now_ms
        entry.due_ms = self.now_ms + (self.backoff_ms if delay_ms is None else delay_ms)

    def expire(self) -> None:
        for entry in self.entries:
            if entry.state == "in_flight" and entry.until_ms <= self.now_ms:
                self.end(entry, "nack", "lease expired", 0)
                self.lapsed = True

    @precondition(lambda self: self.held)
    @rule(
        handle=HANDLES,
        picks=PICKS,
        outcome=st.sampled_from(["ack", "nack", "fail"]),
        delay_s=st.none() | st.integers(0, 8),
        twice=st.booleans(),
    )
    def finish(
        self, handle: int, picks: list[int], outcome: str, delay_s: int | None, twice: bool
    ) -> None:
        chosen = self.choose(picks)
        queue = self.queue(handle)
        options: dict[str, Any] = {"delay": delay_s} if outcome == "nack" else {}
        results, error = None, None
        if outcome != "ack":
            self.number += 1
            error = b"error %d" % self.number if self.number % 2 else None
            options |= {"reason": "why", "error": error}
        else:
            results = self.results_for(chosen)
            options["result"] = results
        lost = self.judge(chosen, outcome) == "lost"
        if outcome == "fail" and any(self.failed_by_expiry(message) for message in chosen):
            return  # what it is told depends on the upkeep: see test_leases.py
        for _ in range(2 if twice else 1):
            if lost:
                with pytest.raises(LeaseLost):
                    getattr(queue, outcome)(chosen, **options)
            else:
                getattr(queue, outcome)(chosen, **options)
                delay_ms = None if delay_s is None else delay_s * 1000
                self.finished(chosen, outcome, delay_ms, results=results, error=error)

    def failed_by_expiry(self, message: Message) -> bool:
        entry = self.by_claim[message.claim_id]
        return entry.state == "failed" and entry.tries[-1].reason == "lease expired"

    @precondition(lambda self: self.held)
    @rule(handle=HANDLES, picks=PICKS, outcome=st.sampled_from(["ack", "nack", "fail"]))
    def finish_each(self, handle: int, picks: list[int], outcome: str) -> None:
        chosen = self.choose(picks)
        self.expire()
        if outcome == "fail" and any(self.failed_by_expiry(message) for message in chosen):
            return  # what it is told depends on the upkeep: see test_leases.py
        verdicts = [self.judge_one(message, outcome) for message in chosen]
        if "repeated" in verdicts:
            return  # `finish` has the repeats
        lost = [one for one, verdict in zip(chosen, verdicts, strict=True) if verdict == "lost"]
        reason = "" if outcome == "ack" else "why"
        assert self.queue(handle).finish_each(chosen, outcome, reason=reason) == lost
        self.finished(chosen, outcome)

    @precondition(lambda self: self.held)
    @rule(handle=HANDLES, picks=PICKS, log=st.sampled_from(LOGS))
    def finish_in_a_transaction(self, handle: int, picks: list[int], log: str) -> None:
        chosen = self.choose(picks)
        lost = self.judge(chosen, "ack") == "lost"
        value = self.value()

        def commit() -> None:
            with self.handles[handle].transaction() as tx:
                tx.append(log, value, headers={"take": True})
                tx.ack(chosen)

        if lost:
            with pytest.raises(LeaseLost):
                commit()
        else:
            commit()
            self.came(log, [value], [True])
            self.finished(chosen, "ack")

    @precondition(lambda self: self.held)
    @rule(handle=HANDLES, picks=PICKS, size=st.sampled_from([1, 3_000]))
    def note_progress(self, handle: int, picks: list[int], size: int) -> None:
        chosen, progress = self.choose(picks), b"p" * size
        self.expire()
        if any(self.judge_one(message, "ack") != "held" for message in chosen):
            with pytest.raises(LeaseLost):
                self.queue(handle).note_progress(chosen, progress)
            return
        self.queue(handle).note_progress(chosen, progress)
        for message in chosen:
            self.by_claim[message.claim_id].progress = progress

    @precondition(lambda self: self.held)
    @rule(handle=HANDLES, picks=PICKS, in_transaction=st.booleans())
    def ask_to_stop(self, handle: int, picks: list[int], in_transaction: bool) -> None:
        """What is in flight is asked; of what has ended, the state is told."""
        self.settled(handle)
        for message in self.choose(picks):
            entry = self.by_claim[message.claim_id]
            if entry.state not in ("in_flight", "done", "failed") or self.is_over(entry):
                continue
            self.ask(handle, message, in_transaction=in_transaction)

    @rule(
        handle=HANDLES,
        count=st.integers(1, 6),
        ending=st.sampled_from(["nack", "fail", "ack", "expire"]),
        in_transaction=st.booleans(),
    )
    def stop_what_runs(self, handle: int, count: int, ending: str, in_transaction: bool) -> None:
        """Every second message that was claimed just now is asked to stop; then all of them end."""
        self.put(handle, count)
        self.claim(handle, count, None, "ann", [])
        held = [one for one in self.held[-count:] if self.is_held(one)]
        for message in held[::2]:
            self.ask(handle, message, in_transaction=in_transaction)
        if ending == "expire":
            self.clock.advance(20)
            self.settled(handle)
        else:
            error = None if ending == "ack" else b"error %d" % self.number
            results = self.results_for(held) if ending == "ack" else None
            self.queue(handle).finish_each(held, ending, reason="why", result=results, error=error)
            self.finished(held, ending, results=results, error=error)
        for number in range(len(self.entries)):
            self.look_at_notes(1 - handle, number)

    def ask(self, handle: int, message: Message, *, in_transaction: bool) -> None:
        entry = self.by_claim[message.claim_id]
        if in_transaction:
            with self.handles[handle].transaction() as tx:
                later = tx.cancel("q", message, running=True)
            outcome = later.result
        else:
            outcome = self.queue(handle).cancel(message, running=True)
        assert outcome == ("requested" if entry.state == "in_flight" else False)
        entry.requested = entry.state == "in_flight"

    @rule(handle=HANDLES, pick=st.integers(0, 1_000))
    def look_at_notes(self, handle: int, pick: int) -> None:
        self.settled(handle)
        known = [one for one in self.entries if one.log == INBOX and one.state != "gone"]
        known = [one for one in known if not self.is_over(one)]
        if not known:
            return
        entry = known[pick % len(known)]
        fate = self.queue(handle).message(entry.offset)
        is_done = entry.state == "done"
        assert fate.result == (entry.result if is_done else None)
        assert fate.error == (None if is_done else entry.error)
        assert fate.progress == (None if is_done else entry.progress)
        assert fate.is_cancel_requested == entry.requested

    @precondition(lambda self: self.held)
    @rule(handle=HANDLES, picks=PICKS, lease_s=st.integers(1, 20))
    def renew(self, handle: int, picks: list[int], lease_s: int) -> None:
        chosen = self.choose(picks)
        self.expire()
        if any(self.judge_one(message, "ack") != "held" for message in chosen):
            with pytest.raises(LeaseLost):
                self.queue(handle).renew(chosen, lease=lease_s)
            return
        until_ms = self.store_ms(self.queue(handle).renew(chosen, lease=lease_s))
        assert until_ms == self.now_ms + lease_s * 1000
        for message in chosen:
            self.by_claim[message.claim_id].until_ms = until_ms

    @rule(handle=HANDLES, count=COUNTS)
    def let_leases_end_and_claim_again(self, handle: int, count: int) -> None:
        self.clock.advance(20)
        self.claim(handle, count, None, "ann", [])

    def acknowledged(self) -> list[Message]:
        """What was done, not too long ago."""
        return [
            one
            for one in self.held
            if one.attempt == len(self.by_claim[one.claim_id].tries)
            and self.by_claim[one.claim_id].state == "done"
            and not self.is_old(self.by_claim[one.claim_id])
        ]

    @rule(
        handle=HANDLES,
        count=st.integers(1, 12),
        seconds=st.sampled_from([0, 40, 400]),
        keeps=st.booleans(),
    )
    def finish_and_acknowledge_again(
        self, handle: int, count: int, seconds: int, keeps: bool
    ) -> None:
        self.put(handle, count)
        self.claim(handle, count, None, "ann", [])
        held = [one for one in self.held[-count:] if self.is_held(one)]
        done = held[1:] if keeps else held
        self.queue(handle).ack(done)
        self.finished(done, "ack")
        self.clock.advance(seconds)
        self.tend(handle)
        self.queue(1 - handle).ack(self.acknowledged())

    def stale(self) -> list[Message]:
        return [one for one in self.held if one.attempt < len(self.by_claim[one.claim_id].tries)]

    @precondition(lambda self: self.stale())
    @rule(handle=HANDLES, pick=st.integers(0, 1_000), end=st.sampled_from([*OUTCOMES, "renew"]))
    def come_too_late(self, handle: int, pick: int, end: str) -> None:
        found = self.stale()
        with pytest.raises(LeaseLost):
            getattr(self.queue(handle), end)(found[pick % len(found)])

    # The queue as a whole, and what lies under it.

    @rule(handle=HANDLES)
    def purge(self, handle: int) -> None:
        queue = self.settled(handle)
        with at_rest(self.handles):  # of what is not routed, nobody knows how much it takes
            peeked = peek_and_route(self.handles[handle], "q", 1_000)
            gone = [self.find_available(message) for message in peeked]
            assert queue.purge() == len(gone)
        for entry in gone:
            entry.state = "gone"

    def find_available(self, message: Message) -> Entry:
        known = self.by_claim.get(message.claim_id)
        if known is None:
            (known,) = [
                one
                for one in self.entries
                if one.claim_id is None
                and one.state in ("unrouted", "available")
                and (one.log, one.offset) == (message.log, message.offset)
            ]
        assert known.state in ("unrouted", "available")
        self.same(message, known)
        return known

    @rule(handle=HANDLES, pick=st.integers(0, 1_000))
    def cancel(self, handle: int, pick: int) -> None:
        """By the id that put returned."""
        own = {INBOX: 0, later_of("q"): LATER_ID}
        known = [one for one in self.entries if one.log in own and one.state != "gone"]
        if not known:
            return
        self.expire()
        entry = known[pick % len(known)]
        id = own[entry.log] + entry.offset
        waits = entry.state in ("unrouted", "available")
        if self.is_over(entry):
            self.queue(handle).cancel(id)  # it may be forgotten
            return
        assert self.queue(handle).cancel(id) == (waits or entry.state == "cancelled")
        if waits:
            self.was_cancelled(entry)
        elif not self.lapsed:
            told = self.queue(1 - handle).message(id)
            assert told.state == entry.state
            assert told.attempts == len(entry.tries)

    @rule(handle=HANDLES, pick=st.integers(0, 1_000))
    def cancel_what_a_peek_shows(self, handle: int, pick: int) -> None:
        self.settled(handle)
        with at_rest(self.handles):
            peeked = peek_and_route(self.handles[handle], "q", 1_000)
        if peeked:
            message = peeked[pick % len(peeked)]
            assert self.queue(handle).cancel(message)
            self.was_cancelled(self.find_available(message))

    def was_cancelled(self, entry: Entry) -> None:
        entry.state, entry.done_ms, entry.requested = "cancelled", self.now_ms, False
        self.cancelled += 1

    @rule(handle=HANDLES)
    def purge_failed(self, handle: int) -> None:
        failed = [entry for entry in self.in_state("failed") if entry]
        assert self.settled(handle).purge(state="failed") == len(failed)
        for entry in failed:
            entry.state = "gone"

    @precondition(lambda self: not self.delay_ms)  # see test_redrive.py for queues with a delay
    @rule(handle=HANDLES, limit=st.none() | st.integers(0, 3))
    def redrive(self, handle: int, limit: int | None) -> None:
        queue = self.settled(handle)
        chosen = [self.by_claim[message.claim_id] for message in queue.failed()][:limit]
        assert queue.redrive(limit=limit) == len(chosen)
        for entry in chosen:
            assert entry.state == "failed"
            entry.state = "gone"
            past = [*entry.past, *entry.tries]
            self.entries.append(Entry(entry.log, entry.offset, entry.value, again=True, past=past))
            self.entries[-1].error, self.entries[-1].progress = entry.error, entry.progress
            self.entries[-1].state = "available"
            self.entries[-1].came_ms = self.now_ms

    @precondition(
        lambda self: not self.delay_ms and any(one.state == "failed" for one in self.entries)
    )
    @rule(handle=HANDLES, value=st.binary(max_size=5))
    def replace_failed(self, handle: int, value: bytes) -> None:
        queue = self.settled(handle)
        failed = next(iter(queue.failed()), None)
        if failed is None:
            return
        entry = self.by_claim[failed.claim_id]
        assert entry.state == "failed"
        offset = queue.replace(failed, value) - LATER_ID
        entry.state = "gone"
        past = [*entry.past, *entry.tries]
        self.entries.append(Entry(later_of(queue.name), offset, value, again=True, past=past))
        self.entries[-1].state = "available"
        self.entries[-1].came_ms = self.now_ms

    @rule(handle=HANDLES, paused=st.booleans())
    def pause(self, handle: int, paused: bool) -> None:
        queue = self.queue(handle)
        queue.pause() if paused else queue.resume()
        self.paused = paused

    @rule(
        handle=HANDLES,
        log=st.sampled_from((*LOGS, INBOX)),
        share=st.floats(0, 1),
        beyond=st.just(0) | st.integers(0, 9),
    )
    def truncate(self, handle: int, log: str, share: float, beyond: int) -> None:
        """Up to some record, or past the end: there is a gap then, of which nothing is lost."""
        target = self.handles[handle].log(log)
        before = self.ends[log] + beyond if beyond else round(share * self.ends[log])
        target.truncate(before=before, past_end=True)
        self.ends[log] = max(self.ends[log], before)
        target.enforce_retention()

    @rule(handle=HANDLES, exponent=st.integers(0, 2))
    def alter(self, handle: int, exponent: int) -> None:
        self.queue(handle).alter(bucket_exponent=exponent)
        self.altered = True

    @rule(handle=HANDLES, maker=HANDLES, exponent=st.integers(0, 2))
    def make_again(self, handle: int, maker: int, exponent: int) -> None:
        """What was claimed of the old one is still held, and counts for nothing."""
        self.settled(handle)
        assert self.queue(handle).delete()
        self.make(maker, exponent)
        for entry in self.entries:
            entry.state = "gone"
        self.ends[INBOX], self.first[INBOX] = 0, -1
        self.paused, self.cancelled = False, 0

    @rule(handle=HANDLES)
    def fold(self, handle: int) -> None:
        self.handles[handle].fold()

    @rule(handle=HANDLES)
    def reopen(self, handle: int) -> None:
        self.handles[handle].close()
        self.handles[handle] = self.open()

    @rule(seconds=st.integers(1, 15))
    def advance(self, seconds: int) -> None:
        self.clock.advance(seconds)

    @rule(seconds=st.sampled_from([60, 601, 1_500]), tended=st.booleans())
    def let_much_time_pass(self, seconds: int, tended: bool) -> None:
        self.clock.advance(seconds)
        if tended:
            self.tend(self.number % 2)

    @rule(handle=HANDLES)
    def tend(self, handle: int) -> None:
        """Do what the background does; then nothing is remembered for a minute too long."""
        Probe(self.handles[handle]).upkeep()
        self.expire()
        self.lapsed = False
        info = self.queue(handle).info()
        assert info is not None
        most = [entry for entry in self.in_state("done") if not self.is_over(entry, 60_000)]
        assert info.done <= len(most)

    @rule(seconds=st.integers(-100_000, 100_000))
    def jump(self, seconds: int) -> None:
        self.clock.jump(seconds)
        self.went_back = self.went_back or seconds < 0
        self.jumped = self.jumped or seconds != 0

    # What can be seen.

    def in_state(self, state: str) -> list[Entry]:
        self.expire()
        return [entry for entry in self.entries if entry.state == state]

    def settled(self, handle: int) -> Queue:
        """The queue, with ended leases taken back."""
        queue = self.queue(handle)
        assert queue.claim(0) == []
        self.expire()
        self.lapsed = False
        return queue

    @rule(handle=HANDLES)
    def settle(self, handle: int) -> None:
        self.settled(handle)

    @invariant()
    def counts_are_right(self) -> None:
        self.expire()
        if not self.handles or self.lapsed:
            return  # whether the store has taken ended leases back by now is its own affair
        info = self.queue(self.number % 2).info()
        assert info is not None
        for state in ("in_flight", "failed"):
            assert getattr(info, state) == len(self.in_state(state)), state
        done = self.in_state("done")
        assert sum(not self.is_over(entry) for entry in done) <= info.done <= len(done)
        available = self.in_state("available")
        delayed = [entry for entry in available if entry.due_ms > self.now_ms]
        assert info.delayed == len(delayed)
        waiting = len(available) - len(delayed) + len(self.in_state("unrouted"))
        assert info.available <= waiting <= info.available + info.unrouted
        assert info.lost == 0
        assert info.cancelled == self.cancelled
        assert info.paused == self.paused
        self.age_is_right(info.oldest_s, unrouted=info.unrouted)

    def age_is_right(self, oldest_s: float | None, *, unrouted: int) -> None:
        ready = [
            max(entry.came_ms, entry.due_ms)
            for entry in (*self.in_state("available"), *self.in_state("unrouted"))
            if entry.due_ms <= self.now_ms
        ]
        if ready:
            assert oldest_s is not None
            # A wall clock that is set forward makes everything older that is not delayed.
            if not self.jumped and not unrouted:  # some of what is not routed may not match
                assert 0 <= oldest_s <= (self.now_ms - min(ready)) / 1000
        elif not unrouted:
            assert oldest_s is None

    @rule(handle=HANDLES, state=st.sampled_from(["in_flight", "failed", "done"]))
    def peek(self, handle: int, state: str) -> None:
        queue = self.settled(handle)
        expected = {entry.claim_id: entry for entry in self.in_state(state)}
        found = queue.peek(1_000, state=state)
        if state == "done":  # the payloads of what is done may be gone
            kept = {one for one, entry in expected.items() if not self.is_over(entry)}
            assert kept <= {message.claim_id for message in found} <= set(expected)
            return
        assert {message.claim_id for message in found} == set(expected)
        for message in found:
            self.same(message, expected[message.claim_id])

    @precondition(lambda self: self.held)
    @rule(handle=HANDLES, pick=st.integers(0, 1_000))
    def attempts(self, handle: int, pick: int) -> None:
        queue = self.settled(handle)
        self.expire()
        message = self.held[pick % len(self.held)]
        found = [
            Attempt(self.store_ms(one.claimed), one.consumer, one.outcome, one.reason)
            for one in queue.attempts(message)
        ]
        entry = self.by_claim[message.claim_id]
        expected = [] if entry.state == "gone" else [*entry.past, *entry.tries]
        if self.is_over(entry) and not found:
            return
        for one, other in zip(found, expected, strict=True):
            one.reason = other.reason if other.outcome == "done" else one.reason
        assert found == expected

    @rule(handle=HANDLES)
    def records(self, handle: int) -> None:
        queue = self.settled(handle)
        found = list(queue.records())
        assert [record.key for record in found] == sorted({record.key for record in found})
        states, attempts = decoded(found)
        for state, messages in states.items():
            if state != "available":
                expected = {entry.claim_id: entry for entry in self.in_state(state)}
                kept = {one for one, entry in expected.items() if not self.is_over(entry)}
                assert kept <= set(messages) <= set(expected)
                for claim_id, attempt in messages.items():
                    assert attempt == len(expected[claim_id].tries)
        waiting = [entry for entry in self.entries if entry.state in ("available", "unrouted")]
        assert len(states["available"]) <= len(waiting)
        # What is over may be forgotten in the background between two looks of one listing.
        told = Counter(map(tuple, attempts))
        known = [entry for entry in self.entries if entry.state != "gone"]
        assert (
            self.tries_of(e for e in known if not self.is_over(e)) <= told <= self.tries_of(known)
        )

    def tries_of(self, entries: Iterable[Entry]) -> Counter[tuple[tuple[int, str], ...]]:
        """The attempts at messages that had any, as the records tell them."""
        found = (
            tuple((one.claimed_ms, one.consumer) for one in (*entry.past, *entry.tries))
            for entry in entries
        )
        return Counter(filter(None, found))

    def nothing_is_lost(self) -> None:
        """At the end, everything that was not finished can be had."""
        queue = self.queue(0)
        queue.resume()
        self.paused = False
        for _ in range(40):
            self.clock.advance(25)
            self.claim(0, 30, None, "ann", [])
            live = [message for message in self.held if self.is_held(message)]
            queue.ack(live)
            self.finished(live, "ack")
            if not any(self.in_state(state) for state in ("unrouted", "available", "in_flight")):
                break
        else:
            raise AssertionError("messages are stuck")
        self.settled(0)
        self.counts_are_right()

    def is_held(self, message: Message) -> bool:
        return self.judge_one(message, "ack") == "held"


TestQueueModel = QueueMachine.TestCase
TestQueueModel.settings = hypothesis.settings(
    stateful_step_count=40,
    max_examples=min(500, hypothesis.settings().max_examples * 3 // 5),
    suppress_health_check=[hypothesis.HealthCheck.too_slow, hypothesis.HealthCheck.data_too_large],
)
