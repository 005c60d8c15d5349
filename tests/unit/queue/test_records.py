"""The RFC's records of a queue, made from what the store holds: types 0x02 to 0x06."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from millstream import Millstream
from millstream.errors import InvalidInput, NotFound
from millstream.format import rfc
from millstream.format.ids import make_bucket_id, make_claim_id
from millstream.queue.commands import ListRecords
from millstream.testing import Probe, SimulatedClock

from .conftest import Reopen, counts, fold_all, values

BOOT_MS = 1_700_000_000_000


def rows(ms: Millstream, kind: int, name: str = "jobs") -> dict[bytes, bytes]:
    found = {record.key: record.value for record in ms.queue(name).records()}
    return {key: value for key, value in found.items() if key[1] == kind}


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
    assert rfc.parse_key(rfc.RecordType.ACTIVE, key) == (b"jobs", bucket)
    available, in_flight = rfc.decode_active(value)
    assert available == [
        rfc.AvailableMessage(2, ids[2], 1, plain),
        rfc.AvailableMessage(4, ids[4], 0, plain),
    ]
    assert in_flight == [rfc.InFlightMessage(3, ids[3], 1_000, 11_000, 1, plain)]
    ((key, value),) = rows(ms, rfc.RecordType.DONE).items()
    assert rfc.parse_key(rfc.RecordType.DONE, key) == (b"jobs", bucket)
    assert rfc.decode_finished(value) == [
        rfc.FinishedMessage(0, ids[0], 3_000, 1, metadata(b"k", {})),
    ]
    ((key, value),) = rows(ms, rfc.RecordType.FAILED).items()
    assert rfc.parse_key(rfc.RecordType.FAILED, key) == (b"jobs", bucket)
    assert rfc.decode_finished(value) == [rfc.FinishedMessage(1, ids[1], 3_000, 1, plain)]


@pytest.mark.parametrize("folded", [False, True])
def test_every_claimed_message_has_its_attempts_record(
    ms: Millstream, clock: SimulatedClock, folded: bool
) -> None:
    queue = ms.queue("jobs", backoff=0, bucket_exponent=1, lease=10)
    queue.put_many([b"%d" % n for n in range(25)])
    clock.advance(1)
    together = queue.claim(13, consumer="ann")
    clock.advance(1)
    alone = queue.claim(1, consumer="bob")
    queue.nack([together[2], *alone])
    clock.advance(1)
    queue.ack([message for message in together if message is not together[2]])
    (again,) = queue.claim(1, consumer="cid")
    queue.fail(again)
    queue.redrive()
    clock.advance(1)
    last = {message.claim_id: message for message in queue.claim(20, consumer="dan")}
    if folded:
        fold_all(ms)
    found = rows(ms, 5)
    assert list(found) == sorted(found)
    told = {
        rfc.parse_key(rfc.RecordType.ATTEMPTS, key)[1]: [
            (one.claimed_at_ms, one.consumer_id) for one in rfc.decode_attempts(value)
        ]
        for key, value in found.items()
    }
    expected = {n: [(1_000, "ann")] for n in range(13)}
    expected |= {n: [(4_000, "dan")] for n in range(14, 25)}
    expected[2] = [(1_000, "ann"), (3_000, "cid"), (4_000, "dan")]
    expected[13] = [(2_000, "bob"), (4_000, "dan")]
    assert told == expected
    assert len(last) == 13


def test_a_new_queue_has_empty_records(ms: Millstream) -> None:
    ms.queue("jobs", bucket_exponent=2)
    bucket = make_bucket_id(2, 0)
    assert rows(ms, 2) == {rfc.bucket_key(rfc.RecordType.ACTIVE, b"jobs", bucket): bytes(4)}
    assert rows(ms, 3) == {rfc.bucket_key(rfc.RecordType.DONE, b"jobs", bucket): bytes(2)}
    assert rows(ms, 4) == {rfc.bucket_key(rfc.RecordType.FAILED, b"jobs", bucket): bytes(2)}
    assert rows(ms, 5) == {}
    assert list(rows(ms, 6)) == [b"\x01\x06jobs"]


def test_full_buckets_have_records_of_their_own(ms: Millstream) -> None:
    queue = ms.queue("jobs", bucket_exponent=1)
    queue.put_many([b"%d" % n for n in range(25)])
    queue.ack(queue.claim(13))
    fold_all(ms)
    done = {
        rfc.parse_key(rfc.RecordType.DONE, key)[1]: rfc.decode_finished(value)
        for key, value in rows(ms, 3).items()
    }
    assert {key: len(found) for key, found in done.items() if found} == {
        make_bucket_id(1, 0): 10,
        make_bucket_id(1, 10): 3,
    }
    active = {
        rfc.parse_key(rfc.RecordType.ACTIVE, k)[1]: rfc.decode_active(v)
        for k, v in rows(ms, 2).items()
    }
    assert [len(active[make_bucket_id(1, n)][0]) for n in (0, 10, 20)] == [0, 7, 5]


def test_metadata_of_done_messages_is_empty_once_their_log_has_let_go_of_it(ms: Millstream) -> None:
    queue = ms.queue("jobs", sources="events", bucket_exponent=1)
    log = ms.log("events")
    log.append_many([b"a", b"b"], keys=["x", "y"], headers=[{"n": 1}, {"n": 2}])
    log.append(b"c", headers={"n": 3})
    queue.ack(queue.claim(3))
    (value,) = rows(ms, 3).values()
    assert [message.metadata for message in rfc.decode_finished(value)] == [
        metadata(b"x", {"n": 1}),
        metadata(b"y", {"n": 2}),
        metadata(None, {"n": 3}),
    ]
    log.truncate(before=2)
    log.enforce_retention()
    (value,) = rows(ms, 3).values()
    assert [message.metadata for message in rfc.decode_finished(value)] == [
        b"",
        b"",
        metadata(None, {"n": 3}),
    ]
    assert [message.attempts for message in rfc.decode_finished(value)] == [1, 1, 1]


def test_records_come_in_the_order_of_their_keys_whatever_the_page(ms: Millstream) -> None:
    queue = ms.queue("jobs", sources=["a", "b"], bucket_exponent=0, priority_by="p")
    for n in range(30):
        ms.log("ab"[n % 2]).append(b"%d" % n, headers={"p": n % 3})
    queue.claim(9)
    queue.ack(queue.claim(9))
    whole = list(queue.records())
    assert [record.key for record in whole] == sorted({record.key for record in whole})
    assert {record.key[1] for record in whole} == {2, 3, 4, 5, 6}
    execute = ms.session.execute
    for count in (1, 7, 1_000):
        paged, after = [], b""
        while page := execute(ListRecords("jobs", after, count)):
            paged += page
            after = page[-1].key
        assert paged == whole
    for after in (b"\x01\x02", b"\x01\x03jobs", b"\x01\x05jobs\x00\x00", b"\xff" * 30):
        page = execute(ListRecords("jobs", after, 1_000))
        assert page == [record for record in whole if record.key > after]
    with pytest.raises(InvalidInput):
        execute(ListRecords("jobs", b"", 0))
    with pytest.raises(NotFound):
        list(ms.queue("none").records())


def test_a_record_says_what_it_holds(ms: Millstream, clock: SimulatedClock) -> None:
    mixed(ms, clock)
    assert [record.describe() for record in ms.queue("jobs").records()] == [
        "active: 2 available, 1 in flight in bucket 0x1000000000000000",
        "done: 1 in bucket 0x1000000000000000",
        "failed: 1 in bucket 0x1000000000000000",
        *(f"attempts at message {n}: 'ann' at 1000" for n in range(4)),
        "spec: filter 'a = 1', 7 attempts, done kept 60 s, buckets of 10, 'work'",
    ]


def test_the_store_itself_keeps_none_of_these_records(
    ms: Millstream, clock: SimulatedClock
) -> None:
    mixed(ms, clock)
    for kind in range(2, 7):
        assert not Probe(ms).rows(kind), kind


def test_a_queue_is_named_in_keys_by_its_bytes(ms: Millstream) -> None:
    queue = "Łódź"
    ms.queue(queue, lease=30).put(b"a")
    ms.queue(queue).claim()
    found = list(ms.queue(queue).records())
    assert rfc.parse_key(rfc.RecordType.ACTIVE, found[0].key)[0] == queue.encode()
    assert rfc.parse_key(rfc.RecordType.ATTEMPTS, found[3].key) == (queue.encode(), 0)


def test_everything_is_as_before_after_a_fold_and_a_reopen(
    reopen: Reopen, clock: SimulatedClock
) -> None:
    ms = reopen()
    messages = mixed(ms, clock)
    queue = ms.queue("jobs")

    def look() -> Any:
        queue = ms.queue("jobs")
        peeks = [queue.peek(9, state=one) for one in ("available", "in_flight", "done", "failed")]
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
