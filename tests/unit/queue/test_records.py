"""The RFC's records of a queue, as they lie in the engine after a fold: types 0x02 to 0x06."""

from __future__ import annotations

from typing import Any

import msgspec

from millstream import Millstream
from millstream.format import keys, rfc
from millstream.format.ids import make_bucket_id, make_claim_id
from millstream.testing import SimulatedClock

from .conftest import Reopen, counts, fold_all, settle, upkeep, values

BOOT_MS = 1_700_000_000_000


def rows(ms: Millstream, kind: int) -> dict[bytes, bytes]:
    start = keys.prefix(kind)
    with ms._session.store.engine.read() as snapshot:  # type: ignore[attr-defined]
        return dict(snapshot.scan(start, keys.after(start), limit=10_000))


def metadata(key: bytes | None, headers: dict[str, Any]) -> bytes:
    return msgspec.msgpack.encode([key, BOOT_MS, headers])


def mixed(ms: Millstream, clock: SimulatedClock) -> list[Any]:
    """A queue with one message in each state, in buckets of ten."""
    queue = ms.queue(
        "jobs",
        filter="a = 1",
        max_attempts=7,
        done_retention=60,
        bucket_exponent=1,
        description="work",
        backoff=100,
        lease=10,
    )
    queue.put_many([b"0", b"1", b"2", b"3", b"4"], keys=["k", None, None, None, None])
    clock.advance(1)
    messages = [queue.claim(consumer="ann")[0] for _ in range(4)]
    clock.advance(2)
    queue.ack(messages[0])
    queue.fail(messages[1])
    queue.nack(messages[2])
    fold_all(ms)
    return messages


def test_the_spec_record_holds_what_the_rfc_says(ms: Millstream, clock: SimulatedClock) -> None:
    mixed(ms, clock)
    ((key, value),) = rows(ms, rfc.RecordType.QUEUE_SPEC).items()
    assert key == b"\x01\x06jobs"
    assert rfc.decode_queue_spec(value) == rfc.QueueSpecRecord("a = 1", 7, 60, 1, "work")
    assert value == b"\x05\x00a = 1" + b"\x07\x00" + b"\x3c\0\0\0" + b"\x01" + b"\x04\x00work"


def test_a_bucket_is_written_as_active_done_and_failed_records(
    ms: Millstream, clock: SimulatedClock
) -> None:
    mixed(ms, clock)
    ids = [make_claim_id(1, n) for n in range(5)]
    bucket = make_bucket_id(1, 0)
    plain = metadata(None, {})
    ((key, value),) = rows(ms, rfc.RecordType.ACTIVE).items()
    assert rfc.parse_active_key(key) == (b"jobs", bucket)
    available, in_flight = rfc.decode_active(value)
    assert available == [
        rfc.AvailableMessage(2, ids[2], 1, plain),
        rfc.AvailableMessage(4, ids[4], 0, plain),
    ]
    assert in_flight == [rfc.InFlightMessage(3, ids[3], 1_000, 11_000, 1, plain)]
    ((key, value),) = rows(ms, rfc.RecordType.DONE).items()
    assert rfc.parse_done_key(key) == (b"jobs", bucket)
    assert rfc.decode_done(value) == [
        rfc.DoneMessage(0, ids[0], 3_000, 1, metadata(b"k", {})),
    ]
    ((key, value),) = rows(ms, rfc.RecordType.FAILED).items()
    assert rfc.parse_failed_key(key) == (b"jobs", bucket)
    assert rfc.decode_failed(value) == [rfc.FailedMessage(1, ids[1], 3_000, 1, plain)]


def test_each_message_claimed_alone_has_its_attempts_record(
    ms: Millstream, clock: SimulatedClock
) -> None:
    mixed(ms, clock)
    found = rows(ms, rfc.RecordType.ATTEMPTS)
    assert {
        rfc.parse_attempts_key(key): rfc.decode_attempts(value) for key, value in found.items()
    } == {(b"jobs", n): [rfc.Attempt(1_000, "ann")] for n in range(4)}
    queue = ms.queue("jobs")
    clock.advance(98)
    settle(queue)
    clock.advance(2)
    queue.claim(1, consumer="bob")
    fold_all(ms)
    again = rfc.decode_attempts(rows(ms, rfc.RecordType.ATTEMPTS)[rfc.attempts_key(b"jobs", 3)])
    other = rfc.decode_attempts(rows(ms, rfc.RecordType.ATTEMPTS)[rfc.attempts_key(b"jobs", 2)])
    assert sorted([len(again), len(other)]) == [1, 2]


