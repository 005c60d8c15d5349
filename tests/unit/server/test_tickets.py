"""`POST /tickets`, and what a ticket opens."""

from __future__ import annotations

from typing import Any

import pytest

from millstream.errors import Denied
from millstream.log.commands import GetBounds
from millstream.server.auth.register import LOG, Registrar
from millstream.server.auth.tickets import verify
from millstream.server.docs.endpoints import routes
from millstream.server.settings import Settings
from millstream.testing import SimulatedClock
from tests.unit.server.guarded import Guarded, guarded, in_loop


async def made(at: Guarded, bearer: str, *permissions: str, seconds: float = 60) -> Any:
    body = {"permissions": permissions, "seconds": seconds}
    return await at.ask("POST", "/tickets", bearer=bearer, json=body)


def test_a_ticket_opens_gets_and_sockets_until_it_expires() -> None:
    async def test() -> None:
        clock = SimulatedClock()
        async with guarded(clock=clock) as at:
            answer = await made(at, at.token("log:admin", name="ci"), "log:read:a*", seconds=10)
            assert answer.status_code == 201
            found = answer.json()
            assert found["permissions"] == ["log:read:a*"]
            assert found["expires"] == clock.wall_ms() + 10_000
            query = f"ticket={found['ticket']}"
            assert (await at.ask("GET", f"/echo?{query}")).json()["principal"] == "ci"
            assert (await at.upgrade(query=query))[0] == 101
            assert (await at.ask("POST", f"/echo?{query}")).status_code == 401
            assert (await at.ask("POST", "/echo", bearer=found["ticket"])).status_code == 200
            clock.advance(10)
            assert (await at.ask("GET", f"/echo?{query}")).status_code == 401
            assert (await at.upgrade(query=query))[0] == 401

    in_loop(test)


def test_a_ticket_ends_with_its_token() -> None:
    async def test() -> None:
        clock = SimulatedClock()
        async with guarded(clock=clock) as at:
            token = at.token("log:admin", name="ci", expires_ms=5_000)
            found = (await made(at, token, "log:read")).json()
            assert found["expires"] == clock.wall_ms() + 5_000
            assert (await at.ask("GET", f"/echo?ticket={found['ticket']}")).status_code == 200
            Registrar(at.ms).revoke("ci")
            clock.advance(1)
            assert (await at.ask("GET", f"/echo?ticket={found['ticket']}")).status_code == 401

    in_loop(test)


async def narrow(at: Guarded, *permissions: str) -> None:
    """The token's entry in the register, with other rights: as another process may write it."""
    log = at.ms.log(LOG)
    entry = [record.json() for record in log.read()][-1]
    log.append({**entry, "permissions": permissions})
    at.core.store.clock.advance(1)  # type: ignore[attr-defined]


def test_a_ticket_allows_no_more_than_its_token_does_now() -> None:
    async def test() -> None:
        async with guarded(extra=routes) as at:
            at.ms.log("a").append(b"x")
            at.ms.log("b").append(b"x")
            token = at.token("log:admin", name="ci")
            found = (await made(at, token, "log:read:a", "log:read:b")).json()

            async def status(log: str, bearer: str) -> int:
                return (await at.ask("GET", f"/logs/{log}", bearer=bearer)).status_code

            ticket = found["ticket"]
            assert [await status(log, ticket) for log in "ab"] == [200, 200]
            await narrow(at, "log:admin:a*")
            assert [await status(log, ticket) for log in "ab"] == [200, 403]
            assert [await status(log, token) for log in "ab"] == [200, 403]
            await narrow(at, "queue:read")
            assert [await status(log, ticket) for log in "ab"] == [403, 403]
            await narrow(at, "log:admin")
            assert [await status(log, ticket) for log in "ab"] == [200, 200]
            assert (await at.ask("DELETE", "/logs/a", bearer=ticket)).status_code == 403

    in_loop(test)


def test_who_is_connected_is_held_to_what_the_token_allows_now() -> None:
    async def test() -> None:
        async with guarded() as at:
            at.ms.log("a").append(b"x")
            ci, web = at.token("log:read", name="ci"), at.token("log:read", name="web")
            principals = [await at.core.tokens.authenticate(ci)]
            found = (await made(at, web, "log:read:a")).json()
            key = await at.core.tokens.ticket_key()
            principals.append(verify(key, found["ticket"], wall_ms=at.core.store.clock.wall_ms()))
            for principal in principals:
                assert await at.core.execute(principal, GetBounds("a")) == (0, 1)
            await narrow(at, "log:read:b")
            assert await at.core.execute(principals[0], GetBounds("a")) == (0, 1)
            with pytest.raises(Denied):
                await at.core.execute(principals[1], GetBounds("a"))

    in_loop(test)


@pytest.mark.parametrize(
    ("body", "status"),
    [
        ({"permissions": ["log:write"]}, 403),
        ({"permissions": ["queue:read"]}, 403),
        ({"permissions": ["*:read"]}, 403),
        ({"permissions": []}, 422),
        ({"permissions": ["nonsense"]}, 422),
        ({"permissions": ["log:read"], "seconds": 3_601}, 422),
        ({"permissions": ["log:read"], "seconds": 0}, 422),
        ({"permissions": ["log:read"], "more": 1}, 422),
        ({"permissions": "log:read"}, 422),
        ([], 422),
        ({"permissions": ["log:read:" + "x" * 200] * 200}, 413),
        ({"permissions": [f"log:read:{n:03}" + "x" * 90 for n in range(60)]}, 413),
    ],
)
def test_a_ticket_that_cannot_be_is_refused(body: Any, status: int) -> None:
    async def test() -> None:
        async with guarded() as at:
            answer = await at.ask("POST", "/tickets", bearer=at.token("log:read"), json=body)
            assert answer.status_code == status, answer.text
            assert answer.headers["content-type"] == "application/problem+json"

    in_loop(test)


def test_a_ticket_makes_no_tickets() -> None:
    async def test() -> None:
        async with guarded() as at:
            ticket = (await made(at, at.token("log:read"), "log:read")).json()["ticket"]
            assert (await made(at, ticket, "log:read")).status_code == 403
            assert (
                await at.ask(
                    "POST", f"/tickets?ticket={ticket}", json={"permissions": ["log:read"]}
                )
            ).status_code == 401

    in_loop(test)


def test_a_token_in_a_query_is_refused() -> None:
    async def test() -> None:
        async with guarded() as at:
            token = at.token("log:read")
            assert (await at.ask("GET", f"/echo?ticket={token}")).status_code == 401
            assert (await at.ask("GET", "/echo?ticket=mt_a.b&ticket=mt_a.b")).status_code == 401

    in_loop(test)


def test_without_tokens_a_ticket_still_narrows_and_opens_nothing_once_they_are_needed() -> None:
    async def test() -> None:
        async with guarded(Settings()) as at:
            ticket = (await made(at, "", "log:read:a")).json()["ticket"]
            metrics = await at.ask("GET", f"/metrics?ticket={ticket}")
            assert metrics.status_code == 403
            assert (await at.ask("GET", "/metrics")).status_code == 200
            at.core.authentication.needs_tokens = True
            assert (await at.ask("GET", f"/echo?ticket={ticket}")).status_code == 401

    in_loop(test)
