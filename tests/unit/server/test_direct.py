"""Direct calls: what any request is asked, and what is held for it, without a task of its own."""

from __future__ import annotations

import asyncio
from pathlib import Path
from time import monotonic
from typing import Any

import pytest

from millstream.command import Command
from millstream.errors import (
    Denied,
    InvalidName,
    MillstreamError,
    NotFound,
    Overloaded,
    Unauthenticated,
)
from millstream.log.commands import Append, GetBounds
from millstream.queue.commands import ClaimMessages, PutMessages, RenewClaims, SpecifyQueue
from millstream.queue.model.message import messages_of
from millstream.queue.model.spec import QueueSpec
from millstream.server import direct
from millstream.server.auth.access import ANYONE_HERE, Principal
from millstream.server.auth.permission import parse_permissions
from millstream.server.auth.register import Registrar
from millstream.server.claim_counts import ClaimCounts
from millstream.server.serving import running
from millstream.server.settings import Settings
from millstream.store.commit.gather import KEPT
from millstream.testing import Probe
from tests.unit.server.guarded import WITH_TOKENS, Guarded, guarded, in_loop
from tests.unit.server.talking import EACH_TRANSPORT, each_transport, single, talking

transport = EACH_TRANSPORT(each_transport)

SOON_S = 60.0
"""By then a test gives up: only a failure takes so long."""


async def ask(
    at: Guarded,
    command: Command[Any],
    principal: Principal = ANYONE_HERE,
    holdings: ClaimCounts | None = None,
) -> Any:
    """The answer of a direct call, or its error; a task that goes on with it is awaited."""
    told: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
    assert direct.begin(at.core, principal, command, holdings or ClaimCounts(10), told.set_result)
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
                assert not direct.begin(at.core, ANYONE_HERE, command, ClaimCounts(10), told.append)
            assert told == []

    in_loop(test)


def test_a_token_counts_its_direct_calls_until_they_are_answered() -> None:
    async def test() -> None:
        async with guarded(Settings(auth="on", requests_per_token_max=1)) as at:
            writer = await principal_of(at, "log:write:orders")
            command = Append("orders", single(b"x"))
            told: list[Any] = []
            assert direct.begin(at.core, writer, command, ClaimCounts(10), told.append)
            assert isinstance(await ask(at, command, writer), Overloaded)
            while not told:
                await asyncio.sleep(0)
            assert told == [0]
            assert isinstance(await ask(at, Append("other", single(b"x")), writer), Denied)
            assert await ask(at, command, writer) == 1
            assert not at.core.quota.requests

    in_loop(test)


def test_a_token_is_looked_up_before_a_direct_call_and_an_unknown_one_is_refused() -> None:
    async def test() -> None:
        async with guarded(WITH_TOKENS) as at:
            known = await principal_of(at, "log:write")
            other = Principal(known.name, known.permissions, "another id")
            told: list[Any] = []
            command = Append("orders", single(b"x"))
            assert isinstance(await ask(at, command, other), Unauthenticated)
            assert await ask(at, command, known) == 0
            at.let_tokens_age()
            assert not direct.begin(at.core, known, command, ClaimCounts(10), told.append)
            assert told == []

    in_loop(test)


def test_a_claim_that_goes_on_as_a_task_gives_back_what_it_holds_if_it_is_cancelled() -> None:
    async def test() -> None:
        async with guarded(Settings()) as at:
            queue = at.ms.create_queue("mail")
            holdings = ClaimCounts(2)
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
            assert holdings.reserve(command, lambda: 0).count == 1  # there is room for another

    in_loop(test)


WAITING = ClaimMessages("mail", 1, None, "c", 60_000, [])


async def stand_in_line(
    at: Guarded, principal: Principal, holdings: ClaimCounts, told: list[Any]
) -> asyncio.Task[Any]:
    """Begin a claim that waits; the task that goes on with it."""
    for _ in range(2):  # from the second on it is known that nothing must be looked for
        await at.core.execute(principal, ClaimMessages("mail", 1, None, "c", 0, []), holdings)
    assert direct.begin(at.core, principal, WAITING, holdings, told.append)
    while not Probe(at.core.store).claims_waiting("mail"):
        await asyncio.sleep(0)
    (task,) = told
    assert isinstance(task, asyncio.Task)
    return task


@pytest.mark.parametrize("with_token", [False, True])
def test_a_claim_that_waits_is_told_by_the_commit_that_brings_its_message(with_token: bool) -> None:
    """Before the publisher is, and without a turn of the loop; then its task has nothing to say."""

    async def test() -> None:
        async with guarded(WITH_TOKENS if with_token else Settings()) as at:
            at.ms.create_queue("mail", lease=60)
            rights = ("queue:write",)
            principal = await principal_of(at, *rights) if with_token else ANYONE_HERE
            holdings, told = ClaimCounts(10), []
            task = await stand_in_line(at, principal, holdings, told)
            if with_token:
                task = next(one for one in told if isinstance(one, asyncio.Task))
            put = PutMessages("mail", single(b"x"))
            assert direct.begin(at.core, principal, put, ClaimCounts(10), told.append)
            while len(told) < 3:
                await asyncio.sleep(0)
            _, lots, put_id = told
            assert [message.value for message in messages_of(lots)] == [b"x"]
            assert put_id == 0
            assert await task == []
            assert len(told) == 3
            assert len(holdings) == 1
            assert not at.core.quota.requests
            assert at.ms.queue("mail").claim(1) == []  # it is held, and did not go back

    in_loop(test)


def test_a_claim_whose_token_is_revoked_while_it_waits_is_told_so_and_keeps_nothing() -> None:
    async def test() -> None:
        async with guarded(WITH_TOKENS) as at:
            queue = at.ms.create_queue("mail", lease=60)
            principal = await principal_of(at, "queue:write")
            holdings, told = ClaimCounts(10), []
            task = await stand_in_line(at, principal, holdings, told)
            Registrar(at.ms).revoke("t")
            at.let_tokens_age()
            put = PutMessages("mail", single(b"x"))
            assert await ask(at, put) == 0
            with pytest.raises(Unauthenticated):
                await task
            assert told == [task]
            assert len(holdings) == 0
            while not (found := queue.claim(1)):
                await asyncio.sleep(0)
            assert [message.value for message in found] == [b"x"]

    in_loop(test)


def test_a_waiting_claim_and_what_brings_its_message_are_answered_in_one_frame(
    tmp_path: Path,
) -> None:
    with running(tmp_path / "a.db", Settings(port=0)) as server, talking(server) as talk:
        assert server.core is not None
        talk.ask(SpecifyQueue("mail", QueueSpec()))
        for _ in range(KEPT):  # the loop makes commits itself
            talk.ask(Append("warm", single(b"x")))
        talk.ask(ClaimMessages("mail", 1, None, "c", 0, []))
        talk.send((1, WAITING))
        deadline_s = monotonic() + SOON_S
        while not Probe(server.core.store).claims_waiting("mail"):
            assert monotonic() < deadline_s
        talk.send((2, PutMessages("mail", single(b"x"))))
        assert [number for number, _ in talk.frame()] == [1, 2]


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
