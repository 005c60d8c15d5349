"""The producer of a log: single records at streaming speed, over a file and over a server."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from millstream import Millstream
from millstream.errors import (
    Closed,
    Fenced,
    InvalidInput,
    NotOwner,
    Overloaded,
    Partitioned,
    TooLarge,
)
from millstream.limits import Limits
from millstream.testing import SimulatedClock
from tests.unit.conftest import Reopen


def values_of(ms: Millstream, log: str = "orders") -> list[bytes | None]:
    return [record.value for record in ms.log(log).read()]


def test_records_are_stored_in_the_order_of_the_calls(ms: Millstream) -> None:
    with ms.log("orders").producer() as producer:
        handles = [producer.append(b"%d" % number) for number in range(3_000)]
    assert values_of(ms) == [b"%d" % number for number in range(3_000)]
    assert [handle.offset() for handle in handles] == [*range(3_000)]
    assert all(handle.done for handle in handles)


def test_a_handle_waits_for_its_record_without_the_linger(ms: Millstream) -> None:
    with ms.log("orders").producer(linger=60) as producer:
        handle = producer.append("first")
        assert not handle.done
        assert handle.offset() == 0
        assert producer.append("second").offset(timeout=30) == 1
        assert values_of(ms) == [b"first", b"second"]


def test_a_lone_record_is_stored_after_the_linger(ms: Millstream) -> None:
    stored = threading.Event()
    with ms.log("orders").producer(linger=0.002) as producer:
        producer.append(b"lone", callback=lambda handle: stored.set())
        assert stored.wait(30)


def test_keys_headers_timestamps_and_kinds_are_those_of_append(ms: Millstream) -> None:
    def rows(log: str) -> list[object]:
        return [
            (record.value, record.key, dict(record.headers), record.timestamp)
            for record in ms.log(log).read()
        ]

    messages = [
        (b"bytes", None, None, 5),
        ("text", "key", {"region": "eu"}, 6),
        ({"json": 1}, b"key", {"content-type": "mine"}, 7),
        (None, "gone", None, 8),
        (bytearray(b"array"), None, [("a", 1), ("a", 2)], 9),
    ]
    with ms.log("gathered").producer() as producer:
        for value, key, headers, timestamp in messages:
            producer.append(value, key=key, headers=headers, timestamp=timestamp)
    for value, key, headers, timestamp in messages:
        ms.log("single").append(value, key=key, headers=headers, timestamp=timestamp)
    assert rows("gathered") == rows("single")


def test_records_with_and_without_a_timestamp_keep_their_order(ms: Millstream) -> None:
    with ms.log("orders").producer() as producer:
        for number in range(300):
            producer.append(b"%d" % number, timestamp=7 if number % 3 else None)
    records = [*ms.log("orders").read()]
    assert [record.value for record in records] == [b"%d" % number for number in range(300)]
    assert all((record.timestamp == 7) == (at % 3 > 0) for at, record in enumerate(records))


def test_a_later_change_of_a_value_is_not_stored(ms: Millstream) -> None:
    value, headers, data = {"n": 1}, {"h": 1}, bytearray(b"old")
    with ms.log("orders").producer(linger=60) as producer:
        producer.append(value, headers=headers)
        producer.append(data)
        value["n"] = headers["h"] = 2
        data[:] = b"new"
    first, second = ms.log("orders").read()
    assert (first.json(), first.headers["h"], second.value) == ({"n": 1}, 1, b"old")


def test_an_invalid_record_fails_its_own_handle_alone(reopen: Reopen) -> None:
    ms = reopen(Limits(value_bytes_max=10))
    with ms.log("orders").producer() as producer:
        producer.append(b"before")
        large = producer.append(b"x" * 11)
        unclear = producer.append(object())
        bad_key = producer.append(b"", key=5)  # type: ignore[arg-type]
        producer.append(b"after")
        with pytest.raises(TooLarge):
            large.offset()
        with pytest.raises(InvalidInput, match="bytes, text or JSON"):
            unclear.offset()
        with pytest.raises(InvalidInput, match="a key is"):
            bad_key.offset()
    assert values_of(ms) == [b"before", b"after"]


@pytest.mark.parametrize("timestamp", ["1", 1.5, True, -1, 2**63])
def test_a_wrong_timestamp_fails_the_handle(ms: Millstream, timestamp: Any) -> None:
    with ms.log("orders").producer() as producer:
        handle = producer.append(b"a", timestamp=timestamp)
        with pytest.raises(InvalidInput, match="timestamp"):
            handle.offset()


def test_leaving_the_block_raises_the_first_error_that_nobody_asked_for(reopen: Reopen) -> None:
    ms = reopen(Limits(value_bytes_max=10))

    def work() -> None:
        with ms.log("orders").producer() as producer:
            asked = producer.append(b"x" * 11)
            producer.append(b"x" * 12)
            producer.append(b"x" * 13)
            with pytest.raises(TooLarge):
                asked.offset()

    with pytest.raises(TooLarge, match="12 bytes"):
        work()
    assert len(ms.log("orders")) == 0


def test_flush_raises_an_error_once_and_the_producer_goes_on(reopen: Reopen) -> None:
    ms = reopen(Limits(value_bytes_max=10))
    with ms.log("orders").producer() as producer:
        producer.append(b"x" * 11)
        with pytest.raises(TooLarge):
            producer.flush()
        producer.append(b"good")
        producer.flush()
        assert values_of(ms) == [b"good"]


def test_an_error_in_the_block_is_not_masked(reopen: Reopen) -> None:
    ms = reopen(Limits(value_bytes_max=10))

    def work() -> None:
        with ms.log("orders").producer() as producer:
            producer.append(b"kept")
            producer.append(b"x" * 11)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        work()
    assert values_of(ms) == [b"kept"]


def test_callbacks_are_told_of_success_and_of_refusal(reopen: Reopen) -> None:
    ms = reopen(Limits(value_bytes_max=10))
    told: list[object] = []
    with ms.log("orders").producer() as producer:
        producer.append(b"good", callback=lambda handle: told.append(handle.offset()))
        producer.flush()
        refused = producer.append(b"x" * 11, callback=lambda handle: told.append(handle.done))
        with pytest.raises(TooLarge):
            refused.offset()
    assert told == [0, True]


def test_a_callback_may_append_but_not_wait(ms: Millstream) -> None:
    told: list[Exception] = []
    with ms.log("orders").producer(linger=60) as producer:

        def append_and_wait(handle: object) -> None:
            try:
                producer.append(b"second").offset()
            except InvalidInput as error:
                told.append(error)

        producer.append(b"first", callback=append_and_wait)
        producer.flush()
        producer.flush()
    assert values_of(ms) == [b"first", b"second"]
    assert len(told) == 1


def test_a_callback_may_not_close_the_producer(ms: Millstream) -> None:
    told: list[Exception] = []
    with ms.log("orders").producer() as producer:

        def close(handle: object) -> None:
            try:
                producer.close()
            except InvalidInput as error:
                told.append(error)

        producer.append(b"first", callback=close)
        producer.flush()
        producer.append(b"second")
    assert values_of(ms) == [b"first", b"second"]
    assert "must not wait" in str(told[0])


def test_a_full_producer_without_wait_is_overloaded(ms: Millstream) -> None:
    with ms.log("orders").producer(linger=60, in_flight=3, wait=False) as producer:
        for number in range(3):
            producer.append(b"%d" % number)
        with pytest.raises(Overloaded):
            producer.append(b"too many")
        producer.flush()
        producer.append(b"3")
    assert values_of(ms) == [b"0", b"1", b"2", b"3"]


def test_a_full_producer_without_wait_sends_before_the_linger_ends(ms: Millstream) -> None:
    stored = threading.Event()
    with ms.log("orders").producer(linger=60, in_flight=1, wait=False) as producer:
        producer.append(b"0", callback=lambda handle: stored.set())
        with pytest.raises(Overloaded):
            producer.append(b"too many")
        assert stored.wait(30)


def test_a_full_producer_makes_its_callers_wait(ms: Millstream) -> None:
    with ms.log("orders").producer(linger=60, in_flight=3) as producer:
        for number in range(100):
            producer.append(b"%d" % number)
    assert values_of(ms) == [b"%d" % number for number in range(100)]


def test_bytes_are_bounded_too(ms: Millstream) -> None:
    with ms.log("orders").producer(linger=60, in_flight_bytes=10, wait=False) as producer:
        producer.append(b"as large as it is")
        with pytest.raises(Overloaded):
            producer.append(b"")


def test_threads_share_a_producer_and_each_keeps_its_order(ms: Millstream) -> None:
    with ms.log("orders").producer(in_flight=50) as producer:

        def work(name: int) -> None:
            for number in range(200):
                producer.append(b"%d:%d" % (name, number))

        threads = [threading.Thread(target=work, args=(name,)) for name in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    values = values_of(ms)
    assert len(values) == 800
    for name in range(4):
        mine = [value for value in values if (value or b"").startswith(b"%d:" % name)]
        assert mine == [b"%d:%d" % (name, number) for number in range(200)]


def test_a_closed_producer_refuses_records(ms: Millstream) -> None:
    producer = ms.log("orders").producer()
    producer.append(b"stored")
    producer.close()
    producer.close()
    with pytest.raises(Closed, match="make a new one"):
        producer.append(b"late")
    assert repr(producer) == "LogProducer('orders')"
    assert values_of(ms) == [b"stored"]


def test_a_later_producer_of_the_same_name_fences_the_earlier(ms: Millstream) -> None:
    log = ms.log("orders")
    earlier = log.producer(name="till")
    assert earlier.append(b"a").offset() == 0
    with log.producer(name="till") as later:
        assert later.append(b"b").offset() == 1
    fenced = earlier.append(b"c")
    with pytest.raises(Fenced):
        fenced.offset()
    with pytest.raises(Fenced):
        earlier.append(b"d")
    earlier.close()
    assert values_of(ms) == [b"a", b"b"]


@pytest.mark.embedded
def test_an_earlier_producer_without_records_is_fenced_too(
    ms: Millstream, clock: SimulatedClock
) -> None:
    log = ms.log("orders")
    earlier = log.producer(name="till")
    clock.advance(1)
    with log.producer(name="till") as later:
        assert later.append(b"a").offset() == 0
        clock.advance(1)
        with pytest.raises(Fenced):
            earlier.append(b"b").offset()
        assert later.append(b"c").offset() == 1
    earlier.close()


@pytest.mark.embedded
def test_a_later_producer_whose_clock_is_behind_fences_the_earlier(
    ms: Millstream, clock: SimulatedClock
) -> None:
    log = ms.log("orders")
    earlier = log.producer(name="till")
    assert earlier.append(b"a").offset() == 0
    clock.jump(-3600)
    with log.producer(name="till") as later:
        assert later.append(b"b").offset() == 1
    with pytest.raises(Fenced):
        earlier.append(b"c").offset()
    earlier.close()


def test_a_log_that_takes_no_appends_fails_all_records(ms: Millstream) -> None:
    ms.log("orders").append(b"0")
    ms.log("orders").hand_over("elsewhere")
    with ms.log("orders").producer() as producer:
        handles = [producer.append(b"a"), producer.append(b"b")]
        for handle in handles:
            with pytest.raises(NotOwner):
                handle.offset()
        with pytest.raises(NotOwner):
            producer.append(b"c")


def test_a_partitioned_log_is_not_appended_to_as_a_plain_one(ms: Millstream) -> None:
    ms.log("spread", partitions=2).create()
    with pytest.raises((Partitioned, InvalidInput)), ms.log("spread").producer() as producer:
        producer.append(b"a")


@pytest.mark.parametrize(
    "options",
    [
        *({"linger": -1}, {"linger": 61}, {"linger": "1"}, {"in_flight": 0}, {"in_flight": 1.5}),
        *({"in_flight_bytes": 0}, {"in_flight_bytes": True}, {"retry_for": -1}, {"retry_for": "1"}),
    ],
)
def test_impossible_options_are_refused(ms: Millstream, options: dict[str, Any]) -> None:
    with pytest.raises(InvalidInput, match=next(iter(options))):
        ms.log("orders").producer(**options)
