"""Queues over REST: specs, messages in, looking after them."""

from __future__ import annotations

import asyncio
import base64
from typing import Any

import httpx
import pytest

from millstream.queue.model.backoff import Backoff
from millstream.queue.model.spec import QueueSpec
from millstream.server.auth.access import Principal
from millstream.server.auth.permission import parse_permissions
from tests.unit.queue.test_spec import SETTINGS
from tests.unit.server.asking import (
    EACH_WAY,
    AsSomebody,
    Rest,
    each_way,
    looped,
    problem,
    served,
    serving,
)

way = EACH_WAY(each_way)


async def claim(rest: Rest, **body: Any) -> list[dict[str, Any]]:
    answer = await rest.post("/queues/q/claims", json=body)
    assert answer.status_code == 200, answer.text
    found: list[dict[str, Any]] = answer.json()["messages"]
    return found


@served
async def test_a_queue_is_specified_altered_and_deleted(rest: Rest) -> None:
    problem(await rest.get("/queues/q"), 404, "NotFound")
    spec = {"sources": ["orders"], "max_attempts": 3, "backoff": {"kind": "fixed", "first": 7}}
    made = await rest.put("/queues/q", json=spec)
    assert made.status_code == 201
    whole = made.json()["spec"]
    assert whole | spec == whole | {"backoff": spec["backoff"]}
    assert (await rest.put("/queues/q", json=spec)).status_code == 200
    other = await rest.put("/queues/q", json={**spec, "max_attempts": 4})
    assert (other.status_code, other.json()["spec"]["max_attempts"]) == (200, 4)
    short = (await rest.put("/queues/q", json={"max_attempts": 3})).json()["spec"]
    assert (short["max_attempts"], short["sources"]) == (3, [])  # the rest: its default
    assert (await rest.put("/queues/q", json=spec)).json()["spec"] == whole
    told = problem(await rest.put("/queues/q", json={"start": "earliest"}), 409, "Conflict")
    assert told["data"]["fields"] == {"start": ["latest", "earliest"]}
    altered = (await rest.patch("/queues/q", json={"lease": 5})).json()["spec"]
    assert (altered["lease"], altered["max_attempts"]) == (5, 3)
    assert [one["name"] for one in (await rest.get("/queues")).json()["queues"]] == ["q"]
    assert (await rest.delete("/queues/q")).json() == {"deleted": True}
    problem(await rest.patch("/queues/q", json={}), 404, "NotFound")


@served
async def test_a_spec_has_the_names_and_units_that_it_has_in_python(rest: Rest) -> None:
    made = (await rest.put("/queues/q", json=SETTINGS)).json()["spec"]
    assert made | SETTINGS == made | {"backoff": SETTINGS["backoff"]}
    assert made["backoff"]["waits"] == SETTINGS["backoff"]
    for backoff in (2, [1, 2], {"kind": "fixed", "first": 2, "jitter": 0}):
        altered = await rest.patch("/queues/q", json={"backoff": backoff})
        assert altered.status_code == 200, altered.text
    long = await rest.patch("/queues/q", json={"lease": 24 * 3600})
    assert long.json()["spec"]["lease_max"] == 24 * 3600


@pytest.mark.parametrize(
    ("spec", "named"),
    [
        ({"lease": "x"}, "lease"),
        ({"leese": 3}, "leese"),
        ({"lease_ms": 3}, "lease_ms"),
        ({"lease": 0}, "lease is from"),
        ({"lease": None}, "lease"),
        ({"backoff": "5s"}, "backoff"),
        ({"backoff": [1, -1]}, "backoff"),
        ({"max_attempts": 0}, "max_attempts"),
        ({"delay": 1e12}, "delay"),
    ],
    ids=str,
)
@looped
async def test_a_wrong_setting_is_told_by_its_name(spec: dict[str, Any], named: str) -> None:
    async with serving() as rest:
        await rest.put("/queues/old")
        for answer in (
            await rest.put("/queues/new", json=spec),
            await rest.patch("/queues/old", json=spec),
        ):
            assert answer.status_code == 422, answer.text
            assert named in answer.json()["detail"]


@served
async def test_a_put_needs_its_queue(rest: Rest) -> None:
    bodies: list[dict[str, Any]] = [{"value": 1}, {"messages": []}, {"value": 1, "delay": 5}]
    for body in bodies:
        told = problem(await rest.post("/queues/q/messages", json=body), 404, "NotFound")
        assert "create_queue" in told["detail"]
    problem(await rest.post("/logs/queue:q/records", json={"value": 1}), 404, "NotFound")
    step = {"op": "append", "log": "queue:q", "value": 1}
    problem(await rest.post("/transactions", json={"operations": [step]}), 404, "NotFound")


