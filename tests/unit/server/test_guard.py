"""The guard: who is let in, from where, how often; and what is noted of it."""

from __future__ import annotations

import logging
from typing import Any

import msgspec
import pytest

from millstream.errors import InvalidInput
from millstream.server.auth.register import Registrar
from millstream.server.core import Core
from millstream.server.docs.endpoints import routes
from millstream.server.settings import Settings
from millstream.testing import SimulatedClock
from tests.unit.server.guarded import WITH_TOKENS, Guarded, guarded, in_loop

PUBLIC_HOST = Settings(host="0.0.0.0")


def test_on_loopback_nobody_needs_a_token_unless_asked_to() -> None:
    async def test() -> None:
        async with guarded(Settings()) as at:
            assert (await at.ask("GET", "/echo")).json()["principal"] == "local"
            assert (await at.upgrade())[0] == 101
            assert (await at.ask("GET", "/echo", bearer="ms_no_token")).status_code == 401
        for settings in (Settings(auth="on"), PUBLIC_HOST):
            async with guarded(settings) as at:
                assert (await at.ask("GET", "/echo")).status_code == 401
                assert (await at.upgrade())[0] == 401

    in_loop(test)


def test_a_server_that_others_reach_cannot_do_without_tokens() -> None:
    async def test() -> None:
        with pytest.raises(InvalidInput, match="token create"):
            async with guarded(Settings(host="0.0.0.0", auth="off")):
                pass

    in_loop(test)
    assert not Settings(auth="off").needs_tokens()


def test_the_answer_is_the_same_for_whatever_is_wrong_with_a_token() -> None:
    async def test() -> None:
        clock = SimulatedClock()
        async with guarded(clock=clock) as at:
            good = at.token("*:admin", name="good")
            revoked = at.token("*:admin", name="revoked")
            expired = at.token("*:admin", name="expired", expires_ms=1)
            Registrar(at.ms).revoke("revoked")
            clock.advance(2)
            answers = []
            for head in (
                {},
                {"authorization": "Bearer"},
                {"authorization": "Basic dTpw"},
                {"authorization": f"Bearer {good}x"},
                {"authorization": f"Bearer {revoked}"},
                {"authorization": f"Bearer {expired}"},
                {"authorization": "Bearer ms_0000000000000000_x"},
                {"authorization": "Bearer mt_x.y"},
                {"authorization": f"Bearer {'x' * 5_000}"},
            ):
                answer = await at.ask("POST", "/echo", headers=head, content=b"x" * 100)
                assert answer.headers["www-authenticate"] == 'Bearer realm="millstream"'
                assert answer.headers["content-type"] == "application/problem+json"
                answers.append((answer.status_code, answer.json()))
            assert all(one == answers[0] for one in answers)
            assert answers[0][0] == answers[0][1]["status"] == 401
            assert at.bodies_read == 0
            found = await at.ask("POST", "/echo", headers={"authorization": f"bearer {good}"})
            assert found.json()["principal"] == "good"

    in_loop(test)


def test_no_body_is_asked_for_before_the_token_is_known() -> None:
    async def test() -> None:
        async with guarded() as at:
            sent: list[Any] = []

            async def receive() -> Any:
                raise AssertionError("the body was read")

            async def send(message: Any) -> None:
                sent.append(message)

            headers = [(b"host", b"localhost"), (b"content-length", b"1000000")]
            scope = {"type": "http", "method": "POST", "path": "/echo", "headers": headers}
            await at.app({**scope, "scheme": "http", "query_string": b""}, receive, send)
            assert sent[0]["status"] == 401

    in_loop(test)


@pytest.mark.parametrize(
    ("host", "is_ours"),
    [
        ("localhost", True),
        ("LOCALHOST:8080", True),
        ("127.0.0.1:8080", True),
        ("127.1.2.3", True),
        ("[::1]:8080", True),
        ("evil.example", False),
        ("evil.example:8080", False),
        ("127.0.0.1.evil.example", False),
        ("localhost.evil.example", False),
        ("192.168.1.2", False),
        ("0.0.0.0", False),
        ("user@localhost", False),
        ("localhost/x", False),
        ("[::1", False),
        ("", False),
    ],
)
def test_on_loopback_only_names_of_this_machine_are_answered(host: str, is_ours: bool) -> None:
    async def test() -> None:
        async with guarded(Settings()) as at:
            answer = await at.ask("GET", "/echo", headers={"host": host})
            assert answer.status_code == (200 if is_ours else 403)
            assert (await at.upgrade(headers={"host": host}))[0] == (101 if is_ours else 403)

    in_loop(test)


