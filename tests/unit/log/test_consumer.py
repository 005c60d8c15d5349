"""A consumer of a log on threads: single records after a cursor, acknowledged in groups."""

from __future__ import annotations

import pickle
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import millstream
from millstream import LogConsumer, Millstream, Record
from millstream.errors import CannotOpen, Closed, InvalidInput, RecordsLost
from millstream.threads.cursor import Cursor

PATIENCE_S = 60


@pytest.fixture
def ms(tmp_path: Path) -> Iterator[Millstream]:
    with millstream.open(tmp_path / "a.db", durability="relaxed") as store:
        yield store


def test_every_record_comes_once_and_in_order(ms: Millstream) -> None:
    log = ms.log("orders")
    log.append_many(range(1_000))
    with log.consumer("billing", prefetch=64, timeout=0) as consumer:
        numbers = []
        for record in consumer:
            numbers.append(record.json())
            consumer.ack(record)
    assert numbers == list(range(1_000))
    assert log.cursor("billing").info().floor == 1_000


def test_records_without_an_acknowledgement_come_again(ms: Millstream) -> None:
    log = ms.log("orders")
    log.append_many(range(10))
    with log.consumer("billing", prefetch=8) as consumer:
        for record in consumer:
            if record.json() != 1:
                consumer.ack(record)
            if record.json() == 3:
                break
    with log.consumer("billing", timeout=0, auto_ack=True) as consumer:
        assert [record.json() for record in consumer] == [1, 4, 5, 6, 7, 8, 9]
    assert log.cursor("billing").info().lag == 0


def test_acknowledgements_are_durable_after_a_flush(ms: Millstream) -> None:
    log = ms.log("orders")
    log.append_many(range(10))
    with log.consumer("billing", linger=PATIENCE_S) as consumer:
        for _, record in zip(range(4), consumer, strict=False):
            consumer.ack(record)
        consumer.flush()
        assert log.cursor("billing").info().floor == 4


def test_a_later_loop_gets_the_records_that_came_since(ms: Millstream) -> None:
    log = ms.log("orders")
    with log.consumer("billing", timeout=0, auto_ack=True) as consumer:
        assert [record.text for record in consumer] == []
        log.append("a")
        assert [record.text for record in consumer] == ["a"]


def test_a_loop_waits_for_records_until_a_stop(ms: Millstream) -> None:
    log = ms.log("orders")
    heard = threading.Event()
    consumers: list[LogConsumer] = []
    texts: list[str] = []

    def consume() -> None:
        with log.consumer("billing", start="latest") as consumer:
            consumers.append(consumer)
            heard.set()
            for record in consumer:
                texts.append(record.text)
                consumer.ack(record)
                heard.set()

    thread = threading.Thread(target=consume)
    thread.start()
    assert heard.wait(PATIENCE_S)
    for text in ("a", "b"):
        heard.clear()
        log.append(text)
        assert heard.wait(PATIENCE_S)
    consumers[0].stop()
    thread.join(PATIENCE_S)
    assert not thread.is_alive()
    assert texts == ["a", "b"]
    assert log.cursor("billing").info().lag == 0


def test_prefetch_bounds_the_records_without_an_acknowledgement(ms: Millstream) -> None:
    log = ms.log("orders")
    log.append_many(range(4))
    held: list[Record] = []
    is_full = threading.Event()

    def release() -> None:
        assert is_full.wait(PATIENCE_S)
        consumer.ack(held[0])

    with log.consumer("billing", prefetch=2) as consumer:
        helper = threading.Thread(target=release)
        helper.start()
        for record in consumer:
            held.append(record)
            if len(held) == 2:
                is_full.set()
            if len(held) == 3:
                break
        helper.join()
    assert [record.offset for record in held] == [0, 1, 2]
    assert log.cursor("billing").info().floor == 1


