"""Staging over REST: parts from many tasks, published at once, and once."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from millstream.engine.memory.engine import MemoryEngine
from millstream.engine.sqlite.engine import SqliteEngine
from millstream.format.block import checksum
from millstream.format.packing import Batch, pack_batch
from millstream.limits import Limits
from millstream.log.commands import FreeLog, TakeLog
from millstream.server import staged_parts as shelves
from millstream.server.docs.endpoints import routes
from millstream.testing.clock import SimulatedClock
from tests.unit.server.asking import Rest, looped, problem, served, serving
from tests.unit.server.guarded import guarded

KIND = {"content-type": "application/x-millstream-batch"}


def batch(*values: bytes) -> Batch:
    return pack_batch(values, keys=None, headers=None, timestamps=None, limits=Limits())


async def stage(rest: Rest, part: str, *values: bytes, attempt: int = 0) -> dict[str, Any]:
    data = msgspec.msgpack.encode(batch(*values))
    path = f"/staging/t/{part}?attempt={attempt}&crc={checksum(data)}"
    answer = await rest.post(path, content=data, headers=KIND)
    assert answer.status_code == 201, answer.text
    found: dict[str, Any] = answer.json()
    assert found["count"] == len(values)
    return found


async def values_in(rest: Rest, log: str = "out") -> list[bytes]:
    answer = await rest.get(f"/logs/{log}/records")
    if answer.status_code == 404:
        return []
    blocks = answer.json()["records"]
    return [msgspec.json.decode(f'"{one["base64"]}"', type=bytes) for one in blocks]


@served
async def test_parts_are_published_in_the_order_of_the_commit(rest: Rest) -> None:
    await rest.post("/logs/out/records", json={"base64": ""})
    first = await stage(rest, "1", b"a", b"b")
    second = await stage(rest, "2", b"c", b"d", b"e")
    assert await values_in(rest) == [b""]
    answer = await rest.post("/staging/t/commit", json={"log": "out", "parts": [second, first]})
    assert answer.json() == {"log": "out", "offset": 1, "count": 5, "repeated": False}
    assert await values_in(rest) == [b"", b"c", b"d", b"e", b"a", b"b"]
    assert rest.core.shelf.total_bytes() == 0


@served
async def test_a_repeated_commit_answers_the_same_and_other_content_is_a_conflict(
    rest: Rest,
) -> None:
    body = {
        "log": "out",
        "parts": [await stage(rest, "1", b"a", b"b"), await stage(rest, "2", b"c", b"d")],
    }
    first = (await rest.post("/staging/t/commit", json=body)).json()
    await rest.post("/logs/out/records", json={"value": "between"})
    again = (await rest.post("/staging/t/commit", json=body)).json()
    assert again == {**first, "repeated": True}
    other = {"log": "out", "parts": [await stage(rest, "9", b"x", b"y", b"z", attempt=3)]}
    refused = problem(await rest.post("/staging/t/commit", json=other), 409, "Conflict")
    assert refused["data"] == {"log": "out", "offset": 0, "count": 4}
    fewer = {"log": "out", "parts": body["parts"][:1]}
    turned = {"log": "out", "parts": body["parts"][::-1]}
    for different in (fewer, turned):
        problem(await rest.post("/staging/t/commit", json=different), 409, "Conflict")
    packed_anew = {**other, "any_content": True}
    assert (await rest.post("/staging/t/commit", json=packed_anew)).json() == again
    assert len((await rest.get("/logs/out/records")).json()["records"]) == 5
    elsewhere = await rest.post("/staging/t/commit", json={**body, "log": "other"})
    assert problem(elsewhere, 409, "Conflict")["data"]["log"] == "out"


@looped
async def test_a_transactions_name_belongs_to_the_token_that_commits_it() -> None:
    async with guarded(extra=routes) as at:
        one, two = at.token("log:write", name="one"), at.token("log:write", name="two")
        answers = []
        for token, values in ((one, (b"a", b"b")), (two, (b"c", b"d")), (one, (b"a", b"b"))):
            data = msgspec.msgpack.encode(batch(*values))
            part = await at.ask("POST", "/staging/t/1", bearer=token, content=data, headers=KIND)
            body = {"log": "out", "parts": [part.json()]}
            answers.append(
                (await at.ask("POST", "/staging/t/commit", bearer=token, json=body)).json()
            )
        assert [one["repeated"] for one in answers] == [False, False, True]
        assert [one["offset"] for one in answers] == [0, 2, 0]
        assert [record.value for record in at.ms.log("out").read()] == [b"a", b"b", b"c", b"d"]


@served
async def test_no_producers_name_makes_a_commit_lose_a_part(rest: Rest) -> None:
    for name in ("staging:t", "t", "millstream:staging:t"):
        producer = {"name": name, "sequence": 0}
        body = {"records": [{"base64": ""}, {"base64": ""}], "producer": producer}
        assert (await rest.post("/logs/out/records", json=body)).status_code == 201
    parts = [await stage(rest, "1", b"a", b"b"), await stage(rest, "2", b"c", b"d")]
    answer = await rest.post("/staging/t/commit", json={"log": "out", "parts": parts})
    assert answer.json() == {"log": "out", "offset": 6, "count": 4, "repeated": False}
    assert (await values_in(rest))[6:] == [b"a", b"b", b"c", b"d"]


@served
async def test_a_repeat_is_answered_also_when_its_log_is_gone(rest: Rest) -> None:
    body = {"log": "out", "parts": [await stage(rest, "1", b"a", b"b")]}
    first = (await rest.post("/staging/t/commit", json=body)).json()
    await rest.delete("/logs/out")
    again = (await rest.post("/staging/t/commit", json=body)).json()
    assert again == {**first, "repeated": True}
    assert (await rest.get("/logs/out")).status_code == 404


@served
async def test_a_name_is_free_again_after_a_week(rest: Rest) -> None:
    body = {"log": "out", "parts": [await stage(rest, "1", b"a", b"b")]}
    await rest.post("/staging/t/commit", json=body)
    rest.clock.advance(8 * 24 * 3600)
    again = {"log": "out", "parts": [await stage(rest, "1", b"a", b"b")]}
    answer = (await rest.post("/staging/t/commit", json=again)).json()
    assert (answer["offset"], answer["repeated"]) == (2, False)


@looped
async def test_a_commit_that_fails_is_not_remembered() -> None:
    async with serving() as rest:
        body = {"log": "out", "parts": [await stage(rest, "1", b"a", b"b")]}
        await rest.core.session.execute(TakeLog("out", "holder"))
        assert (await rest.post("/staging/t/commit", json=body)).status_code == 423
        await rest.core.session.execute(FreeLog("out", "holder"))
        answer = (await rest.post("/staging/t/commit", json=body)).json()
        assert (answer["offset"], answer["repeated"]) == (0, False)


@looped
async def test_a_repeat_is_known_after_a_restart() -> None:
    engine, clock = MemoryEngine(), SimulatedClock()
    async with serving(engine=engine, clock=clock) as rest:
        body = {"log": "out", "parts": [await stage(rest, "1", b"a", b"b")]}
        first = (await rest.post("/staging/t/commit", json=body)).json()
    async with serving(engine=engine.reopen(), clock=clock) as rest:
        again = (await rest.post("/staging/t/commit", json=body)).json()
        assert again == {**first, "repeated": True}


@served
async def test_commits_of_the_same_transaction_at_once_publish_once(rest: Rest) -> None:
    body = {"log": "out", "parts": [await stage(rest, "1", b"a", b"b")]}
    answers = await asyncio.gather(*(rest.post("/staging/t/commit", json=body) for _ in range(5)))
    assert sorted(answer.json()["repeated"] for answer in answers) == [False] + [True] * 4
    assert {answer.json()["offset"] for answer in answers} == {0}
    assert await values_in(rest) == [b"a", b"b"]


@served
async def test_a_part_that_is_gone_or_another_is_a_conflict(rest: Rest) -> None:
    part = await stage(rest, "1", b"a", b"b")
    gone = {**part, "part": "2"}
    answer = await rest.post("/staging/t/commit", json={"log": "out", "parts": [part, gone]})
    assert problem(answer, 409, "Conflict")["data"]["missing"] == ["2"]
    for change in ({"crc": 1}, {"count": 3}, {"attempt": 1}):
        body = {"log": "out", "parts": [{**part, **change}]}
        problem(await rest.post("/staging/t/commit", json=body), 409, "Conflict")
    twice = {"log": "out", "parts": [part, part]}
    problem(await rest.post("/staging/t/commit", json=twice), 422, "InvalidInput")
    assert await values_in(rest) == []


@served
async def test_a_later_attempt_stands_beside_the_first_and_a_repeat_replaces_it(rest: Rest) -> None:
    await stage(rest, "1", b"old", b"old")
    second = await stage(rest, "1", b"new", b"new", attempt=1)
    await stage(rest, "1", b"new", b"new", attempt=1)
    await rest.post("/staging/t/commit", json={"log": "out", "parts": [second]})
    assert await values_in(rest) == [b"new", b"new"]


@served
async def test_records_can_be_staged_as_json(rest: Rest) -> None:
    part = await rest.post("/staging/t/a%2Fb", json={"records": [{"value": 1}]})
    assert part.json()["part"] == "a/b"
    body = {"log": "out", "parts": [part.json()]}
    assert (await rest.post("/staging/t/commit", json=body)).json()["count"] == 1
    assert (await rest.get("/logs/out/records/0")).json() == 1
    repeated = (await rest.post("/staging/t/commit", json=body)).json()
    assert (repeated["offset"], repeated["repeated"]) == (0, True)


@served
async def test_abandoned_parts_expire_or_are_dropped(rest: Rest) -> None:
    part = await stage(rest, "1", b"a", b"b")
    rest.clock.advance(shelves.IDLE_S + 1)
    body = {"log": "out", "parts": [part]}
    problem(await rest.post("/staging/t/commit", json=body), 409, "Conflict")
    assert rest.core.shelf.total_bytes() == 0
    await stage(rest, "1", b"a", b"b")
    assert (await rest.delete("/staging/t")).json() == {"deleted": True}
    assert (await rest.delete("/staging/t")).json() == {"deleted": False}


@pytest.mark.parametrize(
    "spoiled",
    [
        {"payload_crc": 1},
        {"metadata_crc": 1},
        {"count": 3},
        {"count": 0},
        {"columns": 63},
        {"timestamp_ms": -1},
        {"payload": b"short"},
    ],
    ids=str,
)
@looped
async def test_a_damaged_block_is_refused(spoiled: dict[str, Any]) -> None:
    async with serving() as rest:
        data = msgspec.msgpack.encode(replace(batch(b"a", b"b"), **spoiled))
        problem(await rest.post("/staging/t/1", content=data, headers=KIND), 422, "InvalidInput")


@served
async def test_what_is_no_part_is_refused(rest: Rest) -> None:
    data = msgspec.msgpack.encode(batch(b"a", b"b"))
    answer = await rest.post("/staging/t/1?crc=1", content=data, headers=KIND)
    assert problem(answer, 422, "InvalidInput")["data"]["crc"] == checksum(data)
    problem(await rest.post("/staging/t/1", content=b"\x93", headers=KIND), 422, "InvalidInput")
    problem(await rest.post("/staging/t/1", json={"records": []}), 422, "InvalidInput")
    problem(await rest.post("/staging/t/1", content=b"x"), 415, "UnsupportedMedia")
    problem(
        await rest.post(f"/staging/{'t' * 201}/1", content=data, headers=KIND), 422, "InvalidInput"
    )
    problem(
        await rest.post("/staging/t/commit", json={"log": "a", "parts": []}), 422, "InvalidInput"
    )


@served
async def test_parts_go_to_logs_of_their_own_in_one_commit(rest: Rest) -> None:
    first = await stage(rest, "1", b"a", b"b")
    second = await stage(rest, "2", b"c", b"d")
    third = await stage(rest, "3", b"e", b"f")
    parts = [{**first, "log": "x"}, {**second, "log": "y"}, {**third, "log": "x"}]
    answer = await rest.post("/staging/t/commit", json={"parts": parts})
    assert answer.json() == {"log": "", "offset": 0, "count": 6, "repeated": False}
    assert await values_in(rest, "x") == [b"a", b"b", b"e", b"f"]
    assert await values_in(rest, "y") == [b"c", b"d"]
    again = await rest.post("/staging/t/commit", json={"parts": parts})
    assert again.json()["repeated"] is True
    other = [{**one, "log": "z"} for one in parts]
    problem(await rest.post("/staging/t/commit", json={"parts": other}), 409, "Conflict")
    problem(await rest.post("/staging/t/commit", json={"parts": [first]}), 422, "InvalidName")


@looped
async def test_each_log_of_a_commit_needs_the_right_to_write_it() -> None:
    async with guarded(extra=routes) as at:
        token = at.token("log:write:x*")
        data = msgspec.msgpack.encode(batch(b"a", b"b"))
        sent = await at.ask("POST", "/staging/t/1", bearer=token, content=data, headers=KIND)
        for log, status in (("y", 403), ("x1", 200)):
            body = {"log": "x", "parts": [{**sent.json(), "log": log}]}
            answer = await at.ask("POST", "/staging/t/commit", bearer=token, json=body)
            assert answer.status_code == status, answer.text


@served
async def test_staging_has_bounds(
    rest: Rest,
) -> None:
    shelf = rest.core.shelf
    await stage(rest, "1", b"a", b"b")
    found = shelf.find(("local", "t"))
    assert found is not None
    found.size = shelves.TRANSACTION_BYTES_MAX
    data = msgspec.msgpack.encode(batch(b"a", b"b"))
    problem(await rest.post("/staging/t/2", content=data, headers=KIND), 413, "TooLarge")
    found.size = shelves.STAGED_BYTES_MAX
    full = await rest.post("/staging/u/2", content=data, headers=KIND)
    assert problem(full, 429, "Overloaded")["retry"] is True
    assert full.headers["retry-after"] == "1"


@looped
async def test_staged_files_lie_beside_the_store_and_have_no_name(tmp_path: Path) -> None:
    engine = SqliteEngine(tmp_path / "a.db")
    async with serving(engine=engine) as rest:  # type: ignore[arg-type]
        part = await stage(rest, "1", b"a", b"b")
        assert not list(tmp_path.glob("millstream-staging-*"))
        answer = await rest.post("/staging/t/commit", json={"log": "out", "parts": [part]})
        assert answer.json()["count"] == 2


@served
async def test_a_queue_of_every_log_does_not_see_the_books(rest: Rest) -> None:
    await rest.put("/queues/q", json={"sources": ["*"]})
    part = await stage(rest, "1", b"a", b"b")
    await rest.post("/staging/t/commit", json={"log": "out", "parts": [part]})
    found = (await rest.post("/queues/q/claims", json={"n": 10})).json()["messages"]
    assert [one["log"] for one in found] == ["out", "out"]
