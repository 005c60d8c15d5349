"""The examination of queues: every message that they hold is there, and their books agree.

A queue holds what is available, in flight or failed; of each of these the log must have the entry and
the payload, wherever the log begins. Counts are compared with the buckets, the RFC's records with
the companion records that were written with them, and the list of those that wait with both.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Iterator

from millstream.doctor.coverage import Coverage
from millstream.doctor.findings import Findings
from millstream.doctor.logs import LogExamination
from millstream.doctor.replay import KINDS, Replay
from millstream.doctor.rows import Found, Rows
from millstream.errors import CorruptionError
from millstream.format import keys, rfc
from millstream.format.ids import bucket_of, split_id
from millstream.queue.bucket import Bucket
from millstream.queue.slots import AVAILABLE, DONE, FAILED, IN_FLIGHT
from millstream.queue.state import QueueState

STATES = {AVAILABLE: "available", IN_FLIGHT: "in_flight", DONE: "done", FAILED: "failed"}
HELD = (AVAILABLE, IN_FLIGHT, FAILED)
RETRY_BYTES = 26

Facts = tuple[int, ...]


class QueueExamination:
    """Looks at everything that belongs to queues."""

    def __init__(
        self, rows: Rows, replay: Replay, findings: Findings, logs: LogExamination
    ) -> None:
        self._rows = rows
        self._replay = replay
        self._findings = findings
        self._report = findings.report
        self._logs = logs
        self._queues: dict[int, QueueState] = {}
        self._ids: dict[bytes, int] = {}
        for key, entity in replay.entities(keys.QUEUE):
            assert isinstance(entity, QueueState)
            self._queues[entity.queue_id] = entity
            self._ids[key[2:]] = entity.queue_id
        self._report.queues = len(self._queues)

    def check_messages(self) -> None:
        """Every message that is held is there; counts and waiting lists agree with the buckets."""
        waiting = self._waiting()
        counts = {queue_id: dict.fromkeys(STATES, 0) for queue_id in self._queues}
        alive: dict[int, dict[int, int]] = {queue_id: {} for queue_id in self._queues}
        for key, entity in self._replay.entities(keys.BUCKET):
            assert isinstance(entity, Bucket)
            queue_id, bucket_id = _numbers(key)
            queue = self._queues.get(queue_id)
            if queue is None:
                self._findings.add(
                    "queue", f"bucket {bucket_id:#x} belongs to queue {queue_id}, which is gone"
                )
                continue
            for state in STATES:
                counts[queue_id][state] += entity.states.count(state)
            held = sum(entity.states.count(state) for state in HELD)
            self._report.messages += held
            if held:
                alive[queue_id][bucket_id] = held
            self._check_held(queue, bucket_id, entity)
            self._check_waiting(queue, bucket_id, entity, waiting.pop((queue_id, bucket_id), []))
            self._compare(queue, key, bucket_id)
        for (queue_id, bucket_id), slots in waiting.items():
            if queue_id in self._queues:
                self._findings.add(
                    "queue",
                    f"{len(slots)} messages of bucket {bucket_id:#x}, which is gone, are listed as "
                    f"waiting in queue {self._queues[queue_id].name!r}",
                )
        if not self._replay.broken_at:
            self._check_counts(counts, alive)

    def check_records(self) -> None:
        """The RFC's records are sound, and belong to a queue and a bucket."""
        start = keys.prefix(rfc.RecordType.ACTIVE)
        stop = keys.prefix(rfc.RecordType.QUEUE_SPEC)
        for found in self._rows.walk(start, stop):
            if found.problem:
                self._replay.report_row(found.key, found.problem)
                continue
            try:
                self._check_record(found)
            except CorruptionError as error:
                self._replay.report_row(found.key, str(error))

    # What is held.

    def _check_held(self, queue: QueueState, bucket_id: int, bucket: Bucket) -> None:
        nothing = Coverage()
        for state in HELD:
            for start, stop in bucket.runs(state):
                seen = 0
                for span in bucket.sources(start, stop):
                    seen += span.count
                    sound = self._logs.sound.get(span.log_id, nothing)
                    for first, last in sound.missing(span.offset, span.offset + span.count):
                        slot = span.slot + first - span.offset
                        claim_id = queue.claim_id(bucket_id, slot)
                        self._miss(queue, STATES[state], claim_id, span.log_id, (first, last))
                if seen < stop - start:
                    self._findings.add(
                        "queue",
                        f"queue {queue.name!r}, bucket {bucket_id:#x}: nothing says where "
                        f"{stop - start - seen} messages came from",
                    )

    def _miss(
        self, queue: QueueState, state: str, claim_id: int, log_id: int, offsets: tuple[int, int]
    ) -> None:
        count = offsets[1] - offsets[0]
        self._report.payloads_missing += count
        name = self._logs.name_of(log_id)
        claims = str(claim_id) if count == 1 else f"{claim_id} to {claim_id + count - 1}"
        self._findings.add(
            "queue",
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
                counted, there = getattr(queue.counts, name), counts[queue_id][state]
                if counted != there:
                    self._findings.add(
                        "queue",
                        f"queue {queue.name!r} counts {counted:,} messages as "
                        f"{name.replace('_', ' ')}, there are {there:,}",
                    )
            if queue.alive != alive[queue_id]:
                self._findings.add(
                    "queue",
                    f"queue {queue.name!r} is wrong about which buckets have messages to work on",
                )

    # What waits.

    def _waiting(self) -> dict[tuple[int, int], list[int]]:
        """The slots that are listed as waiting for their next attempt, by queue and bucket."""
        found: dict[tuple[int, int], list[int]] = {}
        counts: Counter[int] = Counter()
        for row in self._retries():
            if row.problem or len(row.key) != RETRY_BYTES:
                self._replay.report_row(row.key, row.problem or "its key is cut")
                continue
            queue_id, turned = (int.from_bytes(row.key[at : at + 8], "big") for at in (2, 18))
            bucket_id = bucket_of((turned & 15) << 60 | turned >> 4)
            slot = (turned >> 4) - split_id(bucket_id)[1]
            found.setdefault((queue_id, bucket_id), []).append(slot)
            counts[queue_id] += 1
        for queue_id, queue in self._queues.items():
            if counts[queue_id] != queue.counts.waiting and not self._replay.broken_at:
                self._findings.add(
                    "queue",
                    f"queue {queue.name!r} counts {queue.counts.waiting:,} messages as waiting, "
                    f"{counts[queue_id]:,} are listed",
                )
        strangers = sum(count for queue_id, count in counts.items() if queue_id not in self._queues)
        if strangers:
            self._findings.add(
                "queue",
                f"{strangers:,} waiting messages belong to queues that are gone",
                severity="waste",
            )
        return found

    def _retries(self) -> Iterator[Found]:
        """The list of those that wait, wherever its rows lie."""
        held = self._replay.overlay
        start, stop = keys.range_of(keys.prefix(keys.RETRY))
        unfolded = (Found(key, held.get(key) or b"") for key in sorted(held.keys(start, stop)))
        last = b""
        for row in heapq.merge(self._rows.walk(start, stop), unfolded, key=lambda row: row.key):
            if row.key != last:
                yield row
            last = row.key

    def _check_waiting(
        self, queue: QueueState, bucket_id: int, bucket: Bucket, slots: list[int]
    ) -> None:
        states = bucket.states
        wrong = [slot for slot in slots if slot >= len(states) or states[slot] != AVAILABLE]
        if wrong:
            self._findings.add(
                "queue",
                f"claim {queue.claim_id(bucket_id, wrong[0])} of queue {queue.name!r} is listed as "
                "waiting, but it is not available",
            )

    # The RFC's records.

    def _compare(self, queue: QueueState, key: bytes, bucket_id: int) -> None:
        """The RFC's records of a bucket, and ours as it was written with them."""
        try:
            stored = KINDS[keys.BUCKET].load(key, self._rows)
            assert isinstance(stored, Bucket)
            if not stored.exists():
                return
            for what, told in self._told(queue.name.encode(), bucket_id).items():
                if told != _expected(queue, bucket_id, stored, what):
                    self._findings.add(
                        "queue",
                        f"queue {queue.name!r}, bucket {bucket_id:#x}: the RFC's record does not "
                        f"agree on what is {STATES[what].replace('_', ' ')}",
                    )
        except CorruptionError:
            return  # reported where the row itself is looked at

    def _told(self, name: bytes, bucket_id: int) -> dict[int, list[Facts]]:
        """What the RFC's records say: message id, claim id, attempts, and a time if there is one."""
        active = self._rows.get(rfc.active_key(name, bucket_id))
        done = self._rows.get(rfc.done_key(name, bucket_id))
        failed = self._rows.get(rfc.failed_key(name, bucket_id))
        available, in_flight = ([], []) if active is None else rfc.decode_active(active)
        return {
            AVAILABLE: [(m.message_id, m.claim_id, m.attempts) for m in available],
            IN_FLIGHT: [
                (m.message_id, m.claim_id, m.attempts, m.lease_deadline_ms) for m in in_flight
            ],
            DONE: [
                (m.message_id, m.claim_id, m.attempts, m.done_at_ms)
                for m in (rfc.decode_done(done) if done is not None else ())
            ],
            FAILED: [
                (m.message_id, m.claim_id, m.attempts, m.failed_at_ms)
                for m in (rfc.decode_failed(failed) if failed is not None else ())
            ],
        }

    def _check_record(self, found: Found) -> None:
        """A record belongs to a queue; without a bucket beside it, it is empty."""
        kind = rfc.RecordType(found.key[1])
        if kind == rfc.RecordType.ATTEMPTS:
            name, _ = rfc.parse_attempts_key(found.key)
            rfc.decode_attempts(found.value)
            bucket_id = None
        else:
            name, bucket_id = _PARSE[kind](found.key)
        queue_id = self._ids.get(name)
        if queue_id is None:
            if not self._replay.broken_at:
                text = name.decode("utf-8", "backslashreplace")
                self._findings.add(
                    "queue",
                    f"an RFC record of queue {text!r}, which is gone",
                    severity="waste",
                )
            return
        if bucket_id is None or self._rows.get(keys.bucket(queue_id, bucket_id)) is not None:
            return
        if found.value.strip(b"\x00"):
            self._findings.add(
                "queue",
                f"queue {self._queues[queue_id].name!r}: an RFC record holds messages of bucket "
                f"{bucket_id:#x}, which is gone",
            )


_PARSE = {
    rfc.RecordType.ACTIVE: rfc.parse_active_key,
    rfc.RecordType.DONE: rfc.parse_done_key,
    rfc.RecordType.FAILED: rfc.parse_failed_key,
}


def _expected(queue: QueueState, bucket_id: int, bucket: Bucket, state: int) -> list[Facts]:
    """What the RFC's record of a bucket has to say of the messages in a state."""
    found: list[Facts] = []
    for start, stop in bucket.runs(state):
        for span in bucket.sources(start, stop):
            for slot in range(span.slot, span.slot + span.count):
                facts = (
                    span.message_id + slot - span.slot,
                    queue.claim_id(bucket_id, slot),
                    bucket.attempts[slot],
                )
                time = () if state == AVAILABLE else (bucket.until_ms[slot],)
                found.append((*facts, *time))
    return found


def _numbers(key: bytes) -> tuple[int, int]:
    """The queue and the bucket in a bucket's key."""
    return int.from_bytes(key[2:10], "big"), int.from_bytes(key[10:], "big")
