"""A log is searched by key, filter and time, from either end, a bounded stretch at a time."""

from __future__ import annotations

from typing import Any

import pytest

from millstream.server.rest import search
from tests.unit.server.asking import Rest, looped, problem, served, serving


async def fill(rest: Rest, count: int = 10) -> None:
    """Records of two keys, a second apart; the times are 1, 2, … s after the first."""
    for number in range(count):
        body = {
            "value": number,
            "key": f"k{number % 2}",
            "headers": {"n": number, "third": number % 3},
        }
        await rest.post("/logs/a/records", json=body)
        rest.clock.advance(1)


async def find(rest: Rest, **query: Any) -> dict[str, Any]:
    answer = await rest.get("/logs/a/search", params=query)
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


def offsets(page: dict[str, Any]) -> list[int]:
    return [one["offset"] for one in page["records"]]


async def all_pages(rest: Rest, **query: Any) -> list[int]:
    """The offsets of every page, one after the other."""
    found: list[int] = []
    page = await find(rest, **query)
    while True:
        found += offsets(page)
        if page["next"] is None:
            return found
        side = "stop" if query.get("order") == "newest" else "start"
        page = await find(rest, **{**query, side: page["next"]})


@served
async def test_records_are_found_by_key_by_filter_and_by_both(rest: Rest) -> None:
    await fill(rest)
    assert offsets(await find(rest)) == list(range(10))
    assert offsets(await find(rest, key="k1")) == [1, 3, 5, 7, 9]
    assert offsets(await find(rest, where="n >= 7")) == [7, 8, 9]
    found = await find(rest, key="k1", where="n < 5", order="newest")
    assert offsets(found) == [3, 1]
    assert found["records"][0]["value"] == 3
    assert (found["scanned"], found["next"], found["end_offset"]) == (10, None, 10)
    assert offsets(await find(rest, key="k")) == []
    assert offsets(await find(rest, start=2, stop=4)) == [2, 3]


@served
async def test_records_are_found_by_when_they_were_appended(rest: Rest) -> None:
    await fill(rest)
    times = [one["appended"] for one in (await find(rest))["records"]]
    assert offsets(await find(rest, since=times[3])) == list(range(3, 10))
    assert offsets(await find(rest, since=times[3] + 1, until=times[6])) == [4, 5]
    assert offsets(await find(rest, until=times[0])) == []
    assert offsets(await find(rest, since=times[9] + 1)) == []
    assert offsets(await find(rest, since=times[2], order="newest", limit=2)) == [9, 8]


@pytest.mark.parametrize("order", ["oldest", "newest"])
@pytest.mark.parametrize("query", [{}, {"key": "k0"}, {"where": "third = 0 OR n > 30"}])
@pytest.mark.parametrize("limit", [1, 3, 16, 1_000])
@looped
async def test_pages_hold_every_record_once(
    monkeypatch: pytest.MonkeyPatch, order: str, query: dict[str, str], limit: int
) -> None:
    monkeypatch.setattr(search, "STEP", 7)
    monkeypatch.setattr(search, "PIECE", 3)
    monkeypatch.setattr(search, "SCANNED_MAX", 14)
    async with serving() as rest:
        await fill(rest, 40)
        await rest.post("/logs/a/truncate", json={"before": 2})
        found = await all_pages(rest, **query, order=order, limit=limit)
        expected = [
            n
            for n in range(2, 40)
            if not query or ("key" in query and n % 2 == 0) or ("where" in query and _meant(n))
        ]
        assert found == (expected[::-1] if order == "newest" else expected)


def _meant(n: int) -> bool:
    return n % 3 == 0 or n > 30


@served
async def test_an_answer_holds_about_as_much_as_a_read(rest: Rest) -> None:
    rest.core.session.limits = rest.core.store.limits
    large = {"records": [{"value": "x" * 1_000_000} for _ in range(12)]}
    await rest.post("/logs/a/records", json=large)
    for order in ("oldest", "newest"):
        page = await find(rest, order=order)
        assert 4 <= len(page["records"]) < 12
        assert page["next"] is not None
    assert await all_pages(rest) == list(range(12))


@served
async def test_what_is_wrong_is_told(rest: Rest) -> None:
    problem(await rest.get("/logs/none/search"), 404, "NotFound")
    await fill(rest, 1)
    problem(await rest.get("/logs/a/search?where=("), 422, "InvalidFilter")
    problem(await rest.get("/logs/a/search?order=best"), 422, "InvalidInput")
    problem(await rest.get("/logs/a/search?limit=1001"), 422, "InvalidInput")


@served
async def test_records_are_found_by_whether_their_value_is_null(rest: Rest) -> None:
    records = [{"value": "x"}, {"value": None}, {"base64": None, "key": "k"}]
    await rest.post("/logs/users/records", json={"records": records})
    found = (await rest.get("/logs/users/search", params={"where": "_value IS NULL"})).json()
    assert [one["offset"] for one in found["records"]] == [2]
    found = (await rest.get("/logs/users/search", params={"where": "_value IS NOT NULL"})).json()
    assert [one["offset"] for one in found["records"]] == [0, 1]
    refused = await rest.get("/logs/users/search", params={"where": "_value = 'x'"})
    assert "whether it is null" in problem(refused, 422, "InvalidFilter")["detail"]
