"""Claims that wait at a server: they stand in one line, and their looks are queries of their token."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from typing import Any

import pytest

import millstream
from millstream import aio
from millstream.queue.commands import ClaimMessages
from millstream.queue.model.message import messages_of
from millstream.server.auth.access import Principal
from millstream.server.auth.permission import parse_permission
from millstream.server.auth.query_turns import Turns
from millstream.server.auth.quota import TURNS
from millstream.server.auth.tokens import create_token
from millstream.server.core import Core
from millstream.server.serving import running
from millstream.server.settings import Settings
from millstream.testing import Probe
from tests.unit.server.asking import Rest, served
from tests.unit.server.guarded import guarded, in_loop

TOKEN = Principal("somebody", (parse_permission("*:admin"),), token="t1")
OTHER = Principal("another", (parse_permission("*:admin"),), token="t2")
MANY = 60
LOOKED = "n = 1"
"""A filter: claims of such a queue look at its logs by a thread, which takes a turn of the token."""


def claim(wait_ms: int | None = 30_000) -> ClaimMessages:
    return ClaimMessages("q", 1, None, "c", wait_ms, [])


def in_line(core: Core) -> int:
    return Probe(core.store).claims_waiting("q")


async def until_in_line(core: Core, count: int) -> None:
    await Probe(core.store).until_async(lambda: in_line(core) == count)


def _anybody(principal: Principal) -> Principal:
    """A register that knows every token."""
    return principal


def test_a_look_of_a_claim_that_waits_is_a_query_of_its_token() -> None:
    async def test() -> None:
        async with guarded(Settings()) as at:
            queue = at.ms.queue("q", lease=60, filter=LOOKED)
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(at.core.tokens, "confirm_at_once", _anybody)
                waiting = asyncio.create_task(at.core.execute(TOKEN, claim()))
                await until_in_line(at.core, 1)
                turns = at.core.quota.turns(TOKEN)
                for _ in range(TURNS):
                    await turns.__aenter__()
                newcomer = asyncio.create_task(at.core.execute(TOKEN, claim()))
                await asyncio.to_thread(queue.put_many, [b"a", b"b", b"c"])
                assert len(messages_of(await at.core.execute(OTHER, claim()))) == 1
                assert not waiting.done()
                assert not newcomer.done()
                for _ in range(TURNS):
                    turns.end()
                assert len(messages_of(await waiting)) == 1
                assert len(messages_of(await newcomer)) == 1

    in_loop(test)


class NotedTurns(Turns):
    """Turns that report when a claim asks for a turn to look."""

    def __init__(self, turns: int) -> None:
        super().__init__(turns)
        self.is_looking = asyncio.Event()

    async def begin_look(self) -> None:
        self.is_looking.set()
        await super().begin_look()


def test_a_token_without_a_free_turn_holds_a_line_up_for_one_query_at_most() -> None:
    async def test() -> None:
        async with guarded(Settings()) as at:
            queue = at.ms.queue("q", lease=60, filter=LOOKED)
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(at.core.tokens, "confirm_at_once", _anybody)
                of_token = {TOKEN: NotedTurns(TURNS), OTHER: NotedTurns(TURNS)}
                patch.setattr(at.core.quota, "turns", of_token.__getitem__)
                first = asyncio.create_task(at.core.execute(TOKEN, claim()))
                await until_in_line(at.core, 1)
                second = asyncio.create_task(at.core.execute(OTHER, claim()))
                await until_in_line(at.core, 2)
                turns = of_token[TOKEN]
                for _ in range(TURNS):
                    await turns.__aenter__()
                flood = [asyncio.create_task(turns.__aenter__()) for _ in range(100)]
                await asyncio.sleep(0)
                turns.is_looking.clear()
                await asyncio.to_thread(queue.put_many, [b"a", b"b"])
                await turns.is_looking.wait()
                turns.end()  # one query of the token is over
                assert len(messages_of(await first)) == 1
                assert len(messages_of(await second)) == 1
                assert sum(one.done() for one in flood) <= 3
                for _ in range(100 + TURNS - 1):
                    turns.end()
                await asyncio.gather(*flood)

    in_loop(test)


@served
async def test_requests_that_wait_stand_in_one_line(rest: Rest) -> None:
    await rest.put("/queues/q", json={})
    waits = [
        asyncio.create_task(rest.post("/queues/q/claims", json={"n": 1, "wait": 30}))
        for _ in range(MANY)
    ]
    await until_in_line(rest.core, MANY)
    before = rest.core.store.stats()["operations"]
    await rest.post("/queues/q/messages", json={"messages": [{"value": 1}]})
    await until_in_line(rest.core, MANY - 1)
    assert rest.core.store.stats()["operations"] - before <= 5
    await rest.post("/queues/q/messages", json={"messages": [{"value": 1}] * (MANY - 1)})
    found = [(await wait).json()["messages"] for wait in waits]
    assert [len(messages) for messages in found] == [1] * MANY
    assert len({messages[0]["claim"] for messages in found}) == MANY


@served
async def test_all_requests_that_wait_are_told_that_the_queue_is_gone(rest: Rest) -> None:
    await rest.put("/queues/q", json={})
    waits = [
        asyncio.create_task(rest.post("/queues/q/claims", json={"n": 1, "wait": 30}))
        for _ in range(MANY)
    ]
    await until_in_line(rest.core, MANY)
    await rest.delete("/queues/q")
    assert {(await wait).status_code for wait in waits} == {404}


def test_a_client_that_goes_away_passes_its_place_on(tmp_path: Path) -> None:
    """The first in line hangs up at the moment of the put; the next gets what comes after."""

    async def test(url: str, core: Core, token: str) -> None:
        ms = await aio.open(url, token=token)
        queue = await ms.create_queue("q", lease=60)
        for _ in range(10):
            gone = await aio.open(url, token=token)
            lost = asyncio.create_task((await gone.queue("q")).claim(1, wait=30, lease=0.2))
            await until_in_line(core, 1)
            claims = [asyncio.create_task(queue.claim(1, wait=30)) for _ in range(5)]
            await until_in_line(core, 6)
            await asyncio.gather(queue.put_many([b"x"] * 5), gone.close())
            await asyncio.gather(lost, return_exceptions=True)
            for held in await asyncio.gather(*claims):
                await queue.ack(held)
        await ms.close()

    with millstream.open(tmp_path / "store.db") as ms:
        token = create_token(ms, "t", ["*:admin"])[1]
    settings = Settings(port=0, auth="on")
    with running(tmp_path / "store.db", settings, durability="relaxed") as server:
        assert server.core is not None
        core: Any = server.core
        in_loop(lambda: test(server.url, core, token))


def test_another_process_wakes_one_claim_of_a_servers_line(tmp_path: Path) -> None:
    with (
        running(tmp_path / "store.db", Settings(port=0), durability="relaxed") as server,
        millstream.open(tmp_path / "store.db", durability="relaxed") as neighbour,
        millstream.open(server.url) as ms,
    ):
        assert server.core is not None
        queue = ms.create_queue("q", lease=60)
        found: list[Any] = []
        threads = [
            threading.Thread(target=lambda: found.extend(queue.claim(1, wait=30)))
            for _ in range(10)
        ]
        for thread in threads:
            thread.start()
        pause = threading.Event()
        while in_line(server.core) != 10:
            pause.wait(0.002)
        neighbour.queue("q").put(b"x")
        while in_line(server.core) != 9:
            pause.wait(0.002)
        neighbour.queue("q").put_many([b"x"] * 9)
        for thread in threads:
            thread.join(30)
        assert len(found) == 10