@served
async def test_a_claim_of_a_deleted_queue_does_nothing_to_one_of_its_name(rest: Rest) -> None:
    tokens = []
    for _ in range(2):
        await rest.put("/queues/q", json={})
        await rest.post("/queues/q/messages", json={"value": 1})
        (one,) = await claim(rest)
        tokens.append(one["claim"])
        if len(tokens) == 1:
            await rest.delete("/queues/q")
    assert tokens[0] != tokens[1]
    lost = await rest.post("/queues/q/ack", json={"claims": [tokens[0]]})
    problem(lost, 409, "LeaseLost")
    assert (await rest.get("/queues/q")).json()["in_flight"] == 1


@served
async def test_a_bad_filter_is_told_by_line_and_column(rest: Rest) -> None:
    answer = await rest.put("/queues/q", json={"filter": "colour = 'red' AND\n AND"})
    data = problem(answer, 422, "InvalidFilter")["data"]
    assert (data["line"], data["column"]) == (2, 2)
    problem(await rest.get("/queues/q"), 404, "NotFound")


@pytest.mark.parametrize(
    "spec",
    [
        {"max_attempts": 0},
        {"max_attempts": "many"},
        {"colour": "red"},
        {"backoff": {"colour": "red"}},
        {"start": "middle"},
        {"start_ms": 2**80},
        {"sources": [""]},
        {"lease": 10**15},
    ],
    ids=str,
)
@looped
async def test_a_bad_spec_is_refused(spec: dict[str, Any]) -> None:
    async with serving() as rest:
        answer = await rest.put("/queues/q", json=spec)
        assert answer.status_code == 422, answer.text
        assert answer.json()["title"].startswith("Invalid")


@served
async def test_a_spec_may_be_left_out(rest: Rest) -> None:
    assert (await rest.put("/queues/q")).status_code == 201
    assert (await rest.put("/queues/q")).status_code == 200


@served
async def test_messages_are_put_one_by_one_in_batches_and_raw(rest: Rest) -> None:
    await rest.put("/queues/q")
    one = await rest.post("/queues/q/messages", json={"value": 1, "headers": {"h": 1}})
    assert (one.status_code, one.json()) == (201, {"id": 0, "count": 1})
    many = {"messages": [{"value": 2}, {"base64": "/w==", "key": "k"}]}
    assert (await rest.post("/queues/q/messages", json=many)).json() == {"id": 1, "count": 2}
    await rest.post("/queues/q/messages", content=b"raw", headers={"content-type": "x/y"})
    found = await claim(rest, n=10)
    assert [one.get("value") for one in found[:2]] == [1, 2]
    assert (found[2]["base64"], found[2]["key"]) == ("/w==", "k")
    assert base64.b64decode(found[3]["base64"]) == b"raw"
    assert found[3]["headers"] == {"content-type": "x/y"}
    assert (await rest.post("/queues/q/messages", json={"messages": []})).json()["count"] == 0


@served
async def test_a_message_is_cancelled_and_awaited_by_its_id(rest: Rest) -> None:
    await rest.put("/queues/q")
    ids = [(await rest.post("/queues/q/messages", json={"value": n})).json()["id"] for n in (0, 1)]
    later = (await rest.post("/queues/q/messages", json={"value": 2, "delay": 60})).json()["id"]
    (shown,) = (await rest.get("/queues/q/messages?state=delayed")).json()["messages"]
    assert (shown["id"], shown["value"]) == (later, 2)
    assert shown["until"] == (await rest.get(f"/queues/q/messages/{later}")).json()["until"]
    for id in (later, ids[0], ids[0]):
        cancelled = await rest.post(f"/queues/q/messages/{id}/cancel")
        assert (cancelled.status_code, cancelled.json()) == (200, {"cancelled": True})
    assert (await rest.get("/queues/q")).json()["cancelled"] == 2
    (held,) = await claim(rest, n=9)
    assert (held["id"], held["value"]) == (ids[1], 1)
    refused = await rest.post(f"/queues/q/messages/{ids[1]}/cancel")
    assert refused.json() == {"cancelled": False}
    waiting = asyncio.create_task(rest.get(f"/queues/q/messages/{ids[1]}?wait=60"))
    await rest.post("/queues/q/ack", json={"claims": held["claim"]})
    assert (await waiting).json()["state"] == "done"
    problem(await rest.get("/queues/q/messages/99?wait=1"), 404, "NotFound")
    assert (await rest.get("/queues/q/messages/99")).json()["state"] == "unknown"
    problem(await rest.post("/queues/other/messages/0/cancel"), 404, "NotFound")


