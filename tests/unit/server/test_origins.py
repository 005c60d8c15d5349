"""CORS: pages of named origins may read answers, and pages of other origins may not."""

from __future__ import annotations

import pytest

from millstream.errors import InvalidInput
from millstream.server.listen.origins import Origins
from millstream.server.pages import WebPages
from millstream.server.settings import Settings
from tests.unit.server.guarded import guarded, in_loop

APP = "https://app.example"
ALLOWED = "access-control-allow-origin"
ASKS = {"access-control-request-method": "POST", "access-control-request-headers": "authorization"}


@pytest.mark.parametrize(
    ("origin", "is_named"),
    [(APP, True), (f"{APP}:443", True), ("https://evil.example", False), ("null", False)],
)
def test_an_answer_may_be_read_by_pages_of_named_origins(origin: str, is_named: bool) -> None:
    async def test() -> None:
        async with guarded(Settings(origins=(APP,)), extra=lambda core: [WebPages()]) as at:
            for path in ("/echo", "/millstream.js", "/millstream.global.js", "/none"):
                answer = await at.ask("GET", path, headers={"origin": origin})
                assert answer.headers.get(ALLOWED) == (origin if is_named else None)
                assert answer.headers["vary"] == "origin"
                assert "access-control-allow-credentials" not in answer.headers

    in_loop(test)


def test_a_refusal_may_be_read_as_well() -> None:
    async def test() -> None:
        async with guarded(Settings(auth="on", origins=(APP,))) as at:
            answer = await at.ask("POST", "/echo", headers={"origin": APP})
            assert (answer.status_code, answer.headers[ALLOWED]) == (401, APP)

    in_loop(test)


def test_a_browser_that_asks_first_needs_no_token() -> None:
    async def test() -> None:
        async with guarded(Settings(auth="on", origins=(APP,))) as at:
            answer = await at.ask("OPTIONS", "/echo", headers={"origin": APP, **ASKS})
            assert (answer.status_code, answer.content) == (204, b"")
            assert answer.headers[ALLOWED] == APP
            assert "POST" in answer.headers["access-control-allow-methods"]
            assert answer.headers["access-control-allow-headers"] == "authorization, *"
            other = {"origin": "https://evil.example", **ASKS}
            refused = await at.ask("OPTIONS", "/echo", headers=other)
            assert refused.status_code == 401
            assert ALLOWED not in refused.headers
            plain = await at.ask("OPTIONS", "/echo", headers={"origin": APP})
            assert plain.status_code == 401

    in_loop(test)


def test_without_named_origins_answers_are_as_before() -> None:
    async def test() -> None:
        async with guarded(Settings()) as at:
            answer = await at.ask("GET", "/echo", headers={"origin": APP})
            assert ALLOWED not in answer.headers
            assert "vary" not in answer.headers

    in_loop(test)


@pytest.mark.parametrize("text", ["app.example", "*", "null", "", "https://", "https://a/b"])
def test_a_text_that_is_no_origin_is_refused(text: str) -> None:
    with pytest.raises(InvalidInput, match="such as https:"):
        Origins([text])