@pytest.mark.parametrize(
    "head",
    [
        {"origin": "https://evil.example"},
        {"origin": "null"},
        {"origin": "http://127.0.0.1:9999", "sec-fetch-site": "same-site"},
        {"sec-fetch-site": "cross-site"},
        {"sec-fetch-site": "same-site"},
    ],
)
@pytest.mark.parametrize("method", ["POST", "PUT", "PATCH", "DELETE"])
def test_a_page_elsewhere_writes_nothing_though_nobody_needs_a_token(
    head: dict[str, str], method: str
) -> None:
    async def test() -> None:
        async with guarded(Settings(), extra=routes) as at:
            simple = {**head, "content-type": "text/plain"}
            for path in ("/logs/a/records", "/logs/a", "/queues/q"):
                answer = await at.ask(method, path, headers=simple, content=b"x")
                assert (answer.status_code, answer.json()["title"]) == (403, "WrongOrigin")
            assert [log.name for log in at.ms.logs()] == []
            own = {"origin": "http://127.0.0.1:8080", "sec-fetch-site": "same-origin"}
            answer = await at.ask("POST", "/logs/a/records", headers=own, content=b"x")
            assert answer.status_code == 201, answer.text

    in_loop(test)


def test_elsewhere_the_name_is_the_owners_business() -> None:
    async def test() -> None:
        async with guarded(PUBLIC_HOST) as at:
            token = at.token("*:admin")
            answer = await at.ask("GET", "/echo", bearer=token, headers={"host": "mill.example"})
            assert answer.status_code == 200

    in_loop(test)


@pytest.mark.parametrize(
    ("origin", "is_ours"),
    [
        ("http://127.0.0.1:8080", True),
        ("https://app.example", True),
        ("https://app.example:443", True),
        ("HTTPS://APP.EXAMPLE", True),
        ("http://app.example", False),
        ("https://app.example:444", False),
        ("https://127.0.0.1:8080", False),
        ("http://127.0.0.1:8081", False),
        ("http://localhost:8080", False),
        ("https://evil.example", False),
        ("https://app.example.evil.example", False),
        ("null", False),
        ("", False),
        ("https://[", False),
    ],
)
def test_pages_connect_from_the_server_itself_and_from_allowed_origins(
    origin: str, is_ours: bool
) -> None:
    async def test() -> None:
        async with guarded(Settings(origins=("https://app.example",))) as at:
            head = {"origin": origin}
            status, body, _ = await at.upgrade(headers=head)
            assert status == (101 if is_ours else 403)
            assert is_ours or msgspec.json.decode(body)["title"] == "WrongOrigin"
            posted = await at.ask("POST", "/echo", headers=head)
            assert posted.status_code == (200 if is_ours else 403)
            assert (await at.ask("GET", "/echo", headers=head)).status_code == 200

    in_loop(test)


def test_a_socket_is_refused_without_the_extension_too() -> None:
    async def test() -> None:
        async with guarded() as at:
            sent: list[Any] = []

            async def receive() -> Any:
                return {"type": "websocket.connect"}

            async def send(message: Any) -> None:
                sent.append(message)

            scope = {"type": "websocket", "path": "/echo-socket", "scheme": "ws"}
            headers = [(b"host", b"localhost")]
            await at.app({**scope, "headers": headers, "query_string": b""}, receive, send)
            assert sent == [{"type": "websocket.close", "code": 1008}]

    in_loop(test)


def test_too_many_requests_of_one_token_are_told_when_to_come_again() -> None:
    async def test() -> None:
        clock = SimulatedClock()
        settings = Settings(auth="on", requests_per_second=2)
        async with guarded(settings, clock=clock) as at:
            first, second = at.token("*:admin", name="a"), at.token("*:admin", name="b")

            async def status(bearer: str) -> int:
                return (await at.ask("GET", "/echo", bearer=bearer)).status_code

            assert [await status(first) for _ in range(3)] == [200, 200, 429]
            assert await status(second) == 200  # another token has its own
            refused = await at.ask("GET", "/echo", bearer=first)
            assert refused.headers["retry-after"] == "1"
            assert refused.json()["retry"] is True
            clock.advance(1)
            assert await status(first) == 200
            assert (await at.upgrade(headers={"authorization": f"Bearer {first}"}))[0] == 101
            assert (await at.upgrade(headers={"authorization": f"Bearer {first}"}))[0] == 429

    in_loop(test)


def test_the_connections_of_one_token_are_bounded() -> None:
    async def test() -> None:
        async with guarded(Settings(auth="on", connections_per_token_max=2)) as at:
            token = at.token("*:admin")
            principal = await at.core.tokens.authenticate(token)
            held = at.core.quota.connections.held
            with held(principal), held(principal):
                answer = await at.ask("GET", "/echo", bearer=token)
                assert (answer.status_code, answer.headers["retry-after"]) == (429, "1")
            for _ in range(5):
                assert (await at.ask("GET", "/echo", bearer=token)).status_code == 200

    in_loop(test)


