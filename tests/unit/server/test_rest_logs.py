"""Logs over REST: listing, metadata, retention, truncation; names of every kind."""

from __future__ import annotations

import httpx
import pytest

from millstream.log.commands import CreateLog
from millstream.server.auth.access import Principal
from millstream.server.auth.permission import Permission
from tests.unit.server.asking import Rest, looped, problem, served, serving


@served
async def test_a_log_is_made_described_listed_and_deleted(rest: Rest) -> None:
    made = await rest.put("/logs/orders")
    assert (made.status_code, made.json()["name"]) == (201, "orders")
    assert (await rest.put("/logs/orders")).status_code == 200
    assert (await rest.get("/logs/orders")).json()["end_offset"] == 0
    assert [log["name"] for log in (await rest.get("/logs")).json()["logs"]] == ["orders"]
    assert (await rest.delete("/logs/orders")).json() == {"deleted": True}
    assert (await rest.delete("/logs/orders")).json() == {"deleted": False}
    problem(await rest.get("/logs/orders"), 404, "NotFound")


@served
async def test_a_listing_goes_on_after_a_name(rest: Rest) -> None:
    for name in "abc":
        await rest.put(f"/logs/{name}")
    first = (await rest.get("/logs?limit=2")).json()
    assert ([log["name"] for log in first["logs"]], first["after"]) == (["a", "b"], "b")
    rest_of = (await rest.get("/logs?limit=2&after=b")).json()
    assert ([log["name"] for log in rest_of["logs"]], rest_of["after"]) == (["c"], None)
    problem(await rest.get("/logs?limit=0"), 422, "InvalidInput")
    problem(await rest.get("/logs?limit=1&limit=2"), 422, "InvalidInput")
    problem(await rest.get("/logs?colour=red"), 422, "InvalidInput")


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("a%2Fb", "a/b"),
        ("%C3%BCber%20alles", "über alles"),
        ("%F0%9F%8C%8A", "🌊"),
        ("%2E%2Ehidden", "..hidden"),
        ("100%25", "100%"),
        ("a+b", "a+b"),
        ("x%3Fy%23z", "x?y#z"),
    ],
)
@looped
async def test_names_in_paths_are_percent_encoded(path: str, name: str) -> None:
    async with serving() as rest:
        url = httpx.URL("http://here").copy_with(raw_path=f"/logs/{path}/records".encode())
        assert (await rest.post(url, json={"value": 1})).status_code == 201
        assert [log["name"] for log in (await rest.get("/logs")).json()["logs"]] == [name]


@pytest.mark.parametrize("path", ["%FF", "%00", "a%0Ab", "x" * 256])
@looped
async def test_what_is_no_name_is_refused(path: str) -> None:
    async with serving() as rest:
        problem(await rest.put(f"/logs/{path}"), 422, "InvalidName")


@served
async def test_truncation_forgets_the_front(rest: Rest) -> None:
    await rest.post("/logs/a/records", json={"records": [{"value": i} for i in range(5)]})
    assert (await rest.post("/logs/a/truncate", json={"before": 3})).json() == {"count": 3}
    assert (await rest.get("/logs/a")).json()["start_offset"] == 3
    problem(await rest.get("/logs/a/records?start=1"), 410, "Truncated")
    problem(await rest.get("/logs/a/records/1"), 410, "Truncated")
    problem(await rest.post("/logs/a/truncate", json={"before": -1}), 422, "InvalidInput")
    problem(await rest.post("/logs/a/truncate", json={}), 422, "InvalidInput")


@served
async def test_truncation_past_the_end_has_to_be_said(rest: Rest) -> None:
    await rest.post("/logs/a/records", json={"records": [{"value": i} for i in range(5)]})
    far = {"before": 2**63 - 1}
    told = problem(await rest.post("/logs/a/truncate", json=far), 416, "OutOfRange")
    assert told["data"] == {"position": 2**63 - 1, "end": 5}
    steps = {"operations": [{"op": "truncate", "log": "a", **far}]}
    problem(await rest.post("/transactions", json=steps), 416, "OutOfRange")
    answer = await rest.post("/logs/a/truncate", json={**far, "past_end": True})
    problem(answer, 422, "InvalidInput")
    assert (await rest.get("/logs/a")).json()["start_offset"] == 0
    said = {"before": 9, "past_end": True}
    assert (await rest.post("/logs/a/truncate", json=said)).json() == {"count": 5}
    assert (await rest.post("/logs/a/records", json={"value": 1})).json()["offset"] == 9


