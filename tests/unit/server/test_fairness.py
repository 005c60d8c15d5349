"""What one client may ask for, over whatever it asks: the others are served meanwhile."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from typing import Any

import httpx
import pytest

import millstream
from millstream import aio
from millstream.errors import InvalidInput, InvalidName, MillstreamError, Overloaded, TooLarge
from millstream.limits import Limits
from millstream.log import commands as logs
from millstream.queue import commands as queues
from millstream.queue.model.message import messages_of
from millstream.queue.model.spec import QueueSpec
from millstream.server.auth.access import ANYONE_HERE, Principal
from millstream.server.auth.permission import parse_permission
from millstream.server.auth.quota import RECEIVING_BYTES_MAX, SENDING_BYTES_MAX, SMALL_BYTES, TURNS
from millstream.server.auth.tokens import create_token
from millstream.server.serving import running
from millstream.server.settings import Settings
from millstream.testing import Probe, SimulatedClock
from tests.unit.server.asking import Rest, looped, problem, served, serving
from tests.unit.server.guarded import guarded, in_loop
from tests.unit.server.talking import single, talking

TOKEN = Principal("somebody", (parse_permission("*:admin"),), token="t1")
OTHER = Principal("another", (parse_permission("*:admin"),), token="t2")


# Open claims.


async def put(rest: Rest, count: int) -> None:
    await rest.put("/queues/q", json={})
    await rest.post("/queues/q/messages", json={"messages": [{"value": n} for n in range(count)]})


@looped
async def test_requests_of_one_token_hold_only_so_many_messages() -> None:
    async with serving(settings=Settings(claims_open_max=3)) as rest:
        await put(rest, 10)
        claims = "/queues/q/claims"
        held = (await rest.post(claims, json={"n": 2})).json()["messages"]
        assert len(held) == 2
        held += (await rest.post(claims, json={"n": 100})).json()["messages"]
        assert len(held) == 3
        answer = await rest.post(claims, json={"n": 1})
        assert "finish some" in problem(answer, 429, "Overloaded")["detail"]
        assert answer.headers["retry-after"] == "1"
        await rest.post("/queues/q/ack", json={"claims": held[0]["claim"]})
        assert len((await rest.post(claims, json={"n": 5})).json()["messages"]) == 1
        operation = {"op": "ack", "queue": "q", "claims": [held[1]["claim"]]}
        done = await rest.post("/transactions", json={"operations": [operation]})
        assert done.status_code == 200, done.text
        assert len((await rest.post(claims, json={"n": 5})).json()["messages"]) == 1
        assert len((await rest.post("/queues/q/pop", json={"n": 2})).json()["messages"]) == 2
        rest.clock.advance(31)  # leases that have ended hold nothing
        assert len((await rest.post(claims, json={"n": 5})).json()["messages"]) == 3


def test_tokens_hold_messages_each_for_itself() -> None:
    async def test() -> None:
        async with guarded(Settings(claims_open_max=2)) as at:
            at.ms.queue("q", max_attempts=3).put_many([b"x"] * 10)
            claim = queues.ClaimMessages("q", 5, None, "c", None, [])
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(at.core.tokens, "confirm_at_once", _anybody)
                assert len(messages_of(await at.core.execute(TOKEN, claim))) == 2
                with pytest.raises(Overloaded):
                    await at.core.execute(TOKEN, claim)
                assert len(messages_of(await at.core.execute(OTHER, claim))) == 2

    in_loop(test)


def _anybody(principal: Principal) -> Principal:
    """A register that knows every token."""
    return principal


@looped
async def test_those_who_wait_leave_room_for_others() -> None:
    async with serving(settings=Settings(claims_open_max=100)) as rest:
        await rest.put("/queues/q", json={})
        waits = [
            asyncio.create_task(rest.post("/queues/q/claims", json={"n": 100, "wait": 60}))
            for _ in range(5)
        ]
        probe = Probe(rest.core.store)
        await probe.until_async(lambda: probe.claims_waiting("q") == len(waits))
        assert (await rest.post("/queues/q/claims", json={"n": 1})).json() == {"messages": []}
        for wait in waits:
            wait.cancel()
        await asyncio.gather(*waits, return_exceptions=True)


# The same bounds, however it is asked.


@pytest.mark.parametrize(
    ("command", "error"),
    [
        (logs.GetBounds(""), InvalidName),
        (logs.ReadBlocks("a", -1, 5, 10), InvalidInput),
        (logs.Truncate("a", 2**70), InvalidInput),
        (queues.FinishClaims("q", [(0, 10**9, 1)], "ack"), TooLarge),
        (queues.ClaimMessages("q", 1, None, "c", None, [(0, 10**9, 1)]), TooLarge),
        (logs.SetMetadata("a", "", 1), InvalidName),
    ],
    ids=lambda one: type(one).__name__,
)
def test_whatever_asks_the_core_is_bound(command: Any, error: type[MillstreamError]) -> None:
    async def test() -> None:
        async with guarded(Settings()) as at:
            with pytest.raises(error):
                await at.core.execute(ANYONE_HERE, command)

    in_loop(test)


def test_waits_and_answers_are_cut_to_size_for_everybody() -> None:
    async def test() -> None:
        clock = SimulatedClock()
        async with guarded(Settings(wait_ms_max=1), clock=clock) as at:
            for n in range(3):
                at.ms.log(f"log{n}").append(b"x" * 100)
            waiting = asyncio.create_task(
                at.core.execute(ANYONE_HERE, logs.WaitForOffset("log0", 5, None))
            )
            while not waiting.done():
                clock.advance(1)
                await asyncio.sleep(0.01)
            assert waiting.result() is False

    in_loop(test)


# How often, and how much at once.


def test_what_is_asked_over_a_socket_is_paid_for_like_requests(tmp_path: Path) -> None:
    with millstream.open(tmp_path / "store.db") as ms:
        texts = [create_token(ms, name, ["log:write:*"])[1] for name in ("busy", "calm")]
    settings = Settings(port=0, auth="on", requests_per_second=5)
    with running(tmp_path / "store.db", settings) as server:
        busy, calm = ({"authorization": f"Bearer {text}"} for text in texts)
        with talking(server, additional_headers=busy) as talk:
            talk.send(*[(n, logs.Append("a", single("x"))) for n in range(100)])  # on credit
            assert len(talk.answers(100)) == 100
            with pytest.raises(Overloaded) as refused:
                talk.ask(logs.GetBounds("a"))
            assert refused.value.data["retry_after_s"] >= 1
            answer = httpx.get(f"{server.url}/logs/a", headers=busy, timeout=60)  # it is one purse
            assert (answer.status_code, answer.json()["title"]) == (429, "Overloaded")
            assert int(answer.headers["retry-after"]) >= 1
        with talking(server, additional_headers=calm) as talk:
            assert talk.ask(logs.GetBounds("a")) == (0, 100)


def test_a_token_has_only_so_many_requests_carried_out_at_once() -> None:
    async def test() -> None:
        async with guarded(Settings(requests_per_token_max=5)) as at:
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(at.core.tokens, "confirm_at_once", _anybody)
                append = logs.Append("a", single("x"))
                found = await asyncio.gather(
                    *(at.core.execute(TOKEN, append) for _ in range(20)),
                    *(at.core.execute(OTHER, append) for _ in range(5)),
                    return_exceptions=True,
                )
                refused = [one for one in found if isinstance(one, Overloaded)]
                assert len(refused) == 15
                assert all(isinstance(one, int) for one in found[20:])
                assert await at.core.execute(TOKEN, append) == 10  # and then there is room again
                waits = [
                    asyncio.create_task(at.core.execute(TOKEN, logs.WaitForOffset("a", 11, 60_000)))
                    for _ in range(20)
                ]
                probe = Probe(at.core.store)
                await probe.until_async(lambda: probe.waiting() == len(waits))
                assert await at.core.execute(TOKEN, append) == 11  # who waits is in nobody's way
                assert await asyncio.gather(*waits) == [True] * 20

    in_loop(test)


def test_queries_of_one_token_have_only_some_of_the_threads() -> None:
    async def test() -> None:
        async with guarded(Settings()) as at:
            running = most = done = 0
            execute = at.core.session.execute

            async def counted(command: Any, turns: Any = None) -> Any:
                nonlocal running, most, done
                if command != logs.GetBounds("flooded"):
                    return await execute(command, turns)
                running += 1
                most = max(most, running)
                found = await execute(command)
                running -= 1
                done += 1
                return found

            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(at.core.tokens, "confirm_at_once", _anybody)
                patch.setattr(at.core.session, "execute", counted)
                flood = [
                    asyncio.create_task(at.core.execute(TOKEN, logs.GetBounds("flooded")))
                    for _ in range(500)
                ]
                await asyncio.sleep(0)
                await at.core.execute(OTHER, logs.GetBounds("calm"))
                assert done < 250  # it did not wait for all who came before
                assert await asyncio.gather(*flood) == [(0, 0)] * 500
            assert most == TURNS

    in_loop(test)


@served
async def test_answers_on_their_way_to_one_token_are_bounded(rest: Rest) -> None:
    await rest.post("/logs/a/records", content=b"x" * 100_000)
    quota = rest.core.quota
    with quota.sending(ANYONE_HERE, SENDING_BYTES_MAX - 1_000):
        answer = await rest.get("/logs/a/records/0")
        problem(answer, 429, "Overloaded")
        assert (await rest.get("/logs")).status_code == 200  # small ones always fit
        with quota.sending(OTHER, SMALL_BYTES + 1):
            pass
    assert (await rest.get("/logs/a/records/0")).content == b"x" * 100_000
    assert not quota.unread


@served
async def test_bodies_of_one_token_that_arrive_at_once_are_bounded(rest: Rest) -> None:
    quota = rest.core.quota
    large = b"x" * 200_000

    async def in_pieces() -> Any:
        for _ in range(20):
            yield large[:10_000]

    with quota.receiving(ANYONE_HERE) as grow:
        grow(RECEIVING_BYTES_MAX - 150_000)
        for body in (large, in_pieces()):
            answer = await rest.post("/logs/a/records", content=body)
            problem(answer, 429, "Overloaded")
        assert (await rest.post("/logs/a/records", content=b"small")).status_code == 201
        with quota.receiving(OTHER) as grow_other:
            grow_other(len(large))
    for body in (large, in_pieces()):
        assert (await rest.post("/logs/a/records", content=body)).status_code == 201
    assert (await rest.get("/logs/a")).json()["end_offset"] == 3
    assert not quota._receiving


def test_a_flood_of_one_token_does_not_starve_another(tmp_path: Path) -> None:
    """Many sockets ask as much as they may, all the time; somebody else is answered all the same."""
    with millstream.open(tmp_path / "store.db") as ms:
        flood, calm = (create_token(ms, name, ["log:write:*"])[1] for name in ("flood", "calm"))
    settings = Settings(port=0, auth="on", requests_per_token_max=50)
    limits = Limits(waiting_operations_max=100)
    with running(tmp_path / "store.db", settings, limits=limits, durability="relaxed") as server:
        stop = threading.Event()
        refused = 0

        async def flooding() -> None:
            nonlocal refused
            sessions = [await aio.open(server.url, token=flood) for _ in range(4)]
            while not stop.is_set():
                asked = [ms.log("a").append(b"x") for ms in sessions for _ in range(200)]
                found = await asyncio.gather(*asked, return_exceptions=True)
                refused += sum(isinstance(one, Overloaded) for one in found)
            for ms in sessions:
                await ms.close()

        thread = threading.Thread(target=lambda: asyncio.run(flooding()))
        thread.start()
        try:
            with millstream.open(server.url, token=calm) as ms:
                assert [ms.log("b").append(b"x") for _ in range(30)] == [*range(30)]
        finally:
            stop.set()
            thread.join()
        assert refused > 0


def test_a_queue_spec_from_a_socket_is_bound_too(tmp_path: Path) -> None:
    with (
        running(tmp_path / "store.db", Settings(port=0)) as server,
        talking(server) as talk,
        pytest.raises(InvalidName),
    ):
        talk.ask(queues.SpecifyQueue("", QueueSpec()))
