"""Tokens over REST: listed, made and revoked by a token that is named for it, and by no other."""

from __future__ import annotations

from typing import Any

import pytest

from millstream.server.docs.endpoints import routes
from millstream.server.settings import Settings
from millstream.testing import SimulatedClock
from tests.unit.server.asking import problem
from tests.unit.server.guarded import Guarded, guarded, in_loop


async def make(at: Guarded, admin: str, **body: Any) -> Any:
    return await at.ask("POST", "/tokens", bearer=admin, json=body)


def test_a_token_is_made_shown_once_used_and_revoked() -> None:
    async def test() -> None:
        async with guarded(extra=routes) as at:
            admin = at.token("store:admin", name="root")
            answer = await make(at, admin, name="a<b>", permissions=["log:write:x*"], expires=60)
            made = answer.json()
            assert answer.status_code == 201
            assert made["permissions"] == ["log:write:x*"]
            secret = made["token"]
            assert (await at.ask("PUT", "/logs/x1", bearer=secret)).status_code == 201
            listing = await at.ask("GET", "/tokens", bearer=admin)
            assert [one["name"] for one in listing.json()["tokens"]] == ["a<b>", "root"]
            assert secret.split("_", 2)[2] not in listing.text
            assert "digest" not in listing.text
            gone = await at.ask("DELETE", "/tokens/a%3Cb%3E", bearer=admin)
            assert gone.json() == {"name": "a<b>", "id": made["id"]}
            assert (await at.ask("PUT", "/logs/x2", bearer=secret)).status_code == 401
            problem(await at.ask("DELETE", "/tokens/a%3Cb%3E", bearer=admin), 404, "NotFound")

    in_loop(test)


def test_an_expired_token_is_listed_as_such_and_names_are_unique() -> None:
    async def test() -> None:
        clock = SimulatedClock()
        async with guarded(extra=routes, clock=clock) as at:
            admin = at.token("store:admin", name="root")
            for _ in range(2):
                answer = await make(at, admin, name="x", permissions=["*:read"], expires=5)
            problem(answer, 409, "AlreadyExists")
            clock.advance(6)
            (first, second) = (await at.ask("GET", "/tokens", bearer=admin)).json()["tokens"]
            assert (first["name"], first["expired"], first["expires"] is None) == (
                "root",
                False,
                True,
            )
            assert (second["name"], second["expired"]) == ("x", True)
            page = (await at.ask("GET", "/tokens?limit=1", bearer=admin)).json()
            assert (len(page["tokens"]), page["after"]) == (1, "root")
            rest = (await at.ask("GET", "/tokens?limit=5&after=root", bearer=admin)).json()
            assert ([one["name"] for one in rest["tokens"]], rest["after"]) == (["x"], None)

    in_loop(test)


@pytest.mark.parametrize(
    "body",
    [
        {"name": "", "permissions": ["*:read"]},
        {"name": "x", "permissions": []},
        {"name": "x", "permissions": ["everything"]},
        {"name": "x", "permissions": ["*:read"], "expires": 0},
        {"name": "x", "permissions": ["*:read"], "expires": 1e12},
        {"name": "x"},
    ],
)
def test_a_wrong_token_is_not_made(body: dict[str, Any]) -> None:
    async def test() -> None:
        async with guarded(extra=routes) as at:
            admin = at.token("store:admin", name="root")
            assert (await make(at, admin, **body)).status_code == 422
            listing = (await at.ask("GET", "/tokens", bearer=admin)).json()
            assert [one["name"] for one in listing["tokens"]] == ["root"]

    in_loop(test)


def test_only_a_token_that_is_named_for_it_sees_and_makes_tokens() -> None:
    async def test() -> None:
        async with guarded(extra=routes) as at:
            for number, permission in enumerate(["*:admin", "store:write", "log:admin"]):
                text = at.token(permission, name=f"t{number}")
                at.let_tokens_age()
                body = {"name": "more", "permissions": ["store:admin"]}
                for method, path in (
                    *(("GET", "/tokens"), ("POST", "/tokens"), ("DELETE", "/tokens/t0")),
                ):
                    more = {"json": body} if method == "POST" else {}
                    answer = await at.ask(method, path, bearer=text, **more)
                    problem(answer, 403, "Denied")
                access = (await at.ask("GET", "/access", bearer=text)).json()
                assert not access["may_manage_tokens"]

    in_loop(test)


def test_a_ticket_makes_nothing_that_outlives_it() -> None:
    async def test() -> None:
        async with guarded(extra=routes) as at:
            admin = at.token("store:admin", name="root")
            wanted = {"permissions": ["store:admin"]}
            ticket = (await at.ask("POST", "/tickets", bearer=admin, json=wanted)).json()["ticket"]
            answer = await make(at, ticket, name="x", permissions=["*:admin"])
            assert "ticket" in problem(answer, 403, "Denied")["detail"]
            access = (await at.ask("GET", "/access", bearer=ticket)).json()
            assert not access["may_manage_tokens"]
            assert access["expires"] is not None

    in_loop(test)


def test_a_client_is_told_who_it_is_and_what_it_may_do() -> None:
    async def test() -> None:
        async with guarded(extra=routes) as at:
            text = at.token("queue:read:mail*", "log:write", name="viewer", expires_ms=60_000)
            found = (await at.ask("GET", "/access", bearer=text)).json()
            assert found["name"] == "viewer"
            assert found["permissions"] == ["queue:read:mail*", "log:write"]
            assert found["tokens"]
            assert found["expires"] is not None
        async with guarded(Settings(), extra=routes) as at:
            found = (await at.ask("GET", "/access")).json()
            assert (found["permissions"], found["tokens"]) == (["*:admin", "store:backup"], False)
            assert not found["may_manage_tokens"]

    in_loop(test)
