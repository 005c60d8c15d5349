"""Tickets for a log or a queue: one name, one right, for a while, and never more than the token's."""

from __future__ import annotations

from typing import Any

import pytest

from millstream.command import Command
from millstream.errors import Denied, InvalidInput, InvalidName, Unauthenticated
from millstream.format.packing import Single
from millstream.log.commands import Append, GetBounds
from millstream.queue.commands import DescribeQueue, PutMessages
from millstream.rooms.commands import MintBrowserTicket
from millstream.testing import memory_store
from tests.unit.server.guarded import Guarded, guarded, in_loop
from tests.unit.server.ticketed import entered, token_of

ONE = Single(b"1", None, b"", None)


async def may(at: Guarded, ticket: str, command: Command[Any]) -> bool:
    """Whether a browser that shows a ticket may do this."""
    principal = await entered(at, ticket)
    try:
        principal.check(command)
    except Denied:
        return False
    return True


def test_a_program_that_has_the_store_open_makes_them() -> None:
    async def test() -> None:
        async with guarded() as at:
            made = at.ms.log("news").ticket(expires=10)
            assert made.permission == "log:read:news"
            assert made.expires == at.core.store.clock.wall_ms() + 10_000
            assert await may(at, made.ticket, GetBounds("news"))
            assert not await may(at, made.ticket, Append("news", ONE))
            assert not await may(at, made.ticket, GetBounds("other"))
            writer = at.ms.log("news").ticket("write")
            assert await may(at, writer.ticket, Append("news", ONE))
            put = at.ms.queue("mail").ticket()
            assert put.permission == "queue:put:mail"
            assert await may(at, put.ticket, PutMessages("mail", ONE))
            assert not await may(at, put.ticket, DescribeQueue("mail"))
            assert not await may(at, put.ticket, GetBounds("news"))
            reader = at.ms.queue("mail").ticket("read")
            assert await may(at, reader.ticket, DescribeQueue("mail"))
            at.core.store.clock.advance(10)  # type: ignore[attr-defined]
            with pytest.raises(Unauthenticated):
                await entered(at, made.ticket)

    in_loop(test)


def test_a_token_makes_tickets_for_its_own_rights_and_a_ticket_makes_none() -> None:
    async def test() -> None:
        async with guarded() as at:
            shop = await token_of(at, "log:read:news", "queue:put:mail")
            made = await at.core.execute(shop, MintBrowserTicket("news", "log:read"))
            assert await may(at, made.ticket, GetBounds("news"))
            put = await at.core.execute(shop, MintBrowserTicket("mail", "queue:put"))
            assert put.permission == "queue:put:mail"
            for name, right in (
                ("news", "log:write"),
                ("other", "log:read"),
                ("mail", "queue:write"),
                ("mail", "queue:read"),
            ):
                with pytest.raises(Denied):
                    await at.core.execute(shop, MintBrowserTicket(name, right))  # type: ignore[arg-type]
            browser = await entered(at, made.ticket)
            with pytest.raises(Denied, match="a ticket cannot make tickets"):
                await at.core.execute(browser, MintBrowserTicket("news", "log:read"))

    in_loop(test)


def test_what_cannot_be_is_refused() -> None:
    with memory_store() as ms:
        for name in ("a*", "a?", "*"):
            with pytest.raises(InvalidInput, match="stand for other characters"):
                ms.log(name).ticket()
        with pytest.raises(InvalidName):
            ms.session.execute(MintBrowserTicket("", "log:read"))
        for seconds in (-1, 3_601):
            with pytest.raises(InvalidInput):
                ms.queue("mail").ticket(expires=seconds)
        with pytest.raises(InvalidInput, match="'read' or 'write', not 'admin'"):
            ms.log("news").ticket("admin")  # type: ignore[arg-type]
        with pytest.raises(InvalidInput, match="'put', 'read' or 'write', not 'admin'"):
            ms.queue("mail").ticket("admin")  # type: ignore[arg-type]
        with pytest.raises(InvalidInput, match="a ticket allows log:read"):
            ms.session.execute(MintBrowserTicket("news", "log:admin"))  # type: ignore[arg-type]
