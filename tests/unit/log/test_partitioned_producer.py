"""The producer of a partitioned log: records of a key stay in order, over a file and over a server."""

from __future__ import annotations

import threading

import pytest

from millstream import Millstream, PartitionOffset
from millstream.errors import InvalidInput


def test_records_of_a_key_stay_in_order(ms: Millstream) -> None:
    log = ms.log("orders", partitions=4)
    with log.producer() as producer:
        handles = [
            producer.append(f"{number}", key=f"k{number % 7}", timestamp=5 if number % 5 else None)
            for number in range(700)
        ]
    records = {(record.partition, record.offset): record for record in log.read()}
    assert len(records) == 700
    for number, handle in enumerate(handles):
        place = handle.offset()
        assert place.partition == log.partition_for(f"k{number % 7}")
        assert records[place.partition, place.offset].text == f"{number}"
    by_key: dict[bytes | None, list[int]] = {}
    for _, record in sorted(records.items()):
        by_key.setdefault(record.key, []).append(int(record.text))
    assert all(numbers == sorted(numbers) for numbers in by_key.values())


def test_records_without_a_key_go_to_all_partitions_in_turn(ms: Millstream) -> None:
    log = ms.log("orders", partitions=3)
    with log.producer() as producer:
        places = [producer.append(b"%d" % number).offset() for number in range(9)]
    assert {place.partition for place in places} == {0, 1, 2}
    assert len(log) == 9


def test_a_partition_can_be_named(ms: Millstream) -> None:
    log = ms.log("orders", partitions=3)
    with log.producer() as producer:
        assert producer.append(b"a", partition=2).offset() == PartitionOffset(2, 0)
        wrong = producer.append(b"b", partition=3)
        with pytest.raises(InvalidInput, match="partitions 0 to 2"):
            wrong.offset()


def test_a_log_that_was_deleted_is_made_anew(ms: Millstream) -> None:
    log = ms.log("orders", partitions=2)
    with log.producer() as producer:
        producer.append(b"a", partition=0).offset()
        log.delete()
        producer.append(b"b", partition=1).offset()
        producer.append(b"c", partition=0).offset()
    assert sorted(record.value or b"" for record in log.read()) == [b"b", b"c"]


def test_threads_share_a_producer_of_many_partitions(ms: Millstream) -> None:
    log = ms.log("orders", partitions=64)
    with log.producer(linger=0, in_flight=100) as producer:

        def work(name: int) -> None:
            for number in range(200):
                producer.append(f"{name}:{number}", partition=(name * 16 + number) % 64)

        threads = [threading.Thread(target=work, args=(name,)) for name in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert len({record.text for record in log.read()}) == len(log) == 800
