"""The examination of queues: every held message exists, and counts agree.

A queue holds available, in-flight and failed messages. The log must have the entry and the payload of
each, even below the start of the log. The doctor compares counts with buckets, the attempt number of
each message with its list of attempts, and the waiting lists with both.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

from msgspec import MsgspecError

from millstream.doctor.coverage import Coverage
from millstream.doctor.findings import Findings
from millstream.doctor.logs import LogExamination
from millstream.doctor.replay import Replay
from millstream.format import keys
from millstream.format.ids import bucket_of, split_id
from millstream.log.model.head import Head, without
from millstream.queue.model.bucket import Bucket
from millstream.queue.model.note import decode_note
from millstream.queue.model.roster import Roster
from millstream.queue.model.slots import AVAILABLE, CANCELLED, DONE, FAILED, IN_FLIGHT
from millstream.queue.model.state import QueueState
from millstream.queue.rules.aging import HAS_DONE
from millstream.queue.rules.sources import takes

STATES = {AVAILABLE: "available", IN_FLIGHT: "in_flight", DONE: "done", FAILED: "failed"}
HELD = (AVAILABLE, IN_FLIGHT, FAILED)
REMEMBERED = (*HELD, DONE, CANCELLED)
RETRY_BYTES = 26
AGING_BYTES = 27
REMAINS_BYTES = 18
NOTE_BYTES = 18


class QueueExamination:
    """Looks at everything that belongs to queues."""

    def __init__(self, replay: Replay, findings: Findings, logs: LogExamination) -> None:
        self._replay = replay
        self._findings = findings
        self._report = findings.report
        self._logs = logs
        self._queues: dict[int, QueueState] = {}
        for _, entity in replay.entities(keys.QUEUE):
            assert isinstance(entity, QueueState)
            self._queues[entity.queue_id] = entity
        self._report.queues = len(self._queues)
        deleted = replay.sound_rows(keys.REMAINS, key_bytes=REMAINS_BYTES)
        self._leaving = {keys.pair(row.key)[1] for row in deleted}
        """Queues that are deleted, and whose last rows go in the background."""

    def check_messages(self) -> None:
        """Check that held messages exist, and that counts and waiting lists agree with the buckets."""
        waiting, aging, noted = self._waiting(), self._aging(), self._noted()
        counts = {queue_id: dict.fromkeys(STATES, 0) for queue_id in self._queues}
        alive: dict[int, dict[int, int]] = {queue_id: {} for queue_id in self._queues}
        flying = {queue_id: Counter[str]() for queue_id in self._queues}
        for key, entity in self._replay.entities(keys.BUCKET):
            assert isinstance(entity, Bucket)
            queue_id, bucket_id = keys.pair(key)
            queue = self._queues.get(queue_id)
            if queue is None:
                if queue_id not in self._leaving:
                    self._wrong(f"bucket {bucket_id:#x} belongs to queue {queue_id}, which is gone")
                continue
            for state in STATES:
                counts[queue_id][state] += entity.states.count(state)
            held = sum(entity.states.count(state) for state in HELD)
            self._report.messages += held
            if held:
                alive[queue_id][bucket_id] = held
            if queue.spec.group_by and entity.marks:
                for run in entity.runs(IN_FLIGHT):
                    flying[queue_id].update(entity.mark(slot)[1] for slot in range(*run))
            self._check_held(queue, bucket_id, entity)
            self._check_waiting(queue, bucket_id, entity, waiting.pop((queue_id, bucket_id), []))
            self._check_noted(queue, bucket_id, entity, noted.pop((queue_id, bucket_id), []))
            self._check_attempts(queue, bucket_id, entity)
            has_ended = entity.any_are(DONE) or entity.any_are(CANCELLED)
            if has_ended and (queue_id, bucket_id) not in aging:
                self._wrong(
                    f"queue {queue.name!r}, bucket {bucket_id:#x}: what is done there is not listed, "
                    "and would never be forgotten",
                )
        for (queue_id, bucket_id), slots in waiting.items():
            if queue_id in self._queues:
                self._wrong(
                    f"{len(slots)} messages of bucket {bucket_id:#x}, which is gone, are listed as "
                    f"waiting in queue {self._queues[queue_id].name!r}",
                )
        for (queue_id, bucket_id), slots in noted.items():
            if queue_id in self._queues:
                self._wrong(
                    f"{len(slots)} notes of bucket {bucket_id:#x}, which is gone, are left in queue "
                    f"{self._queues[queue_id].name!r}",
                    severity="waste",
                )
        self._check_rosters(flying)
        if not self._replay.broken_at:
            self._check_counts(counts, alive)
            self._check_positions()

    def _wrong(self, message: str, **facts: Any) -> None:
        self._findings.add("queue", message, **facts)

    # What is held.

    def _check_held(self, queue: QueueState, bucket_id: int, bucket: Bucket) -> None:
        nothing = Coverage()
        for state in HELD:
            for start, stop in bucket.runs(state):
                covered = 0
                for span in bucket.sources(start, stop):
                    covered += span.count
                    sound = self._logs.sound.get(span.log_id, nothing)
                    for first, last in sound.missing(span.offset, span.offset + span.count):
                        slot = span.slot + first - span.offset
                        claim_id = bucket_id + slot
                        self._miss(queue, STATES[state], claim_id, span.log_id, (first, last))
                if covered < stop - start:
                    self._wrong(
                        f"queue {queue.name!r}, bucket {bucket_id:#x}: nothing says where "
                        f"{stop - start - covered} messages came from",
                    )

    def _check_attempts(self, queue: QueueState, bucket_id: int, bucket: Bucket) -> None:
        """Each claim of a message is recorded, and each but the one it is in flight for has ended."""
        size, states = len(bucket.states), bucket.states
        if len(bucket.attempts) != size or len(bucket.until_ms) != size:
            self._wrong(
                f"queue {queue.name!r}, bucket {bucket_id:#x}: its columns differ in length",
            )
            return
        claims, ends = Counter[int](), Counter[int]()
        for slots, ranges in ((claims, bucket.tries), (ends, bucket.ends)):
            for span in ranges:
                slots.update(range(span.start, span.stop))
        wrong = [
            slot
            for slot in range(size)
            if states[slot] in STATES
            and (
                claims[slot] != bucket.attempts[slot]
                or claims[slot] - ends[slot] != (states[slot] == IN_FLIGHT)
            )
        ]
        if wrong:
            self._wrong(
                f"queue {queue.name!r}, bucket {bucket_id:#x}: the attempts at {len(wrong):,} "
                f"messages, claim {bucket_id + wrong[0]} the first, are not all told",
            )

    def _miss(
        self, queue: QueueState, state: str, claim_id: int, log_id: int, offsets: tuple[int, int]
    ) -> None:
        count = offsets[1] - offsets[0]
        self._report.payloads_missing += count
        name = self._logs.name_of(log_id)
        claims = str(claim_id) if count == 1 else f"{claim_id} to {claim_id + count - 1}"
        self._wrong(
            f"missing payload: queue {queue.name!r}, claim {claims}, {state.replace('_', ' ')}, "
            f"of log {name!r}, offset {offsets[0]}",
            log=name,
            lost=offsets,
        )

    def _check_counts(
        self, counts: dict[int, dict[int, int]], alive: dict[int, dict[int, int]]
    ) -> None:
        for queue_id, queue in self._queues.items():
            for state, name in STATES.items():
                counted, actual = getattr(queue.counts, name), counts[queue_id][state]
                if counted != actual:
                    self._wrong(
                        f"queue {queue.name!r} counts {counted:,} messages as "
                        f"{name.replace('_', ' ')}, there are {actual:,}",
                    )
            if queue.alive != alive[queue_id]:
                self._wrong(
                    f"queue {queue.name!r} is wrong about which buckets have messages to work on",
                )

    def _check_rosters(self, flying: dict[int, Counter[str]]) -> None:
        """Check that each roster agrees with the buckets of its queue."""
        rosters: dict[int, dict[str, int]] = {}
        for key, entity in self._replay.entities(keys.ROSTER):
            assert isinstance(entity, Roster)
            queue_id = keys.number(key)
            rosters[queue_id] = entity.flying
            if queue_id not in self._queues and queue_id not in self._leaving:
                self._wrong(
                    f"there is a roster of queue {queue_id}, which is gone", severity="waste"
                )
        for queue_id, in_flight in flying.items():
            in_flight.pop("", None)
            listed = rosters.get(queue_id, {})
            wrong = [name for name in in_flight | listed if in_flight[name] != listed.get(name, 0)]
            if wrong and not self._replay.broken_at:
                self._wrong(
                    f"queue {self._queues[queue_id].name!r} is wrong about what is in flight of "
                    f"{len(wrong):,} groups, {wrong[0]!r} the first",
                )

    def _check_positions(self) -> None:
        """Check that routing positions lie within each log, and that unrouted records exist."""
        for queue in self._queues.values():
            for log_id, head in self._logs.heads():
                position = queue.positions.get(log_id, 0)
                if not position and head.dropped == head.start:
                    continue
                if not takes(queue.name, queue.spec, head.name):
                    continue
                if not 0 <= position <= head.end:
                    self._wrong(
                        f"queue {queue.name!r} stands at offset {position} of log {head.name!r}, "
                        f"which ends at {head.end}: it would pass over what is appended",
                        log=head.name,
                    )
                elif not queue.spec.lossy:
                    self._check_unrouted(queue, log_id, head, position)

    def _check_unrouted(self, queue: QueueState, log_id: int, head: Head, position: int) -> None:
        """What lies below a log's start is kept for a queue that has not looked at it."""
        sound = self._logs.sound.get(log_id, Coverage())
        for low, high in without(head.gaps, head.next_at(position), head.start):
            for first, last in sound.missing(low, high):
                self._wrong(
                    f"queue {queue.name!r} stands at offset {position} of log {head.name!r}: the "
                    f"records from {first} to {last - 1}, which it has not looked at, are missing",
                    log=head.name,
                    lost=(first, last),
                )

    # What waits.

    def _waiting(self) -> dict[tuple[int, int], list[int]]:
        """The slots that are listed as waiting for their next attempt, by queue and bucket."""
        slots_by_bucket: dict[tuple[int, int], list[int]] = {}
        counts: Counter[int] = Counter()
        for row in self._replay.sound_rows(keys.RETRY, key_bytes=RETRY_BYTES):
            queue_id, (_, claim_id) = keys.owner(row.key), keys.due_claim(row.key)
            bucket_id = bucket_of(claim_id)
            slot = split_id(claim_id)[1] - split_id(bucket_id)[1]
            count = keys.run_count(row.value)
            slots_by_bucket.setdefault((queue_id, bucket_id), []).extend(range(slot, slot + count))
            counts[queue_id] += count
        for queue_id, queue in self._queues.items():
            if counts[queue_id] != queue.counts.waiting and not self._replay.broken_at:
                self._wrong(
                    f"queue {queue.name!r} counts {queue.counts.waiting:,} messages as waiting, "
                    f"{counts[queue_id]:,} are listed",
                )
        known_ids = self._queues.keys() | self._leaving
        strangers = sum(count for queue_id, count in counts.items() if queue_id not in known_ids)
        if strangers:
            self._wrong(
                f"{strangers:,} waiting messages belong to queues that are gone",
                severity="waste",
            )
        return slots_by_bucket

    def _aging(self) -> set[tuple[int, int]]:
        """The buckets that are listed as having done messages, by queue."""
        buckets = set()
        for row in self._replay.sound_rows(keys.AGING, key_bytes=AGING_BYTES):
            queue_id, stage, _, bucket_id = keys.aging_bucket(row.key)
            is_known = queue_id in self._queues or queue_id in self._leaving
            if not is_known and not self._replay.broken_at:
                self._wrong(
                    f"a bucket of queue {queue_id}, which is gone, is listed as aging",
                    severity="waste",
                )
            if stage == HAS_DONE:
                buckets.add((queue_id, bucket_id))
        return buckets

    def _check_waiting(
        self, queue: QueueState, bucket_id: int, bucket: Bucket, slots: list[int]
    ) -> None:
        states = bucket.states
        wrong = [slot for slot in slots if slot >= len(states) or states[slot] != AVAILABLE]
        if wrong:
            self._wrong(
                f"claim {bucket_id + wrong[0]} of queue {queue.name!r} is listed as "
                "waiting, but it is not available",
            )

    # What is noted.

    def _noted(self) -> dict[tuple[int, int], list[int]]:
        """The slots with a note (result, error, progress), by queue and bucket."""
        slots_by_bucket: dict[tuple[int, int], list[int]] = {}
        strangers = 0
        for row in self._replay.sound_rows(keys.NOTE, key_bytes=NOTE_BYTES):
            queue_id, claim_id = keys.pair(row.key)
            try:
                decode_note(row.value)
            except MsgspecError as error:
                self._replay.report_row(row.key, str(error))
                continue
            bucket_id = bucket_of(claim_id)
            slots_by_bucket.setdefault((queue_id, bucket_id), []).append(claim_id - bucket_id)
            strangers += queue_id not in self._queues and queue_id not in self._leaving
        if strangers and not self._replay.broken_at:
            self._wrong(
                f"{strangers:,} notes of messages belong to queues that are gone", severity="waste"
            )
        return slots_by_bucket

    def _check_noted(
        self, queue: QueueState, bucket_id: int, bucket: Bucket, slots: list[int]
    ) -> None:
        """Each note belongs to a message that the queue remembers."""
        states = bucket.states
        wrong = [slot for slot in slots if slot >= len(states) or states[slot] not in REMEMBERED]
        if wrong:
            self._wrong(
                f"claim {bucket_id + wrong[0]} of queue {queue.name!r} has a note, but the queue "
                "has forgotten its message",
                severity="waste",
            )