def test_a_partitioned_log_has_consumers_too(ms: Millstream) -> None:
    log = ms.log("orders", partitions=3)
    log.append_many(range(100), keys=[f"k{number % 7}" for number in range(100)])
    with log.consumer("billing", prefetch=16, timeout=0) as consumer:
        numbers = []
        for record in consumer:
            numbers.append(record.json())
            consumer.ack(record)
    assert sorted(numbers) == list(range(100))
    with log.consumer("billing", timeout=0) as consumer:
        assert list(consumer) == []


def test_lost_records_are_skipped_or_raised(ms: Millstream) -> None:
    log = ms.log("orders")
    log.append_many(range(6))
    log.cursor("strict")
    log.cursor("lenient")
    log.truncate(before=4)

    def consume() -> None:
        with log.consumer("strict", on_loss="raise") as consumer:
            next(iter(consumer))

    with pytest.raises(RecordsLost):
        consume()
    with log.consumer("lenient", timeout=0, auto_ack=True) as consumer:
        assert [record.json() for record in consumer] == [4, 5]


def test_a_later_loop_goes_on_behind_lost_records(ms: Millstream) -> None:
    log = ms.log("orders")
    log.append_many(range(6))
    log.cursor("strict")
    log.truncate(before=4)
    with log.consumer("strict", on_loss="raise", timeout=0, auto_ack=True) as consumer:
        with pytest.raises(RecordsLost):
            list(consumer)
        consumer.flush()
        assert [record.json() for record in consumer] == [4, 5]
    with log.consumer("strict", on_loss="raise", timeout=0) as consumer:
        assert list(consumer) == []


def test_a_consumer_names_misuse(ms: Millstream) -> None:
    log = ms.log("orders")
    log.append("a")
    with pytest.raises(InvalidInput, match="prefetch must be from 1"):
        log.consumer("billing", prefetch=0)
    consumer = log.consumer("billing")
    with pytest.raises(InvalidInput, match="inside of its block"):
        consumer.flush()
    with consumer:
        with pytest.raises(InvalidInput, match="a record of log 'orders' is expected"):
            consumer.ack("a")  # type: ignore[arg-type]
        record = next(iter(consumer))
        consumer.ack(record)
        consumer.ack(record)  # a repeat is a success
    with pytest.raises(Closed):
        consumer.ack(record)


def test_a_record_of_another_log_is_not_acknowledged(ms: Millstream) -> None:
    for name in ("orders", "letters"):
        ms.log(name).append_many(range(3))
    with ms.log("orders").consumer("billing") as consumer:
        with pytest.raises(InvalidInput, match="a record of log 'orders' is expected"):
            consumer.ack(ms.log("letters")[2])
        consumer.ack(ms.log("orders")[0])
    assert ms.log("orders").cursor("billing").info().lag == 2


def test_copies_of_records_acknowledge_them(ms: Millstream) -> None:
    """A pool of processes hands copies back."""
    log = ms.log("orders")
    log.append_many(range(6))
    with log.consumer("billing", prefetch=2, timeout=0) as consumer:
        for record in consumer:
            consumer.ack(pickle.loads(pickle.dumps(record)))
    assert log.cursor("billing").info().lag == 0


def test_a_partition_that_cannot_be_read_for_a_moment_hides_no_other_records(
    ms: Millstream, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = ms.log("parts", partitions=2)
    for number in range(2):
        log.append(b"%d" % number, partition=number)
    take, logs = Cursor.take, list[str]()

    def fail_second(cursor: Cursor, n: int = 1, **options: Any) -> Any:
        logs.append(cursor.log_name)
        if len(logs) == 2:
            raise CannotOpen("the server is away", again=True)
        return take(cursor, n, **options)

    monkeypatch.setattr(Cursor, "take", fail_second)
    with log.consumer("c", timeout=0.2) as consumer:
        assert sorted(record.value or b"" for record in consumer) == [b"0", b"1"]
    assert logs[0] != logs[1]
