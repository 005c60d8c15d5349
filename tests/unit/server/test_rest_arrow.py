"""Ranges of a log as Arrow streams: what pyarrow reads from them is what was appended."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import httpx
import pytest

import millstream
from millstream.limits import Limits
from millstream.server.serving import running
from millstream.server.settings import Settings
from tests.unit.server.asking import Rest, looped, problem, served, serving

pytestmark = pytest.mark.requires("arrow")

ARROW = "application/vnd.apache.arrow.stream"
HEADERS = {"s": "x", "i": -(2**63), "d": 0.5, "b": True, "n": None, "ü": "ö"}


async def table(rest: Rest, query: str = "", log: str = "a") -> Any:
    import pyarrow as pa

    answer = await rest.get(f"/logs/{log}/records{query}", headers={"accept": ARROW})
    assert (answer.status_code, answer.headers["content-type"]) == (200, ARROW), answer.text
    return pa.ipc.open_stream(answer.content).read_all()


def plain(found: Any) -> list[tuple[int, bytes | None, bytes | None]]:
    columns = [found.column(name).to_pylist() for name in ("offset", "key", "value")]
    return list(zip(*columns, strict=True))


def headers(found: Any) -> list[list[tuple[str, dict[str, Any]]]]:
    column = found.column("headers").to_pylist()
    return [[(one["key"], one["value"]) for one in some] for some in column]


@served
async def test_keys_headers_and_times_are_those_that_were_appended(rest: Rest) -> None:
    records = [
        {"base64": "/w==", "key": "k", "headers": HEADERS, "timestamp": 5},
        {"value": 1, "key_base64": "/wA=", "timestamp": 0},
        {"value": "text", "timestamp": 253_402_300_799_999},
    ]
    assert (await rest.post("/logs/a/records", json={"records": records})).status_code == 201
    twice = [["a", 1], ["a", {"base64": "/w=="}]]
    await rest.post("/logs/a/records", json={"base64": None, "headers": twice})
    for folded in (False, True):
        if folded:
            await asyncio.to_thread(rest.core.store.fold)
        found = await table(rest)
        assert plain(found) == [
            (0, b"k", b"\xff"),
            (1, b"\xff\x00", b"1"),
            (2, None, b"text"),
            (3, None, None),
        ]
        none = dict.fromkeys("sidbx")
        assert headers(found)[3] == [("a", {**none, "i": 1}), ("a", {**none, "x": b"\xff"})]
        shown = dict(headers(found)[0])
        assert shown == {
            "s": {**none, "s": "x"},
            "i": {**none, "i": -(2**63)},
            "d": {**none, "d": 0.5},
            "b": {**none, "b": True},
            "n": none,
            "ü": {**none, "s": "ö"},
        }
        times = found.column("timestamp").cast("int64").to_pylist()
        assert times[0] == 5
        assert times[2] == 253_402_300_799_999
        assert times[3] == rest.clock.wall_ms()
        assert found.column("appended").cast("int64").to_pylist() == [rest.clock.wall_ms()] * 4
        found.validate(full=True)


@served
async def test_a_range_may_begin_and_end_within_blocks(rest: Rest) -> None:
    for first in (0, 10, 20):
        records = [{"value": first + i, "key": f"k{first + i}"} for i in range(10)]
        await rest.post("/logs/a/records", json={"records": records})
    whole = [(n, f"k{n}".encode(), str(n).encode()) for n in range(30)]
    assert plain(await table(rest)) == whole
    for start, stop in ((3, 27), (10, 20), (9, 11), (29, 30), (0, 1)):
        assert plain(await table(rest, f"?start={start}&stop={stop}")) == whole[start:stop]
    assert plain(await table(rest, "?start=5&limit=7")) == whole[5:12]
    assert plain(await table(rest, "?start=29&limit=9223372036854775807")) == whole[29:]


@served
async def test_nothing_is_a_stream_without_batches(rest: Rest) -> None:
    await rest.put("/logs/none")
    found = await table(rest, log="none")
    assert found.num_rows == 0
    assert found.schema.names == ["offset", "timestamp", "appended", "key", "value", "headers"]
    await rest.post("/logs/a/records", json={"value": 1})
    assert (await table(rest, "?start=1")).num_rows == 0
    assert (await table(rest, "?start=5&stop=3")).num_rows == 0


@served
async def test_a_log_that_does_not_exist_is_not_found(rest: Rest) -> None:
    answer = await rest.get("/logs/gone/records", headers={"accept": ARROW})
    assert problem(answer, 404, "NotFound")["data"] == {"name": "gone"}


@served
async def test_a_truncated_range_is_refused_before_anything_is_sent(rest: Rest) -> None:
    records = [{"value": n} for n in range(10)]
    await rest.post("/logs/a/records", json={"records": records})
    await rest.post("/logs/a/truncate", json={"before": 4})
    answer = await rest.get("/logs/a/records?start=2", headers={"accept": ARROW})
    problem(answer, 410, "Truncated")
    assert [row[0] for row in plain(await table(rest))] == [*range(4, 10)]
    assert [row[0] for row in plain(await table(rest, "?start=4"))] == [*range(4, 10)]


@served
async def test_a_stream_may_wait_for_its_first_record(rest: Rest) -> None:
    waiting = asyncio.create_task(table(rest, "?wait=30"))
    await asyncio.sleep(0)
    await rest.post("/logs/a/records", json={"value": 1})
    assert plain(await waiting) == [(0, None, b"1")]


@looped
async def test_many_blocks_are_read_in_many_steps() -> None:
    async with serving(limits=Limits(read_bytes_max=1_000)) as rest:
        for first in range(0, 2_000, 100):
            records = [{"value": "x" * 50, "headers": {"n": first + i}} for i in range(100)]
            await rest.post("/logs/a/records", json={"records": records})
        found = await table(rest)
        assert found.num_rows == 2_000
        numbers = [dict(one)["n"]["i"] for one in headers(found)]
        assert numbers == [*range(2_000)]
        assert found.column("value").num_chunks >= 20


def test_a_large_range_is_streamed_and_what_is_not_read_waits(tmp_path: Path) -> None:
    import pyarrow as pa

    total, size = 60_000, 1_000
    with running(tmp_path / "a.db", Settings(port=0), durability="relaxed") as server:
        with millstream.open(server.url) as ms:
            log = ms.log("a")
            for _ in range(total // 1_000):
                log.append_many([b"x" * size] * 1_000)
        url = f"{server.url}/logs/a/records"
        with httpx.stream("GET", url, headers={"accept": ARROW}, timeout=60) as answer:
            chunks = answer.iter_raw()
            first = next(chunks)
            assert len(first) < total * size / 4  # it came long before the rest
            data = first + b"".join(chunks)
        found = pa.ipc.open_stream(data)
        rows = sum(batch.num_rows for batch in found)
        assert rows == total