def test_a_request_keeps_its_id_or_gets_one() -> None:
    async def test() -> None:
        async with guarded(Settings()) as at:
            given = await at.ask("GET", "/echo", headers={"x-request-id": "abc-1"})
            assert given.headers["x-request-id"] == given.json()["id"] == "abc-1"
            for wrong in ("a b", "x" * 65, "a;b", ""):
                answer = await at.ask("GET", "/echo", headers={"x-request-id": wrong})
                assert answer.headers["x-request-id"] == answer.json()["id"] != wrong
            refused = await at.ask("GET", "/echo", bearer="no")
            assert len(refused.headers["x-request-id"]) == 16
            _, _, sent = await at.upgrade()
            assert dict(sent[0]["headers"])[b"x-request-id"]

    in_loop(test)


def test_requests_are_noted_without_secrets_if_asked_to(caplog: pytest.LogCaptureFixture) -> None:
    async def ask(at: Guarded, token: str) -> None:
        body = {"permissions": ["log:read"]}
        ticket = (await at.ask("POST", "/tickets", bearer=token, json=body)).json()["ticket"]
        await at.ask("POST", "/echo", bearer=token, content=b"a payload")
        await at.ask("GET", f"/echo?ticket={ticket}&x=query")
        await at.ask("GET", "/a%0A%1B[31mb", bearer=f"{token}x")
        await at.upgrade(query=f"ticket={ticket}")

    async def test() -> None:
        async with guarded() as quiet:
            await ask(quiet, quiet.token("*:admin"))
        assert not caplog.records
        async with guarded(Settings(auth="on", log_requests=True)) as at:
            token = at.token("*:admin", name="ci")
            await ask(at, token)
            secret = token.split("_", 2)[2]
            lines = [record.getMessage() for record in caplog.records]
            assert not any(
                hidden in line for line in lines for hidden in (secret, "mt_", "payload", "query")
            )
            assert not any("\n" in line or "\x1b" in line for line in lines)
            found = [msgspec.json.decode(line) for line in lines]
            assert [(one["method"], one["status"]) for one in found] == [
                ("POST", 201),
                ("POST", 200),
                ("GET", 200),
                ("GET", 401),
                ("SOCKET", 101),
            ]
            assert [one["principal"] for one in found] == ["ci", "ci", "ci", "", "ci"]
            assert (found[1]["path"], found[1]["received_bytes"]) == ("/echo", 9)
            assert found[4]["received_bytes"] == found[4]["sent_bytes"] == 5
            assert set(found[0]) == {
                "time",
                "level",
                "event",
                "request_id",
                "method",
                "path",
                "status",
                "ms",
                "received_bytes",
                "sent_bytes",
                "principal",
            }

    caplog.set_level(logging.INFO, logger="millstream.access")
    in_loop(test)


def test_nobody_behind_the_guard_sees_a_ticket() -> None:
    async def test() -> None:
        async with guarded(Settings()) as at:
            body = {"permissions": ["log:read"]}
            ticket = (await at.ask("POST", "/tickets", json=body)).json()["ticket"]
            seen: list[bytes] = []

            async def app(scope: Any, receive: Any, send: Any) -> None:
                seen.append(scope["query_string"])
                await send({"type": "websocket.accept"})

            at.app.app = app
            await at.upgrade(query=f"a=1&ticket={ticket}&b=2")
            assert seen == [b"a=1&b=2"]

    in_loop(test)


def test_a_route_that_breaks_leaves_nothing_behind() -> None:
    async def test() -> None:
        async with guarded(Settings()) as at:

            async def broken(scope: Any, receive: Any, send: Any) -> None:
                raise RuntimeError("broken")

            at.app.app = broken
            with pytest.raises(RuntimeError):
                await at.ask("GET", "/echo")
            registry = at.core.meter.registry
            assert registry.get_sample_value("millstream_requests_open") == 0
            found = registry.get_sample_value("millstream_http_requests_total", {"status": "500"})
            assert found == 1
            assert not at.core.quota.connections

    in_loop(test)


def test_lifespan_events_pass() -> None:
    async def test() -> None:
        async with guarded() as at:
            seen: list[str] = []

            async def app(scope: Any, receive: Any, send: Any) -> None:
                seen.append(scope["type"])

            at.app.app = app
            await at.app({"type": "lifespan"}, None, None)  # type: ignore[arg-type]
            assert seen == ["lifespan"]

    in_loop(test)


def test_a_core_refuses_settings_before_it_takes_the_store() -> None:
    with pytest.raises(InvalidInput):
        Core(None, Settings(host="::", auth="off"))  # type: ignore[arg-type]
    assert WITH_TOKENS.needs_tokens()
