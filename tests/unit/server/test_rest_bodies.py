"""Bodies and errors of REST: sizes, slowness, media types, problems."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from typing import Any

import msgspec
import pytest

from millstream import errors
from millstream.errors import Denied, MillstreamError
from millstream.server import problems
from millstream.server.rest import routing
from millstream.server.settings import Settings
from tests.unit.server.asking import EACH_WAY, Rest, each_way, looped, problem, served, serving

way = EACH_WAY(each_way)

SMALL = Settings(body_bytes_max=1_000)


async def pieces(count: int) -> AsyncIterator[bytes]:
    for _ in range(count):
        yield b"x" * 100


@looped
async def test_a_body_is_counted_while_it_arrives() -> None:
    async with serving(settings=SMALL) as rest:
        assert (await rest.post("/logs/a/records", content=pieces(10))).status_code == 201
        refused = await rest.post("/logs/a/records", content=pieces(11))
        assert problem(refused, 413, "TooLarge")["data"]["limit"] == 1_000
        endless = pieces(10**9)
        problem(await rest.post("/logs/a/records", content=endless), 413, "TooLarge")


@looped
async def test_a_length_that_is_too_long_or_none_is_refused_before_the_body() -> None:
    async with serving(settings=SMALL) as rest:
        for length, title, status in (("1001", "TooLarge", 413), ("many", "Malformed", 400)):
            headers = {"content-length": length, "content-type": "text/plain"}
            answer = await rest.post("/logs/a/records", content=pieces(1), headers=headers)
            problem(answer, status, title)
        lying = {"content-length": "1", "content-type": "text/plain"}
        answer = await rest.post("/logs/a/records", content=pieces(20), headers=lying)
        problem(answer, 413, "TooLarge")


@looped
async def test_a_slow_sender_is_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(routing, "BODY_S", 0.01)

    async def never() -> AsyncIterator[bytes]:
        yield b"x"
        await asyncio.Event().wait()

    async with serving() as rest:
        answer = await rest.post("/logs/a/records", content=never())
        assert problem(answer, 408, "TooSlow")["retry"] is True
        assert answer.headers["connection"] == "close"


@served
async def test_a_body_of_a_wrong_type_is_refused(rest: Rest) -> None:
    answer = await rest.post("/transactions", content=b"a=b", headers={"content-type": "a/b"})
    assert problem(answer, 415, "UnsupportedMedia")["data"]["offered"] == ["application/json"]
    problem(
        await rest.put("/queues/q", content=b"<a/>", headers={"content-type": "text/xml"}),
        415,
        "UnsupportedMedia",
    )
    charset = {"content-type": "Application/JSON; charset=utf-8"}
    body = b'{"operations": [{"op": "create_log", "log": "a"}]}'
    answer = await rest.post("/transactions", content=body, headers=charset)
    assert answer.json() == {"results": [True]}


def every_error(root: type[MillstreamError] = MillstreamError) -> list[type[MillstreamError]]:
    return [kind for one in root.__subclasses__() for kind in (one, *every_error(one))]


@pytest.mark.parametrize("kind", every_error(), ids=lambda kind: kind.__name__)
def test_every_error_becomes_a_problem(kind: type[MillstreamError]) -> None:
    data: dict[str, Any] = {"allow": ["GET"], "text": "\ud800", "odd": {1}, "name": "x"}
    response = problems.respond(kind("what happened \udfff", **data))
    found = msgspec.json.decode(bytes(response.body))
    assert response.status_code == found["status"] == problems.status_of(kind(""))
    assert found["title"] == kind.__name__
    assert found["retry"] is kind.retry
    assert found["data"]["name"] == "x"
    assert (found.get("outcome") == "unknown") is (kind is errors.OutcomeUnknown)
    if kind.retry and response.status_code in (429, 503, 507):
        assert response.headers["retry-after"] == "1"


@pytest.mark.parametrize(
    ("kind", "status"),
    [
        (errors.InvalidFilter, 422),
        (errors.TooLarge, 413),
        (errors.NotFound, 404),
        (errors.LeaseLost, 409),
        (errors.Truncated, 410),
        (errors.OutOfRange, 416),
        (errors.Locked, 423),
        (errors.Overloaded, 429),
        (errors.Closed, 503),
        (errors.WriteFailed, 503),
        (errors.Recovering, 503),
        (errors.DiskFull, 507),
        (errors.OutcomeUnknown, 500),
        (errors.CorruptionError, 500),
        (Denied, 403),
    ],
)
def test_statuses_are_as_documented(kind: type[MillstreamError], status: int) -> None:
    assert problems.status_of(kind("")) == status


@served
async def test_a_mistake_of_ours_is_told_without_its_insides(rest: Rest) -> None:
    async def broken(*_: Any) -> None:
        raise RuntimeError("the secret is swordfish")

    rest.core.session.execute = broken  # type: ignore[method-assign, assignment]
    logger = logging.getLogger("millstream.server")
    seen: list[logging.LogRecord] = []
    handler = logging.Handler()
    handler.emit = seen.append  # type: ignore[method-assign]
    logger.addHandler(handler)
    try:
        answer = await rest.get("/logs/a")
    finally:
        logger.removeHandler(handler)
    assert "swordfish" not in str(problem(answer, 500, "InternalError"))
    (record,) = seen
    assert record.getMessage() == "request_failed"
    assert record.__dict__["error"] == "RuntimeError"
    assert "test_rest_bodies.py" in record.__dict__["where"]
    assert "swordfish" not in str(record.__dict__)


@served
async def test_a_closed_store_is_unavailable(rest: Rest) -> None:
    await rest.core.close()
    problem(await rest.post("/logs/a/records", json={"value": 1}), 503, "Closed")