@served
async def test_a_put_with_detail_reports_a_repeat(rest: Rest) -> None:
    await rest.put("/queues/q", json={"dedup_by": "d", "dedup_while": "waiting"})
    body = {"value": 1, "dedup": "x", "detail": True}
    first = (await rest.post("/queues/q/messages", json=body)).json()
    assert first == {"id": 0, "count": 1, "repeated": False}
    again = (await rest.post("/queues/q/messages", json=body)).json()
    assert again == {"id": 0, "count": 0, "repeated": True}
    raw = await rest.post("/queues/q/messages?dedup=x&detail=true", content=b"raw")
    assert raw.json()["repeated"] is True
    two = {"messages": [{"value": 1}, {"value": 2}], "detail": True}
    problem(await rest.post("/queues/q/messages", json=two), 422, "InvalidInput")
    steps = {"operations": [{"op": "put", "queue": "q", **body}]}
    problem(await rest.post("/transactions", json=steps), 422, "InvalidInput")


@served
async def test_a_put_to_no_queue_is_not_found(rest: Rest) -> None:
    problem(await rest.post("/queues/q/messages", json={"value": 1}), 404, "NotFound")
    assert (await rest.get("/logs")).json()["logs"] == []


@served
async def test_priorities_groups_and_repeats_go_where_the_spec_looks(rest: Rest) -> None:
    spec = {"priority_by": "p", "group_by": "g", "dedup_by": "d", "group_in_flight": 0}
    await rest.put("/queues/q", json=spec)
    body = {
        "messages": [
            {"value": "low", "priority": 1, "group": "a", "dedup": "1"},
            {"value": "again", "priority": 1, "group": "a", "dedup": "1"},
            {"value": "high", "priority": 9, "group": "b", "dedup": "2"},
        ]
    }
    assert (await rest.post("/queues/q/messages", json=body)).status_code == 201
    await rest.post("/queues/q/messages?priority=5&group=c&dedup=3", content=b"mid")
    found = await claim(rest, n=10)
    assert [one["headers"]["p"] for one in found] == [9, 5, 1]
    assert [one["headers"]["g"] for one in found] == ["b", "c", "a"]


@served
async def test_wishes_that_the_spec_does_not_know_are_refused(rest: Rest) -> None:
    await rest.put("/queues/q")
    for body in (
        {"value": 1, "priority": 3},
        {"value": 1, "priority": 11},
        {"value": 1, "group": "a"},
        {"value": 1, "delay": 1, "at": 5},
        {"value": 1, "delay": -1},
        {"value": 1, "delay": 1e11},
        {"value": 1, "at": "2030-01-01T00:00:00"},
        {"value": 1, "messages": []},
    ):
        problem(await rest.post("/queues/q/messages", json=body), 422, "InvalidInput")
    both = await rest.post("/queues/q/messages?delay=1", json={"value": 1})
    problem(both, 422, "InvalidInput")


@served
async def test_a_repeat_of_a_message_for_later_is_stored_once(rest: Rest) -> None:
    await rest.put("/queues/q")
    body = {"value": 1, "delay": 1, "producer": {"name": "p", "sequence": 0}}
    answers = [await rest.post("/queues/q/messages", json=body) for _ in range(2)]
    assert answers[0].json()["id"] == answers[1].json()["id"]
    assert (await rest.get("/queues/q")).json()["delayed"] == 1


@served
async def test_messages_for_later_wait_for_their_time(rest: Rest) -> None:
    await rest.put("/queues/q")
    await rest.post("/queues/q/messages", json={"value": "soon", "delay": 10})
    at = {"value": "later", "at": "2023-11-14T22:13:40Z"}  # twenty seconds after the clock began
    await rest.post("/queues/q/messages", json=at)
    assert await claim(rest, n=10) == []
    assert (await rest.get("/queues/q")).json()["delayed"] == 2
    rest.clock.advance(10)
    assert [one["value"] for one in await claim(rest, n=10)] == ["soon"]
    rest.clock.advance(10)
    assert [one["value"] for one in await claim(rest, n=10)] == ["later"]


