"""Clients that leave while their claims are answered: the messages can be claimed again at once.

Nothing here waits for a lease: it lasts for an hour.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from millstream.aio.database import Millstream
from millstream.aio.queue import Queue
from millstream.embedded.session import open_store
from millstream.errors import Unauthenticated
from millstream.queue.commands import ClaimMessages
from millstream.server import direct
from millstream.server.auth.access import ANYONE_HERE, Principal
from millstream.server.auth.permission import parse_permission
from millstream.server.claim_counts import ClaimCounts
from millstream.server.core import Core
from millstream.server.settings import Settings
from millstream.server.socket.socket import Socket
from millstream.store.commit.gather import KEPT
from millstream.testing import Faults, MemoryEngine, Pause, Probe
from millstream.wire import commands as wire
from tests.unit.server.asking import Rest, looped, serving

HOUR_MS = 3_600_000
LONG_MS = 20_000
CLAIM = ClaimMessages("jobs", 1, HOUR_MS, "c", LONG_MS, [])


class Client:
    """One connection to a socket in this process, whose frames the test hands over."""

    def __init__(self, core: Core) -> None:
        self.frames: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        self.frames.put_nowait({"type": "websocket.connect"})
        self.answers: asyncio.Queue[Any] = asyncio.Queue()
        self.is_gone = False
        self.reads = asyncio.Event()
        self.reads.set()
        scope = {
            "subprotocols": [wire.SUBPROTOCOL],
            "headers": [],
            "state": {
                "principal": ANYONE_HERE,
                "count_received": lambda size: None,
                "abort": lambda: None,
                "is_gone": lambda: self.is_gone,
            },
        }
        self.talk = asyncio.create_task(Socket(core)(scope, self.frames.get, self._send))

    async def _send(self, message: Any) -> None:
        if message["type"] == "websocket.send" and self.answers.qsize():
            await self.reads.wait()
        await self.answers.put(message)

    def ask(self, command: ClaimMessages) -> None:
        """Send a request."""
        frame = wire.encode_requests([(1, command)])
        self.frames.put_nowait({"type": "websocket.receive", "bytes": frame})

    async def leave(self) -> None:
        """Tell the application that the client has left; the conversation ends."""
        self.frames.put_nowait({"type": "websocket.disconnect", "code": 1006})
        await self.talk


class At:
    """A core over a store whose commits can be held up, and a queue in it."""

    def __init__(self, core: Core, faults: Faults, queue: Queue) -> None:
        self.core, self.faults, self.queue = core, faults, queue

    async def until_in_line(self) -> None:
        """Let the others run until a claim waits."""
        probe = Probe(self.core.store)
        await probe.until_async(lambda: probe.claims_waiting("jobs") == 1)

    async def is_claimed_again(self) -> None:
        """Another claim gets the message, and waits for no lease."""
        assert len(await self.queue.claim(1, wait=LONG_MS / 1000)) == 1


@asynccontextmanager
async def held_up() -> AsyncIterator[At]:
    faults = Faults()
    core = Core(open_store(MemoryEngine(faults=faults)), Settings())
    Probe(core.store).pause_keeper()
    ms = Millstream(core.session)
    try:
        yield At(core, faults, await ms.create_queue("jobs", lease=3600, max_attempts=1))
    finally:
        await core.close()


async def warm(at: At) -> None:
    """Have the event loop make commits itself, and claims without a task."""
    for _ in range(KEPT):
        await at.queue.put(b"x")
        await at.queue.ack(await at.queue.claim())
    await at.queue.claim()


@looped
async def test_a_connection_is_lost_and_the_conversation_does_not_know_it_yet() -> None:
    async with held_up() as at:
        client = Client(at.core)
        client.ask(CLAIM)
        await at.until_in_line()
        client.is_gone = True
        await at.queue.put(b"a")
        await at.is_claimed_again()
        await client.leave()


@looped
async def test_a_connection_is_lost_behind_an_answer_that_was_not_read() -> None:
    async with held_up() as at:
        client = Client(at.core)
        client.ask(CLAIM)
        await at.until_in_line()
        client.reads.clear()
        await at.queue.put(b"a")

        async def is_in_flight() -> bool:
            return (await at.queue.info()).in_flight == 1

        await Probe(at.core.store).until_async(is_in_flight)
        assert not client.talk.done()
        await client.leave()
        await at.is_claimed_again()


@pytest.mark.parametrize("is_warm", [True, False])
@looped
async def test_a_connection_ends_while_its_claim_is_committed(is_warm: bool) -> None:
    async with held_up() as at:
        if is_warm:
            await warm(at)
        client = Client(at.core)
        await at.queue.put(b"a")
        with Pause() as pause:
            at.faults.on("begin", pause)
            blocking = asyncio.to_thread(at.core.store.fold)
            held = asyncio.create_task(blocking)
            await asyncio.to_thread(pause.wait_until_reached)
            client.ask(CLAIM)
            while client.frames.qsize():
                await asyncio.sleep(0)
            await client.leave()
        await held
        await at.is_claimed_again()


@looped
async def test_a_direct_claim_is_cancelled_before_its_task_began() -> None:
    async with held_up() as at:
        await warm(at)
        told: asyncio.Future[Any] = asyncio.get_running_loop().create_future()

        def done(found: Any) -> None:
            found.cancel()
            told.set_result(found)

        before = asyncio.all_tasks()
        assert direct.begin(at.core, ANYONE_HERE, CLAIM, ClaimCounts(10), done)
        task = await told
        with pytest.raises(asyncio.CancelledError):
            await task
        async with asyncio.timeout(LONG_MS / 2000):  # no task stands in line for it
            await asyncio.gather(*asyncio.all_tasks() - before, return_exceptions=True)
        await at.queue.put(b"a")
        await at.is_claimed_again()


@looped
async def test_a_claim_whose_token_ends_while_it_waits_keeps_nothing() -> None:
    async with held_up() as at:
        somebody = Principal("somebody", (parse_permission("*:admin"),), token="t1")
        confirmed: list[Principal] = []

        def once(principal: Principal) -> Principal:
            if confirmed:
                raise Unauthenticated("the token was revoked")
            confirmed.append(principal)
            return principal

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(at.core.tokens, "confirm_at_once", once)
            claim = asyncio.create_task(at.core.execute(somebody, CLAIM))
            await at.until_in_line()
            await at.queue.put(b"a")
            with pytest.raises(Unauthenticated):
                await claim
        await at.is_claimed_again()
        assert at.core.admission.holdings_of(somebody).is_empty(0)


async def leaves_during_a_claim(rest: Rest, faults: Faults, wait: bytes) -> None:
    """A request whose client is gone before its claim is durable."""
    left = asyncio.Event()
    inbox: list[dict[str, Any]] = [
        {"type": "http.request", "body": b'{"wait": %b}' % wait, "more_body": False}
    ]

    async def receive() -> dict[str, Any]:
        if not inbox:
            await left.wait()
            return {"type": "http.disconnect"}
        return inbox.pop()

    async def send(message: Any) -> None:
        """Nobody hears it."""

    scope = {
        "type": "http",
        "method": "POST",
        "path": "/queues/q/claims",
        "raw_path": b"/queues/q/claims",
        "query_string": b"",
        "headers": [(b"content-type", b"application/json")],
        "state": {"principal": ANYONE_HERE, "is_gone": left.is_set},
    }
    with Pause() as pause:
        faults.on("sent", pause)
        asked = asyncio.create_task(rest.app(scope, receive, send))  # type: ignore[arg-type]
        await asyncio.to_thread(pause.wait_until_reached)
        left.set()
        await asked


@looped
async def test_a_request_whose_client_leaves_while_a_thread_makes_its_claim() -> None:
    faults = Faults()
    async with serving(engine=MemoryEngine(faults=faults)) as rest:
        Probe(rest.core.store).pause_keeper()
        await rest.put("/queues/q", json={"lease": 3600})
        await rest.post("/queues/q/messages", json={"value": 1})
        await leaves_during_a_claim(rest, faults, b"30")
        found = await rest.post("/queues/q/claims", json={"wait": 20})
        assert len(found.json()["messages"]) == 1