@served
async def test_metadata_is_set_compared_and_deleted(rest: Rest) -> None:
    assert (await rest.get("/logs/a/metadata")).json() == {}
    path = "/logs/a/metadata/owner"
    assert (await rest.put(path, json={"value": {"x": [1]}})).json() == {"owner": {"x": [1]}}
    refused = await rest.put(path, json={"value": 2, "expect": None})
    assert problem(refused, 409, "MetadataConflict")["data"]["key"] == "owner"
    same = await rest.put(path, json={"value": 2, "expect": {"x": [1]}})
    assert same.json() == {"owner": 2}
    assert (await rest.delete(path)).json() == {}
    problem(await rest.put(path, json={}), 422, "InvalidInput")
    big = await rest.put(path, json={"value": "x" * 100_000})
    assert problem(big, 413, "TooLarge")["data"]["limit"] == 65_536


@served
async def test_retention_is_set_and_enforced(rest: Rest) -> None:
    assert (await rest.get("/logs/a/retention")).json() == {}
    kept = await rest.put("/logs/a/retention", json={"age": 1.5, "count": 2})
    assert kept.json() == {"age": 1.5, "count": 2}
    assert (await rest.get("/logs/a/retention")).json() == {"age": 1.5, "count": 2}
    for number in range(5):
        await rest.post("/logs/a/records", json={"value": number})
    assert (await rest.post("/logs/a/retention/enforce")).json() == {"count": 3}
    problem(await rest.put("/logs/a/retention", json={"age": -1}), 422, "InvalidInput")
    problem(await rest.put("/logs/a/retention", json={"size": 1}), 422, "InvalidInput")


@served
async def test_stats_tell_of_the_store(rest: Rest) -> None:
    found = (await rest.get("/stats")).json()
    assert found["engine"] == "memory"
    assert "path" not in found


@served
async def test_a_method_that_is_not_there_is_told_with_those_that_are(rest: Rest) -> None:
    refused = await rest.patch("/logs/a")
    problem(refused, 405, "NotAllowed")
    assert refused.headers["allow"] == "DELETE, GET, HEAD, PUT"


@looped
async def test_who_may_only_read_is_denied_the_rest() -> None:
    reader = Principal("reader", (Permission("log", "read", "public*"),))
    async with serving(principal=reader) as rest:
        await rest.core.session.execute(CreateLog("public"))
        assert (await rest.get("/logs/public/records")).status_code == 200
        denied = problem(await rest.get("/logs/private/records"), 403, "Denied")
        assert denied["data"] == {"noun": "log", "action": "read", "name": "private"}
        problem(await rest.post("/logs/public/records", json={"value": 1}), 403, "Denied")
        problem(await rest.post("/staging/t/1", json={"records": [{"value": 1}]}), 403, "Denied")
        body = {"operations": [{"op": "append", "log": "public", "value": 1}]}
        problem(await rest.post("/transactions", json=body), 403, "Denied")


@served
async def test_a_logs_retention_is_told_in_seconds_wherever_it_is_told(rest: Rest) -> None:
    rules = {"age": 0.25, "consumed": True}
    await rest.put("/logs/a/retention", json=rules)
    assert (await rest.get("/logs/a")).json()["retention"] == rules
    assert (await rest.put("/logs/a")).json()["retention"] == rules
    (listed,) = (await rest.get("/logs")).json()["logs"]
    assert listed["retention"] == rules
    assert (await rest.put("/logs/a/retention", json=rules)).json() == rules
    await rest.put("/logs/a/retention", json={})
    assert (await rest.get("/logs/a")).json()["retention"] == {}