@served
async def test_a_paused_queue_gives_nothing_out(rest: Rest) -> None:
    await rest.put("/queues/q")
    await rest.post("/queues/q/messages", json={"value": 1})
    assert (await rest.post("/queues/q/pause")).json()["paused"] is True
    assert await claim(rest) == []
    assert (await rest.post("/queues/q/resume")).json()["paused"] is False
    assert len(await claim(rest)) == 1
    problem(await rest.post("/queues/none/pause"), 404, "NotFound")
    problem(await rest.post("/queues/none/resume"), 404, "NotFound")


@served
async def test_messages_are_looked_at_page_by_page(rest: Rest) -> None:
    await rest.put("/queues/q")
    await rest.post("/queues/q/messages", json={"messages": [{"value": i} for i in range(5)]})
    page = (await rest.get("/queues/q/messages?limit=2")).json()["messages"]
    assert [one["value"] for one in page] == [0, 1]
    after = page[-1]["claim_id"]
    page = (await rest.get(f"/queues/q/messages?after={after}")).json()["messages"]
    assert [one["value"] for one in page] == [2, 3, 4]
    await claim(rest, n=2)
    flying = (await rest.get("/queues/q/messages?state=in_flight")).json()["messages"]
    assert [one["value"] for one in flying] == [0, 1]
    problem(await rest.get("/queues/q/messages?state=lost"), 422, "InvalidInput")
    problem(await rest.get("/queues/none/messages"), 404, "NotFound")


@served
async def test_failed_messages_are_redriven_and_purged(rest: Rest) -> None:
    await rest.put("/queues/q")
    for colour in ("red", "red", "blue"):
        await rest.post("/queues/q/messages", json={"value": 1, "headers": {"colour": colour}})
    claims = [one["claim"] for one in await claim(rest, n=3)]
    await rest.post("/queues/q/fail", json={"claims": claims, "reason": "no"})
    where = {"where": "colour = 'red'"}
    dry = await rest.post("/queues/q/redrive", json={**where, "dry_run": True})
    assert dry.json() == {"count": 2}
    assert (await rest.post("/queues/q/redrive", json={**where, "limit": 1})).json()["count"] == 1
    assert (await rest.post("/queues/q/purge", json={"state": "failed"})).json() == {"count": 2}
    assert (await rest.post("/queues/q/purge")).json() == {"count": 1}
    problem(await rest.post("/queues/q/redrive", json={"where": "("}), 422, "InvalidFilter")
    problem(await rest.post("/queues/q/redrive", json={"rate": 0}), 422, "InvalidInput")
    problem(await rest.post("/queues/q/purge", json={"state": "done"}), 422, "InvalidInput")
    problem(await rest.post("/queues/none/redrive"), 404, "NotFound")
    problem(await rest.post("/queues/none/purge"), 404, "NotFound")


@served
async def test_a_queue_shows_its_whole_spec(rest: Rest) -> None:
    made = (await rest.put("/queues/q", json={"sources": ["orders"]})).json()["spec"]
    assert set(made) == set(QueueSpec.__struct_fields__)
    assert set(made["backoff"]) == set(Backoff.__struct_fields__)
    assert (made["sources"], made["max_attempts"], made["filter"]) == (["orders"], 5, "")
    (listed,) = (await rest.get("/queues")).json()["queues"]
    paused = (await rest.post("/queues/q/pause")).json()
    assert (await rest.get("/queues/q")).json()["spec"] == listed["spec"] == paused["spec"] == made
    again = await rest.put("/queues/q", json=made)
    assert (again.status_code, again.json()["spec"]) == (200, made)
    altered = (await rest.patch("/queues/q", json={"max_attempts": 2})).json()["spec"]
    assert altered == {**made, "max_attempts": 2}


@served
async def test_a_message_is_asked_for_by_the_id_that_putting_answered(rest: Rest) -> None:
    await rest.put("/queues/q")
    ids = []
    for body in (
        {"value": 1},
        {"messages": [{"value": 2}, {"value": 3}]},
        {"value": 4, "delay": 60},
    ):
        answer = (await rest.post("/queues/q/messages", json=body)).json()
        ids += [answer["id"] + n for n in range(answer["count"])]
    (first,) = await claim(rest)
    await rest.post("/queues/q/fail", json={"claims": first["claim"], "reason": "no"})
    found = [(await rest.get(f"/queues/q/messages/{id}")).json() for id in ids]
    assert [one["state"] for one in found] == ["failed", "available", "available", "delayed"]
    assert (found[0]["reason"], found[0]["attempts"]) == ("no", 1)
    assert (await rest.get("/queues/q/messages/99")).json()["state"] == "unknown"
    problem(await rest.get("/queues/none/messages/0"), 404, "NotFound")
    assert (await rest.get("/queues/q/messages/x")).status_code == 422


