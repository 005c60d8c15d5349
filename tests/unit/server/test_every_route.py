"""Every route of the application, against everybody who may not use it.

The routes are taken from the application itself: one that is added is tested.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest
from starlette.applications import Starlette
from starlette.routing import WebSocketRoute

from millstream.server.app import make_app
from millstream.server.auth.register import Registrar
from millstream.server.listen.guard import Guard
from millstream.server.pages import WebPages
from millstream.server.rest.routing import Paths
from millstream.server.settings import Settings
from millstream.testing import SimulatedClock
from tests.unit.server.guarded import Guarded, guarded, in_loop

FILES = {("GET", address): "a file of the package" for address in WebPages().addresses}
WITHOUT_TOKEN = {("GET", "/health"), ("GET", "/docs"), *FILES}
FOR_ANY_TOKEN = {
    **FILES,
    ("GET", "/health"): "only the status",
    ("GET", "/version"): "the same for everybody",
    ("GET", "/access"): "what the token itself may do",
    ("GET", "/logs"): "an empty listing",
    ("GET", "/queues"): "an empty listing",
    ("GET", "/forks"): "an empty listing",
    ("GET", "/jobs"): "an empty listing",
    ("GET", "/jobs/limits"): "an empty listing",
    ("GET", "/jobs/tasks"): "an empty listing",
    ("GET", "/rooms"): "an empty listing",
    ("GET", "/replica/logs"): "an empty listing",
    ("GET", "/openapi.json"): "the same for everybody",
    ("GET", "/docs"): "the same for everybody",
    ("DELETE", "/staging/{txn}"): "each token has its own",
}
"""What a token without any useful right may ask: nothing here tells of what is stored."""

BODIES: dict[tuple[str, str], Any] = {
    ("PUT", "/logs/{log}/metadata/{key}"): 1,
    ("POST", "/logs/{log}/truncate"): {"before": 1},
    ("POST", "/logs/{log}/records"): {"records": [{"value": 1}]},
    ("PUT", "/logs/{log}/retention"): {"count": 1},
    ("POST", "/tickets"): {"permissions": ["*:admin"]},
    ("POST", "/tokens"): {"name": "more", "permissions": ["*:admin"]},
    ("POST", "/queues/{queue}/messages/{claim_id}/replace"): {"value": 1},
    ("PUT", "/jobs/limits"): {"queue": "jobs", "key": "acme", "running": 1},
    ("PUT", "/schedules/{schedule}"): {"task": "work", "every": 60},
}
"""Bodies that are right, where a wrong one would be refused before the right to send it."""


def guard_all(at: Guarded) -> None:
    """Let the guard stand before all that the application serves."""
    at.app = make_app(at.core)
    assert isinstance(at.app, Guard)


def asked(at: Guarded) -> Iterator[tuple[str, str, str]]:
    """Each method and path, and an address that it answers."""
    assert isinstance(at.app.app, Starlette)
    for route in at.app.app.routes:
        if isinstance(route, WebSocketRoute):
            yield "SOCKET", route.path, route.path
        elif isinstance(route, WebPages):
            yield from (("GET", address, address) for address in route.addresses)
        else:
            assert isinstance(route, Paths)
            for endpoint in route.endpoints:
                address = re.sub(r"\{(\w+)\}", _example, endpoint.path)
                yield endpoint.method, endpoint.path, address


def _example(place: re.Match[str]) -> str:
    names = {"log": "orders", "queue": "mail", "offset": "0", "claim_id": "1", "job": "mail-0"}
    return names.get(place[1], "x")


async def status(at: Guarded, method: str, path: str, address: str, **head: str) -> int:
    if method == "SOCKET":
        return (await at.upgrade(address, headers=head))[0]
    body = BODIES.get((method, path), {})
    more = {} if method in ("GET", "DELETE") else {"json": body}
    return (await at.ask(method, address, headers=head, **more)).status_code


def fill(at: Guarded) -> None:
    at.ms.log("orders").append_many([b"1", b"2"])
    at.ms.log("orders").metadata["x"] = 1
    at.ms.queue("mail", max_attempts=3).put(b"x")
    at.ms.queue("mail").claim(1)


@pytest.mark.parametrize("kind", ["none", "bad", "revoked", "expired", "basic", "forged ticket"])
def test_no_route_is_open_without_a_good_token(kind: str) -> None:
    async def test() -> None:
        clock = SimulatedClock()
        async with guarded(clock=clock) as at:
            guard_all(at)
            fill(at)
            texts = {
                "bad": at.token("*:admin", name="bad") + "x",
                "revoked": at.token("*:admin", name="revoked"),
                "expired": at.token("*:admin", name="expired", expires_ms=1),
                "forged ticket": "mt_gqR0b2tlbqRuYW1l.c2lnbmF0dXJl",
            }
            Registrar(at.ms).revoke("revoked")
            clock.advance(2)
            head = {} if kind == "none" else {"authorization": f"Bearer {texts.get(kind)}"}
            if kind == "basic":
                head = {"authorization": "Basic bWU6bWU="}
            before, count = at.core.store.state.seq, 0
            for method, path, address in asked(at):
                is_open = kind == "none" and (method, path) in WITHOUT_TOKEN
                found = await status(at, method, path, address, **head)
                assert found == (200 if is_open else 401), (method, path, found)
                count += 1
            assert count > 40
            assert at.core.store.state.seq == before

    in_loop(test)


def test_no_route_does_anything_for_a_token_without_the_right() -> None:
    async def test() -> None:
        async with guarded() as at:
            guard_all(at)
            fill(at)
            token = at.token("log:read:elsewhere", "queue:read:elsewhere")
            head = {"authorization": f"Bearer {token}", "x-millstream": "1"}
            before = at.core.store.state.seq
            denied = 0
            for method, path, address in asked(at):
                if method == "SOCKET":
                    continue  # what is asked on it is refused one by one: see below
                found = await status(at, method, path, address, **head)
                if (method, path) in FOR_ANY_TOKEN:
                    assert found == 200, (method, path)
                else:
                    assert found in (400, 403, 411, 413, 415, 422), (method, path, found)
                    denied += found == 403
            assert at.core.store.state.seq == before
            assert denied > 20
            for address in ("/logs", "/queues", "/forks", "/jobs", "/replica/logs", "/health"):
                answer = await at.ask("GET", address, headers=head)
                assert "orders" not in answer.text
                assert "mail" not in answer.text

    in_loop(test)


def test_no_route_is_used_by_pages_of_other_origins() -> None:
    async def test() -> None:
        async with guarded(Settings()) as at:
            guard_all(at)
            fill(at)
            before = at.core.store.state.seq
            for method, path, address in asked(at):
                if method != "GET":
                    found = await status(at, method, path, address, origin="https://evil.example")
                    assert found == 403, (method, path, found)
            assert at.core.store.state.seq == before

    in_loop(test)


def test_no_route_is_used_under_a_foreign_name() -> None:
    async def test() -> None:
        async with guarded(Settings()) as at:
            guard_all(at)
            fill(at)
            before = at.core.store.state.seq
            for method, path, address in asked(at):
                found = await status(at, method, path, address, host="evil.example")
                assert found == 403, (method, path, found)
            assert at.core.store.state.seq == before

    in_loop(test)