def test_a_new_queue_has_empty_records(ms: Millstream) -> None:
    ms.queue("jobs", bucket_exponent=2)
    fold_all(ms)
    bucket = make_bucket_id(2, 0)
    assert rows(ms, 2) == {rfc.active_key(b"jobs", bucket): bytes(4)}
    assert rows(ms, 3) == {rfc.done_key(b"jobs", bucket): bytes(2)}
    assert rows(ms, 4) == {rfc.failed_key(b"jobs", bucket): bytes(2)}
    assert rows(ms, 5) == {}


def test_full_buckets_have_records_of_their_own(ms: Millstream) -> None:
    queue = ms.queue("jobs", bucket_exponent=1)
    queue.put_many([b"%d" % n for n in range(25)])
    queue.ack(queue.claim(13))
    fold_all(ms)
    done = {
        rfc.parse_done_key(key)[1]: rfc.decode_done(value) for key, value in rows(ms, 3).items()
    }
    assert {key: len(found) for key, found in done.items() if found} == {
        make_bucket_id(1, 0): 10,
        make_bucket_id(1, 10): 3,
    }
    active = {rfc.parse_active_key(k)[1]: rfc.decode_active(v) for k, v in rows(ms, 2).items()}
    assert [len(active[make_bucket_id(1, n)][0]) for n in (0, 10, 20)] == [0, 7, 5]


def test_metadata_of_done_messages_outlives_their_log(ms: Millstream) -> None:
    queue = ms.queue("jobs", sources="events", bucket_exponent=1)
    log = ms.log("events")
    log.append_many([b"a", b"b"], keys=["x", "y"], headers=[{"n": 1}, {"n": 2}])
    queue.ack(queue.claim(2))
    fold_all(ms)
    log.truncate(before=2)
    log.enforce_retention()
    log.append(b"c")
    queue.claim()
    fold_all(ms)
    (value,) = rows(ms, 3).values()
    assert [message.metadata for message in rfc.decode_done(value)] == [
        metadata(b"x", {"n": 1}),
        metadata(b"y", {"n": 2}),
    ]


def test_everything_is_as_before_after_a_fold_and_a_reopen(
    reopen: Reopen, clock: SimulatedClock
) -> None:
    ms = reopen()
    messages = mixed(ms, clock)
    queue = ms.queue("jobs")

    def look() -> Any:
        queue = ms.queue("jobs")
        peeks = [queue.peek(9, state=one) for one in ("available", "in flight", "done", "failed")]
        return peeks, counts(queue), [queue.attempts(one) for one in messages], queue.info()

    before = look()
    ms = reopen()
    assert look() == before
    fold_all(ms)
    assert look() == before
    queue = ms.queue("jobs")
    queue.ack(messages[3])
    clock.advance(100)
    assert values(queue.claim(9)) == [b"2", b"4"]


def test_forgotten_buckets_leave_no_records(ms: Millstream, clock: SimulatedClock) -> None:
    queue = ms.queue("jobs", bucket_exponent=0, done_retention=60)
    for value in (b"a", b"b", b"c"):
        queue.put(value)
        queue.ack(queue.claim())
    fold_all(ms)
    clock.advance(60)
    upkeep(ms)
    fold_all(ms)
    assert counts(queue) == {}
    assert [rows(ms, kind) for kind in (2, 3, 4)] == [{}, {}, {}]


def test_forgotten_messages_leave_no_attempts_records(
    ms: Millstream, clock: SimulatedClock
) -> None:
    queue = ms.queue("jobs", bucket_exponent=0, done_retention=60)
    queue.put(b"a")
    queue.ack(queue.claim())
    fold_all(ms)
    clock.advance(60)
    upkeep(ms)
    fold_all(ms)
    assert rows(ms, 5) == {}
