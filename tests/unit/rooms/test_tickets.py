"""Tickets for rooms: one room, one user, for a while, and never more than the token that asks."""

from __future__ import annotations

from typing import Any

import pytest

from millstream.command import Transact
from millstream.errors import Denied, InvalidInput, Unauthenticated
from millstream.format.packing import Single
from millstream.log.commands import Append, OpenCursor, ReadBlocks, Truncate
from millstream.rooms import commands as c
from millstream.rooms.model import RoomMessage
from millstream.server.auth.access import ANYONE_HERE, Principal
from millstream.server.auth.permission import parse_permission
from millstream.testing import memory_store
from tests.unit.server.guarded import guarded, in_loop
from tests.unit.server.ticketed import entered, token_of

CHAT = RoomMessage("chat", b"1")


def test_a_program_that_has_the_store_open_makes_tickets_for_its_servers() -> None:
    async def test() -> None:
        async with guarded() as at:
            made = at.ms.room("hall").ticket("ann", expires=10)
            assert (made.room, made.user, made.can) == ("hall", "ann", "write")
            assert made.expires == at.core.store.clock.wall_ms() + 10_000
            again = at.ms.room("hall").ticket("bob", can="read")
            ann, bob = await entered(at, made.ticket), await entered(at, again.ticket)
            assert (ann.user, bob.user, ann.is_ticket) == ("ann", "bob", True)
            await at.core.execute(ann, c.SendToRoom("hall", [CHAT]))
            with pytest.raises(Denied, match="room:write:hall"):
                await at.core.execute(bob, c.SendToRoom("hall", [CHAT]))
            assert (await at.core.execute(bob, c.GetRetained("hall"))).offset == 1
            with pytest.raises(Denied):
                await at.core.execute(ann, c.GetRetained("other"))
            at.core.store.clock.advance(10)  # type: ignore[attr-defined]
            with pytest.raises(Unauthenticated):
                await at.core.execute(ann, c.GetRetained("hall"))

    in_loop(test)


def test_the_ticket_opens_requests_and_sockets() -> None:
    async def test() -> None:
        async with guarded() as at:
            query = f"ticket={at.ms.room('hall').ticket('ann').ticket}"
            assert (await at.ask("GET", f"/echo?{query}")).status_code == 200
            assert (await at.upgrade(query=query))[0] == 101
            assert (await at.ask("GET", f"/echo?{query}x")).status_code == 401

    in_loop(test)


def test_what_a_ticket_sends_is_sent_by_its_user() -> None:
    async def test() -> None:
        async with guarded() as at:
            ann = await entered(at, at.ms.room("hall").ticket("ann").ticket)
            await at.core.execute(ann, c.SendToRoom("hall", [CHAT]))
            await at.core.execute(ann, c.SendToRoom("hall", [CHAT], "ann"))
            await at.core.execute(ann, Transact([c.SendToRoom("hall", [CHAT])]))
            senders = [one.headers["from"] for one in at.ms.log("room:hall").read()]
            assert senders == ["ann"] * 3
            for command in (
                c.SendToRoom("hall", [CHAT], "bob"),
                Transact([c.SendToRoom("hall", [CHAT], "bob")]),
            ):
                with pytest.raises(Denied, match="as no other"):
                    await at.core.execute(ann, command)

    in_loop(test)


def test_a_ticket_of_a_user_does_not_reach_behind_the_room() -> None:
    async def test() -> None:
        async with guarded() as at:
            at.ms.room("hall").send("chat", 1)
            ann = await entered(at, at.ms.room("hall").ticket("ann").ticket)
            made_up = Single(b"1", None, b"", None)
            for command in (
                Append("room:hall", made_up),
                Transact([Append("room:hall", made_up)]),
                OpenCursor("room:hall", "c", "earliest", 1, True),
                Truncate("room:hall", 1),
            ):
                with pytest.raises(Denied):
                    await at.core.execute(ann, command)
            assert await at.core.execute(ann, ReadBlocks("room:hall", 0, 1, 1_000))

    in_loop(test)


def test_a_token_makes_tickets_for_no_more_than_it_may_do() -> None:
    async def test() -> None:
        async with guarded() as at:
            shop = await token_of(at, "room:write:h*", "room:read")
            made = await at.core.execute(shop, c.MintTicket("hall", "ann"))
            ann = await entered(at, made.ticket)
            assert (ann.token, ann.user) == (shop.token, "ann")
            with pytest.raises(Denied, match="room:write:kitchen"):
                await at.core.execute(shop, c.MintTicket("kitchen", "ann"))
            await at.core.execute(shop, c.MintTicket("kitchen", "ann", "read"))
            with pytest.raises(Denied, match="cannot make tickets"):
                await at.core.execute(ann, c.MintTicket("hall", "bob"))

    in_loop(test)


def test_a_ticket_of_a_server_without_tokens_is_good_there_only() -> None:
    async def test() -> None:
        async with guarded() as at:
            made = await at.core.execute(ANYONE_HERE, c.MintTicket("hall", "ann"))
            assert (await at.ask("GET", f"/echo?ticket={made.ticket}")).status_code == 401

    in_loop(test)


@pytest.mark.parametrize(
    ("room", "user", "more"),
    [
        ("h*", "ann", {}),
        ("h?ll", "ann", {}),
        ("a\u200bb", "ann", {}),
        ("", "ann", {}),
        ("hall", "", {}),
        ("hall", "a\nb", {}),
        ("hall", "ann", {"can": "admin"}),
        ("hall", "ann", {"expires": 0}),
        ("hall", "ann", {"expires": 3_601}),
        ("hall", "ann", {"expires": "soon"}),
    ],
)
def test_a_ticket_that_cannot_be_is_refused(room: str, user: str, more: dict[str, Any]) -> None:
    with memory_store() as ms, pytest.raises(InvalidInput):
        ms.room(room).ticket(user, **more)


def test_a_permission_for_logs_does_not_reach_rooms() -> None:
    somebody = Principal("somebody", (parse_permission("log:admin"),))
    with pytest.raises(Denied):
        somebody.check(Append("room:hall", Single(b"1", None, b"", None)))
    with pytest.raises(InvalidInput, match="room:write:hall"):
        parse_permission("log:write:room:hall")
