"""What REST stores as JSON can be decoded as JSON by every reader, and what it answers as well."""

from __future__ import annotations

import json

import msgspec
import pytest

from millstream.aio.log import Log
from tests.unit.server.asking import EACH_WAY, Rest, each_way, problem, served

way = EACH_WAY(each_way)

KIND = {"content-type": "application/json"}

BOUNDLESS = [
    b"1e999",
    b"-1e999",
    b"[1e400]",
    b'{"a": {"b": 1e999}}',
    b"1" + b"0" * 5_000,
    b"9" * 250 + b"e99",
]
"""Numbers by the grammar of JSON, and too large for a decoder."""

PLACES = {
    "record": ("/logs/a/records", b'{"value": %b}'),
    "records": ("/logs/a/records", b'{"records": [{"value": 1}, {"value": %b}]}'),
    "message": ("/queues/q/messages", b'{"value": %b}'),
    "messages": ("/queues/q/messages", b'{"messages": [{"value": %b}]}'),
    "append": ("/transactions", b'{"operations": [{"op": "append", "log": "a", "value": %b}]}'),
    "put": ("/transactions", b'{"operations": [{"op": "put", "queue": "q", "value": %b}]}'),
    "room": ("/rooms/r/messages", b'{"messages": [{"type": "t", "data": %b}]}'),
    "header": ("/logs/a/records", b'{"value": 1, "headers": {"a": %b}}'),
    "claim": ("/queues/q/claims", b'{"lease": %b}'),
    "search": ("/queues/q/redrive", b'{"limit": %b}'),
}


@served
async def test_a_number_that_no_reader_can_decode_is_refused(rest: Rest) -> None:
    assert (await rest.put("/queues/q", json={"sources": ["a"]})).is_success
    for path, body in PLACES.values():
        for value in BOUNDLESS:
            answer = await rest.post(path, content=body % value, headers=KIND)
            told = problem(answer, 422, "InvalidInput")
            assert "$" in told["detail"] or "'value'" in told["detail"], "where it stands"
    assert (await rest.get("/logs")).json()["logs"] == [], "nothing was stored"
    assert (await rest.post("/queues/q/claims")).json()["messages"] == []


@served
async def test_what_is_no_json_at_all_is_malformed(rest: Rest) -> None:
    assert (await rest.put("/queues/q", json={"sources": ["a"]})).is_success
    for place in ("record", "records", "message", "messages", "append", "put", "room"):
        path, body = PLACES[place]
        for value in (b"NaN", b"-Infinity", rb'["\ud800"]', rb'{"\udfff": 1}'):
            answer = await rest.post(path, content=body % value, headers=KIND)
            problem(answer, 400, "Malformed")


@served
async def test_large_integers_that_can_be_decoded_are_kept_digit_for_digit(rest: Rest) -> None:
    for value in (b"18446744073709551616", b"-1" + b"0" * 400, b"1e308", b"1e-999"):
        answer = await rest.post("/logs/a/records", content=b'{"value": %b}' % value, headers=KIND)
        stored = await rest.get(f"/logs/a/records/{answer.json()['offset']}")
        assert stored.content == value
        msgspec.json.decode(stored.content)


@served
async def test_metadata_never_expects_what_no_entry_can_be(rest: Rest) -> None:
    for body in (b'{"value": 1, "expect": 1e999}', b'{"value": 1e999}'):
        answer = await rest.put("/logs/a/metadata/k", content=body, headers=KIND)
        problem(answer, 422, "InvalidInput")
    assert (await rest.get("/logs/a/metadata")).json() == {}


@served
async def test_one_record_whose_bytes_are_no_json_leaves_a_page_readable(rest: Rest) -> None:
    kind = {"content-type": "application/cloudevents+json"}
    for body in (b'{"n": 1e999}', b'{"n": 1}'):
        assert (await rest.post("/logs/a/records", content=body, headers=kind)).status_code == 201
    page = msgspec.json.decode((await rest.get("/logs/a/records")).content)
    assert [one.get("value") for one in page["records"]] == [None, {"n": 1}]
    assert msgspec.convert(page["records"][0]["base64"], bytes, strict=False) == b'{"n": 1e999}'
    assert (await rest.get("/logs/a/records/0")).content == b'{"n": 1e999}'


@served
async def test_headers_beside_a_value_are_json(rest: Rest) -> None:
    await Log(rest.core.session, "a").append(b"x", headers={"n": float("inf"), "é": "ü"})
    told = (await rest.get("/logs/a/records/0")).headers["millstream-headers"]
    assert json.loads(told, parse_constant=pytest.fail) == {"n": None, "é": "ü"}
