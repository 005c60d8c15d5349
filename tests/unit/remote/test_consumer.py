"""A consumer whose connection is cut, and whose server is away for a while, loses no message."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

import millstream
from millstream import aio
from millstream.errors import CannotOpen, MillstreamError
from millstream.queue.service import claims
from millstream.server.serving import Serving, running
from millstream.server.socket import conversation
from millstream.streaming import prefetching
from tests.unit.remote.conftest import SETTINGS
from tests.unit.remote.proxy import Proxy, proxied

MESSAGES = 400
LEASE_S = 3.0
IDLE_S = 1.0
AWAY_S = 0.5
"""Several times as long as the session tries to reach its server."""


def direct(proxy: Proxy) -> str:
    """Return the address of the server itself."""
    return f"http://127.0.0.1:{proxy.target}"


def test_a_loop_whose_connection_is_cut_over_and_over_gets_every_message(proxy: Proxy) -> None:
    seen: set[int] = set()
    cuts = [*range(MESSAGES // 10, MESSAGES, MESSAGES // 10)]
    with millstream.open(proxy.url) as ms:
        queue = ms.queue("jobs", lease=LEASE_S, max_attempts=100, backoff=0)
        queue.put_many(range(MESSAGES))
        while queue.info().done < MESSAGES:
            with queue.consumer(prefetch=16, timeout=IDLE_S) as consumer:
                for message in consumer:
                    seen.add(message.json())
                    consumer.ack(message)
                    if cuts and len(seen) > cuts[0]:
                        del cuts[0]
                        proxy.cut()
        info = queue.info()
        assert (info.done, info.failed, info.in_flight) == (MESSAGES, 0, 0)
    assert (len(seen), cuts) == (MESSAGES, [])


async def test_a_coroutine_whose_connection_is_cut_gets_every_message(proxy: Proxy) -> None:
    seen: set[int] = set()
    cuts = [*range(MESSAGES // 10, MESSAGES, MESSAGES // 10)]
    async with await aio.open(proxy.url) as ms:
        queue = await ms.queue("jobs", lease=LEASE_S, max_attempts=100, backoff=0)
        await queue.put_many(range(MESSAGES))
        while (await queue.info()).done < MESSAGES:
            async with queue.consumer(prefetch=16, timeout=IDLE_S) as consumer:
                async for message in consumer:
                    seen.add(message.json())
                    await consumer.ack(message)
                    if cuts and len(seen) > cuts[0]:
                        del cuts[0]
                        proxy.cut()
        info = await queue.info()
        assert (info.done, info.failed, info.in_flight) == (MESSAGES, 0, 0)
    assert (len(seen), cuts) == (MESSAGES, [])


def test_answers_that_are_lost_leave_nothing_claimed(proxy: Proxy) -> None:
    """The claim, or the acknowledgement, has taken effect, and the consumer does not hear of it."""
    losses = [5, 25, 45]
    seen: set[int] = set()
    healing: list[threading.Thread] = []
    with millstream.open(proxy.url) as ms:
        queue = ms.queue("jobs", lease=LEASE_S, max_attempts=100, backoff=0)
        queue.put_many(range(60))
        while queue.info().done < 60:
            with queue.consumer(prefetch=8, timeout=IDLE_S) as consumer:
                for message in consumer:
                    seen.add(message.json())
                    consumer.ack(message)
                    if losses and len(seen) > losses[0]:
                        del losses[0]
                        proxy.loses_answers = True
                        healing.append(threading.Thread(target=heal_after_loss, args=(proxy,)))
                        healing[-1].start()
        for thread in healing:
            thread.join()
        info = queue.info()
        assert (info.done, info.failed, info.in_flight) == (60, 0, 0)
    assert (len(seen), losses) == (60, [])


def heal_after_loss(proxy: Proxy) -> None:
    """Cut the connection once an answer was lost."""
    proxy.lost.wait(30)
    proxy.heal()
    proxy.cut()


def test_a_loop_waits_for_a_server_that_is_away_longer_than_its_session_tries(
    proxy: Proxy,
) -> None:
    with millstream.open(proxy.url, retry_for=0.1) as ms:
        queue = ms.queue("jobs", lease=60, max_attempts=3)
        queue.put("first")
        with queue.consumer() as consumer:
            loop = iter(consumer)
            message = next(loop)
            proxy.takes_nobody = True
            proxy.cut()
            consumer.ack(message)
            returning = threading.Timer(AWAY_S, proxy.heal)
            returning.start()
            putting = threading.Timer(AWAY_S, put_directly, args=(proxy,))
            putting.start()
            message = next(loop)
            assert message.text == "second"
            consumer.ack(message)
            returning.join()
            putting.join()
        assert (queue.info().done, queue.info().in_flight) == (2, 0)


def test_a_flush_gives_up_while_the_server_is_away_and_can_be_repeated(proxy: Proxy) -> None:
    with millstream.open(proxy.url, retry_for=0.1) as ms:
        queue = ms.queue("jobs", lease=3600, max_attempts=3)
        queue.put("a")
        with queue.consumer(linger=60) as consumer:
            consumer.ack(next(iter(consumer)))
            proxy.takes_nobody = True
            proxy.cut()
            with pytest.raises(CannotOpen):
                consumer.flush()
            proxy.heal()
            consumer.flush()
            assert queue.info().done == 1


def put_directly(proxy: Proxy) -> None:
    with millstream.open(direct(proxy)) as ms:
        ms.queue("jobs").put("second")


def test_a_block_reports_acknowledgements_that_could_not_be_sent(tmp_path: Path) -> None:
    def consume(url: str, server: Serving) -> None:
        with millstream.open(url, retry_for=0.1) as ms:
            queue = ms.queue("jobs", lease=3600, max_attempts=3)
            queue.put("a")
            with queue.consumer(linger=60) as consumer:
                consumer.ack(next(iter(consumer)))
                proxy.takes_nobody = True
                proxy.cut()

    with running(tmp_path / "served.db", SETTINGS, durability="relaxed") as server:
        with proxied(server.port) as proxy, pytest.raises(MillstreamError):
            consume(proxy.url, server)
        with millstream.open(f"http://127.0.0.1:{server.port}") as ms:
            assert ms.queue("jobs").info().done == 0


def test_a_claim_of_large_messages_gets_as_many_as_an_answer_takes(
    server: Serving, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(conversation, "CLAIM_BYTES_MAX", 1_000)
    with millstream.open(server.url) as ms:
        names = [f"log{number}" for number in range(6)]
        queue = ms.queue("jobs", sources=names, start="earliest", max_attempts=1)
        for name in names:
            ms.log(name).append(b"x" * 400)
        claimed = [message for _ in range(2) for message in queue.claim(6, wait=IDLE_S)]
        assert len(claimed) == 4
        with queue.consumer(timeout=IDLE_S) as consumer:
            for message in consumer:
                claimed.append(message)
                consumer.ack(message)
        info = queue.info()
    assert sorted(message.log for message in claimed) == names
    assert (info.in_flight, info.done, info.failed) == (4, 2, 0)


@pytest.mark.parametrize("how", ["one by one", "as a block"])
def test_a_claim_of_large_messages_that_lie_together_gets_a_part(
    server: Serving, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    monkeypatch.setattr(conversation, "CLAIM_BYTES_MAX", 1_000)
    values = [b"%d" % number * 400 for number in range(5)]
    with millstream.open(server.url) as ms:
        queue = ms.create_queue("jobs", max_attempts=1)
        if how == "as a block":
            queue.put_many(values)
        else:
            for value in values:
                queue.put(value)
        claimed = [queue.claim(5, wait=IDLE_S) for _ in range(3)]
        queue.ack([message for messages in claimed for message in messages])
        info = queue.info()
    assert [len(messages) for messages in claimed] == [2, 2, 1]
    assert [message.value for messages in claimed for message in messages] == values
    assert (info.in_flight, info.done, info.failed) == (0, 5, 0)


def test_large_messages_are_claimed_in_small_refills(
    server: Serving, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(prefetching, "REFILL_BYTES", 1_000)
    with millstream.open(server.url) as ms:
        queue = ms.create_queue("jobs")
        queue.put_many([b"x" * 400] * 20)
        flights = []
        with queue.consumer(prefetch=8, timeout=IDLE_S) as consumer:
            for message in consumer:
                flights.append(queue.info().in_flight)
                consumer.ack(message)
        assert queue.info().done == 20
    assert flights[0] == 8
    assert max(flights[8:]) < 8


@pytest.mark.parametrize("waits", [False, True])
def test_a_pop_of_large_messages_takes_a_part_and_leaves_the_others(
    server: Serving, monkeypatch: pytest.MonkeyPatch, waits: bool
) -> None:
    monkeypatch.setattr(claims, "POP_BYTES_MAX", 1_000)
    with millstream.open(server.url) as ms:
        names = [f"log{number}" for number in range(6)]
        queue = ms.queue("jobs", sources=names, start="earliest", max_attempts=1)
        for name in names:
            ms.log(name).append(b"x" * 400)
        popped = [queue.pop(6, wait=IDLE_S if waits else None) for _ in range(4)]
        info = queue.info()
    assert [len(messages) for messages in popped] == [2, 2, 2, 0]
    assert sorted(message.log for messages in popped for message in messages) == names
    assert (info.in_flight, info.done, info.failed) == (0, 6, 0)


def test_a_pop_of_large_messages_that_lie_together_takes_a_part(
    server: Serving, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(claims, "POP_BYTES_MAX", 1_000)
    with millstream.open(server.url) as ms:
        queue = ms.create_queue("jobs", max_attempts=1)
        queue.put_many([b"%d" % number * 400 for number in range(5)])
        popped = [queue.pop(5) for _ in range(4)]
        info = queue.info()
    assert [len(messages) for messages in popped] == [2, 2, 1, 0]
    values = [message.value for messages in popped for message in messages]
    assert sorted(filter(None, values)) == [b"%d" % number * 400 for number in range(5)]
    assert (info.in_flight, info.done, info.failed) == (0, 5, 0)
