"""Direct calls: what any request is asked, and what is held for it, without a task of its own."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from millstream.command import Command
from millstream.errors import Denied, InvalidName, MillstreamError, NotFound, Overloaded
from millstream.log.commands import Append, GetBounds
from millstream.queue.commands import ClaimMessages, PutMessages, RenewClaims, SpecifyQueue
from millstream.queue.model.spec import QueueSpec
from millstream.server import direct
from millstream.server.auth.access import ANYONE_HERE, Principal, parse_permissions
from millstream.server.holdings import Holdings
from millstream.server.serving import running
from millstream.server.settings import Settings
from tests.unit.server.guarded import WITH_TOKENS, Guarded, guarded, in_loop
from tests.unit.server.talking import EACH_TRANSPORT, each_transport, single, talking

transport = EACH_TRANSPORT(each_transport)


async def ask(
    at: Guarded,
    command: Command[Any],
    principal: Principal = ANYONE_HERE,
    holdings: Holdings | None = None,
) -> Any:
    """The answer of a direct call, or its error; a task that goes on with it is awaited."""
    told: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
    assert direct.begin(at.core, principal, command, holdings or Holdings(10), told.set_result)
    found = await told
    if isinstance(found, asyncio.Task):
        (found,) = await asyncio.gather(found, return_exceptions=True)
    return found


async def principal_of(at: Guarded, *permissions: str) -> Principal:
    """Who comes with a new token."""
    return await at.core.tokens.authenticate(at.token(*permissions))


def test_a_direct_call_is_refused_as_any_request_is() -> None:
    async def test() -> None:
        async with guarded(Settings()) as at:
            reader = Principal("reader", parse_permissions(["log:read"]))
            assert isinstance(await ask(at, Append("orders", single(b"x")), reader), Denied)
            assert isinstance(await ask(at, Append("a\x00b", single(b"x"))), InvalidName)
            assert isinstance(await ask(at, RenewClaims("none", [(1, 1, 1)])), NotFound)
            assert await ask(at, Append("orders", single(b"x"))) == 0

    in_loop(test)


def test_what_takes_more_than_a_commit_is_not_begun() -> None:
    async def test() -> None:
        async with guarded(Settings()) as at:
            at.ms.create_queue("mail")
            told: list[Any] = []
            later = PutMessages("mail", single(b"x"), delay_ms=10)
            for command in (GetBounds("orders"), later, ClaimMessages("mail", 1, None, "c", 0, [])):
                assert not direct.begin(at.core, ANYONE_HERE, command, Holdings(10), told.append)
            assert told == []

    in_loop(test)


def test_a_token_counts_its_direct_calls_until_they_are_answered() -> None:
    async def test() -> None:
        async with guarded(Settings(auth="on", requests_per_token_max=1)) as at:
            writer = await principal_of(at, "log:write:orders")
            command = Append("orders", single(b"x"))
            told: list[Any] = []
            assert direct.begin(at.core, writer, command, Holdings(10), told.append)
            assert isinstance(await ask(at, command, writer), Overloaded)
            while not told:
                await asyncio.sleep(0)
            assert told == [0]
            assert isinstance(await ask(at, Append("other", single(b"x")), writer), Denied)
            assert await ask(at, command, writer) == 1
            assert not at.core.quota.requests

    in_loop(test)


def test_a_token_that_is_not_known_is_not_begun_with() -> None:
    async def test() -> None:
        async with guarded(WITH_TOKENS) as at:
            known = await principal_of(at, "log:write")
            other = Principal(known.name, known.permissions, "another id")
            told: list[Any] = []
            command = Append("orders", single(b"x"))
            assert not direct.begin(at.core, other, command, Holdings(10), told.append)
            assert told == []
            assert await ask(at, command, known) == 0

    in_loop(test)


def test_a_claim_that_goes_on_as_a_task_gives_back_what_it_holds_if_it_is_cancelled() -> None:
    async def test() -> None:
        async with guarded(Settings()) as at:
            queue = at.ms.create_queue("mail")
            holdings = Holdings(2)
            queue.put_many([b"a", b"b"])
            first = ClaimMessages("mail", 1, None, "c", 0, [])
            assert await at.core.execute(ANYONE_HERE, first, holdings)
            assert queue.purge() == 1  # a message that was known to be routed is gone
            told: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
            command = ClaimMessages("mail", 1, None, "c", 60_000, [])
            assert direct.begin(at.core, ANYONE_HERE, command, holdings, told.set_result)
            task = await told
            assert isinstance(task, asyncio.Task)
            task.cancel()  # before it has run
            await asyncio.gather(task, return_exceptions=True)
            assert holdings.reserve(command, 0).count == 1  # there is room for another

    in_loop(test)


def test_requests_of_a_connection_begin_in_their_order(tmp_path: Path) -> None:
    others = GetBounds("orders"), PutMessages("mail", single(b"x"), delay_ms=10)
    requests: list[tuple[int, Command[Any]]] = [
        # Only appends could be begun at once; before some of them stands what could not.
        (number, others[number % 2] if number % 5 == 0 else Append("orders", single(b"x")))
        for number in range(50)
    ]
    with running(tmp_path / "a.db", Settings(port=0)) as server, talking(server) as talk:
        talk.ask(SpecifyQueue("mail", QueueSpec()))
        for request in requests[:10]:
            talk.send(request)
        talk.send(*requests[10:])
        found = talk.answers(len(requests))
        assert not any(isinstance(one, MillstreamError) for one in found.values())
        offsets = [found[number] for number in range(50) if number % 5]
        assert offsets == list(range(len(offsets)))