async def fail_some(rest: Rest, count: int) -> list[str]:
    """Make messages fail; their claim ids."""
    await rest.put("/queues/q")
    await rest.post("/queues/q/messages", json={"messages": [{"value": n} for n in range(count)]})
    messages = await claim(rest, n=count, consumer="ann")
    claims = [one["claim"] for one in messages]
    await rest.post("/queues/q/fail", json={"claims": claims, "reason": "no"})
    return [one["claim_id"] for one in messages]


@served
async def test_messages_are_redriven_by_their_claim_ids(rest: Rest) -> None:
    first, second, third = await fail_some(rest, 3)
    chosen = {"claims": [first, third, first, "17"]}
    dry = await rest.post("/queues/q/redrive", json={**chosen, "dry_run": True})
    assert dry.json() == {"count": 2}
    assert (await rest.get("/queues/q")).json()["failed"] == 3
    assert (await rest.post("/queues/q/redrive", json=chosen)).json() == {"count": 2}
    assert (await rest.post("/queues/q/redrive", json=chosen)).json() == {"count": 0}
    left = (await rest.get("/queues/q/messages?state=failed")).json()["messages"]
    assert [one["claim_id"] for one in left] == [second]
    for wrong in ({"claims": ["x"]}, {"claims": [first], "where": "a = 1"}, {"claims": [7]}):
        problem(await rest.post("/queues/q/redrive", json=wrong), 422, "InvalidInput")


@served
async def test_a_failed_message_is_replaced_by_an_edited_one(rest: Rest) -> None:
    (failed,) = await fail_some(rest, 1)
    path = f"/queues/q/messages/{failed}/replace"
    body = {"value": {"fixed": True}, "key": "k", "headers": {"a": 1}}
    assert (await rest.post(path, json={**body, "dry_run": True})).json() == {"id": None}
    assert (await rest.get("/queues/q")).json()["failed"] == 1
    problem(await rest.post(path, json={"headers": {"a": 1}}), 422, "InvalidInput")
    id = (await rest.post(path, json=body)).json()["id"]
    assert (await rest.get(f"/queues/q/messages/{id}")).json()["state"] == "available"
    (message,) = await claim(rest)
    assert (message["value"], message["key"], message["headers"]["a"]) == ({"fixed": True}, "k", 1)
    for dry_run in (True, False):
        told = await rest.post(path, json={**body, "dry_run": dry_run})
        assert "not failed" in problem(told, 409, "Conflict")["detail"]


@served
async def test_a_peek_shows_who_works_on_what(rest: Rest) -> None:
    await fail_some(rest, 2)
    peek = "/queues/q/messages?state=failed"
    plain = (await rest.get(peek)).json()["messages"]
    assert all("attempts" not in one for one in plain)
    first, _ = (await rest.get(f"{peek}&attempts=true")).json()["messages"]
    assert [(one["consumer"], one["reason"]) for one in first["attempts"]] == [("ann", "no")]
    await rest.post("/queues/q/redrive", json={})
    await claim(rest, consumer="bob")
    (flying,) = (await rest.get("/queues/q/messages?state=in_flight&attempts=true")).json()[
        "messages"
    ]
    assert [one["consumer"] for one in flying["attempts"]] == ["ann", "bob"]
    assert flying["until"]


@looped
async def test_a_dry_run_needs_the_rights_of_the_real_one() -> None:
    reader = Principal("r", parse_permissions(["queue:read"]))
    async with serving() as rest:
        (failed,) = await fail_some(rest, 1)
        for command, body in (
            ("redrive", {"claims": [failed], "dry_run": True}),
            (f"messages/{failed}/replace", {"value": 1, "dry_run": True}),
        ):
            transport = httpx.ASGITransport(AsSomebody(rest.app, reader))
            async with httpx.AsyncClient(transport=transport, base_url="http://here") as other:
                problem(await other.post(f"/queues/q/{command}", json=body), 403, "Denied")
