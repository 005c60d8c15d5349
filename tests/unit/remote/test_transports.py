"""Over which transport a client talks, and threads that share a connection: interrupts, silence, ends."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import partial
from typing import Any

import pytest

import millstream
from millstream import Producer, aio
from millstream.errors import Closed, OutcomeUnknown
from millstream.remote import nodes
from millstream.remote import thread_calls as remote_call
from millstream.remote.thread_connection import ThreadConnection
from millstream.server.serving import Serving
from tests.interrupting import code_on_main, interrupted
from tests.unit.remote.conftest import Call
from tests.unit.remote.proxy import Proxy
from tests.unit.remote.test_session import connections, until_waiting


def is_websocket(ms: Any) -> bool:
    return {"frames": False, "websocket": True}[ms.session.transport]


# Frames first, and a WebSocket where they do not come through.


async def test_frames_are_spoken_where_they_come_through(proxy: Proxy) -> None:
    with millstream.open(proxy.url) as ms:
        assert not is_websocket(ms)
        assert ms.log("a").append(b"x") == 0
    async with await aio.open(proxy.url) as twin:
        assert not is_websocket(twin)
        assert await twin.log("a").append(b"x") == 1
    assert proxy.connections == 2


@pytest.mark.parametrize("hangs_up", [False, True])
async def test_a_proxy_that_knows_websockets_only_gets_one(proxy: Proxy, hangs_up: bool) -> None:
    proxy.upgrades, proxy.hangs_up = b"websocket", hangs_up
    values = [os.urandom(100_000), b"x"]
    with millstream.open(proxy.url) as ms:
        assert is_websocket(ms)
        log = ms.log("a")
        assert log.append_many(values) == range(2)
        waiting = Call(lambda: log.wait(3))
        assert log.append(b"y", producer=Producer("p", 0)) == 2
        before = proxy.connections
        proxy.cut()
        assert log.end_offset() == 3
        assert log.append(b"z", producer=Producer("p", 1)) == 3
        assert waiting.result() is True
        assert [record.value for record in log.read()] == [*values, b"y", b"z"]
        assert proxy.connections == before + 1  # frames are not tried again
    async with await asyncio.wait_for(aio.open(proxy.url), 30) as twin:
        assert is_websocket(twin)
        assert await twin.log("a").append(b"x") == 4
        proxy.cut()
        assert await twin.log("a").end_offset() == 5


async def test_closing_leaves_no_failure_in_the_loop(server: Serving, proxy: Proxy) -> None:
    failures: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, found: failures.append(found))
    for url in (server.url, proxy.url):
        ms = await aio.open(url)
        waiting = asyncio.ensure_future(ms.log("a").wait(5))
        assert await ms.log("a").end_offset() == 0
        await ms.close()
        with pytest.raises(Closed):
            await waiting
    await asyncio.to_thread(until, lambda: connections(server) == 0)
    for _ in range(5):
        await asyncio.sleep(0)
    assert failures == []


# Threads that share a connection.


def test_a_claim_that_waits_holds_up_no_other_call(server: Serving) -> None:
    with millstream.open(server.url) as ms:
        queue = ms.create_queue("jobs", lease=60)
        waiting = [Call(lambda: [m.value for m in queue.claim(wait=60)]) for _ in range(3)]
        until_waiting(server, 1)
        assert [ms.log("a").append(b"x") for _ in range(50)] == [*range(50)]
        queue.put_many([b"job"] * 3)
        assert [call.result() for call in waiting] == [[b"job"]] * 3
        assert ms.log("a").end_offset() == 50
        assert connections(server) == 1


def interrupted_with(server: Serving, *, waits: int) -> AbstractContextManager[None]:
    """Press Ctrl-C once so many wait at the server, and the main thread waits for it."""

    def all_wait(over: threading.Event) -> None:
        until_waiting(server, waits)
        until(lambda: over.is_set() or waits_for_the_server())

    return interrupted(all_wait)


def waits_for_the_server() -> bool:
    """Whether the main thread is where an interrupt costs no connection: it reads for all, or sleeps."""
    return next(code_on_main()) in (
        ThreadConnection.wait.__code__,
        remote_call.ThreadRequest.sleep.__code__,
    )


def test_an_interrupt_ends_one_call_and_no_other(server: Serving, proxy: Proxy) -> None:
    with millstream.open(proxy.url) as ms:
        log = ms.log("a")
        with interrupted_with(server, waits=1):
            log.wait(0)  # it reads for all
        assert log.append(b"x") == 0
        other = Call(lambda: log.wait(1))
        with interrupted_with(server, waits=2):
            log.wait(5)
        assert log.append(b"y") == 1
        assert other.result() is True
        assert proxy.connections == 1


def test_an_interrupt_leaves_the_reading_to_another(server: Serving) -> None:
    with millstream.open(server.url) as ms:
        log = ms.log("a")
        others: list[Call] = []

        def begin() -> None:
            until_waiting(server, 1)
            others.extend(Call(lambda: log.wait(0)) for _ in range(3))

        starting = Call(begin)
        with interrupted_with(server, waits=4):
            log.wait(5)
        assert starting.result() is None
        with millstream.open(server.url) as producer:
            producer.log("a").append(b"x")
        assert [call.result() for call in others] == [True] * 3


@pytest.mark.parametrize("upgrade", [b"millstream", b"websocket"])
@pytest.mark.parametrize("has_reader", [False, True])
def test_a_claim_that_is_interrupted_keeps_nothing_from_others(
    server: Serving, proxy: Proxy, upgrade: bytes, has_reader: bool
) -> None:
    """Its lease would last for an hour. Another call of the same connection goes on."""
    proxy.upgrades = upgrade
    with millstream.open(proxy.url) as ms, millstream.open(server.url) as other:
        queue, log = ms.create_queue("jobs", lease=3_600), ms.log("a")
        assert is_websocket(ms) == (upgrade == b"websocket")
        reader = Call(lambda: log.wait(0)) if has_reader else None
        with interrupted_with(server, waits=1 + has_reader):
            queue.claim(wait=60)
        other.queue("jobs").put(b"x")
        assert [message.value for message in other.queue("jobs").claim(wait=30)] == [b"x"]
        if reader is not None:
            other.log("a").append(b"y")
            assert reader.result() is True
        queue.put(b"z")
        assert [message.value for message in queue.claim(wait=30)] == [b"z"]


@pytest.mark.parametrize("repeatable", [True, False])
def test_a_server_that_falls_silent_is_let_go(
    proxy: Proxy, monkeypatch: pytest.MonkeyPatch, repeatable: bool
) -> None:
    monkeypatch.setattr(nodes, "PING_S", 0.1)
    with millstream.open(proxy.url) as ms:
        log = ms.log("a")
        log.append(b"x", producer=Producer("p", 0))  # also if we are so slow that it is repeated
        proxy.loses_answers = True
        asked = Call(log.end_offset if repeatable else lambda: log.append(b"y"))
        assert proxy.lost.wait(30)
        if repeatable:
            until(lambda: proxy.connections > 1)  # it was asked whether it is there, in vain
            proxy.heal()
            assert asked.result() == 1
        else:
            assert isinstance(asked.result(), OutcomeUnknown)
            proxy.heal()


async def test_a_server_that_falls_silent_is_let_go_by_coroutines(
    proxy: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(nodes, "PING_S", 0.1)
    async with await aio.open(proxy.url) as ms:
        assert await ms.log("a").append(b"x", producer=Producer("p", 0)) == 0
        proxy.loses_answers = True
        asked = asyncio.ensure_future(ms.log("a").end_offset())
        await asyncio.to_thread(until, lambda: proxy.connections > 1)
        proxy.heal()
        assert await asked == 1


def until(condition: Callable[[], bool]) -> None:
    while not condition():
        threading.Event().wait(0.001)


def test_an_idle_connection_that_has_ended_is_noticed_before_something_is_sent(
    proxy: Proxy, server: Serving
) -> None:
    with millstream.open(proxy.url) as ms:
        log = ms.log("a")
        for sequence in range(5):
            assert log.append(b"x") == sequence  # its outcome would be unknown
            proxy.cut()
            until(lambda: connections(server) == 0)


def test_closing_ends_calls_that_wait_for_a_server_to_come_back(proxy: Proxy) -> None:
    ms = millstream.open(proxy.url)
    log = ms.log("a")
    log.append(b"x")
    proxy.takes_nobody = True
    proxy.cut()
    calls = [Call(log.end_offset) for _ in range(3)]
    until(lambda: proxy.connections > 2)
    ms.close()
    assert all(isinstance(call.result(), Closed) for call in calls)


def test_many_threads_close_and_call_at_once(server: Serving) -> None:
    for _ in range(20):
        ms = millstream.open(server.url)
        log = ms.log("a")
        calls = [Call(log.end_offset) for _ in range(4)] + [Call(partial(log.wait, 9**9))]
        ends = [Call(ms.close) for _ in range(2)]
        assert [call.result() for call in ends] == [None, None]
        for call in calls:
            assert call.result() == 0 or isinstance(call.result(), Closed)
    until(lambda: connections(server) == 0)
