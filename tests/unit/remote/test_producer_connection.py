"""Producers whose connection is lost: every message is stored once and in order."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import millstream
from millstream import aio
from millstream.errors import (
    CannotOpen,
    Closed,
    OutcomeUnknown,
    WriteFailed,
)
from millstream.server.serving import Serving
from tests.unit.remote.proxy import Proxy

COUNT = 400


def budgets() -> Iterator[int]:
    """Bytes that connections carry before they are cut: in the middle of requests and answers."""
    yield from (900, 1_500, 2_300, 4_100, 7_000, 12_000)


def test_messages_are_stored_once_though_connections_are_cut(proxy: Proxy) -> None:
    proxy.budgets = budgets()
    with millstream.open(proxy.url) as ms:
        log = ms.log("orders")
        with log.producer(in_flight=40, linger=0) as producer:
            handles = [producer.append(b"%d" % number) for number in range(COUNT)]
        assert [record.value for record in log.read()] == [
            b"%d" % number for number in range(COUNT)
        ]
        assert [handle.offset() for handle in handles] == [*range(COUNT)]
    assert proxy.connections > 3


async def test_coroutines_store_messages_once_though_connections_are_cut(proxy: Proxy) -> None:
    proxy.budgets = budgets()
    async with await aio.open(proxy.url) as ms:
        log = ms.log("orders")
        async with log.producer(in_flight=40, linger=0) as producer:
            for number in range(COUNT):
                await producer.append(b"%d" % number)
        values = [record.value async for record in log.read()]
        assert values == [b"%d" % number for number in range(COUNT)]
    assert proxy.connections > 3


def test_partitions_and_queues_store_messages_once_though_connections_are_cut(proxy: Proxy) -> None:
    with millstream.open(proxy.url) as ms:
        queue, log = ms.create_queue("jobs", priority_by="p"), ms.log("spread", partitions=3)
        log.create()
        proxy.budgets = budgets()
        proxy.cut()
        with (
            log.producer(in_flight=40, linger=0) as producer,
            queue.producer(in_flight=40, linger=0) as putting,
        ):
            for number in range(COUNT):
                producer.append(b"%d" % number, key=b"%d" % (number % 7))
                putting.put(
                    b"%d" % number, priority=number % 2, delay=3_600 if number % 5 else None
                )
        values = [int(record.value or b"") for record in log.read()]
        assert sorted(values) == [*range(COUNT)]
        info = queue.info()
        assert (info.delayed, info.available) == (COUNT * 4 // 5, COUNT // 5)


def test_a_server_that_stays_away_leaves_the_outcome_of_sent_messages_unknown(proxy: Proxy) -> None:
    with millstream.open(proxy.url, retry_for=0) as ms:
        producer = ms.log("orders").producer(linger=60, retry_for=0)
        assert producer.append(b"stored").offset() == 0
        proxy.loses_answers = True
        sent = producer.append(b"sent")
        with pytest.raises(TimeoutError):
            sent.offset(timeout=0)  # ends the linger
        assert proxy.lost.wait(30)
        gathered = producer.append(b"gathered")
        proxy.takes_nobody = True
        proxy.cut()
        with pytest.raises(OutcomeUnknown, match="look which messages are there") as unknown:
            sent.offset(timeout=30)
        assert "sequence" not in unknown.value.message  # the advice for a caller of `append`
        with pytest.raises(WriteFailed, match="Hand the message to a new producer"):
            gathered.offset(timeout=30)
        with pytest.raises(WriteFailed):
            producer.append(b"later")
        producer.close()


def test_the_next_block_is_stored_before_the_first_is_answered(
    server: Serving, proxy: Proxy
) -> None:
    with millstream.open(proxy.url) as ms, millstream.open(server.url) as beside:
        with ms.log("orders").producer(linger=0) as producer:
            assert producer.append(b"0").offset() == 0
            proxy.loses_answers = True
            handles = [producer.append(b"1")]
            assert beside.log("orders").wait(1, timeout=30)
            handles.append(producer.append(b"2"))
            assert beside.log("orders").wait(2, timeout=30)
            assert not any(handle.done for handle in handles)
            proxy.heal()
            proxy.cut()
            assert [handle.offset() for handle in handles] == [1, 2]
        assert [record.value for record in beside.log("orders").read()] == [b"0", b"1", b"2"]


def test_a_server_that_was_never_reached_stores_nothing(proxy: Proxy) -> None:
    with millstream.open(proxy.url, retry_for=0) as ms:
        producer = ms.log("orders").producer(linger=60, retry_for=0)
        proxy.takes_nobody = True
        proxy.cut()
        handle = producer.append(b"gathered")
        with pytest.raises((CannotOpen, OutcomeUnknown)):
            handle.offset(timeout=30)
        producer.close()


def test_a_closed_connection_closes_its_producers(proxy: Proxy) -> None:
    ms = millstream.open(proxy.url)
    producer = ms.log("orders").producer(linger=60)
    handle = producer.append(b"a")
    ms.close()
    with pytest.raises(Closed):
        handle.offset(timeout=30)
    producer.close()
