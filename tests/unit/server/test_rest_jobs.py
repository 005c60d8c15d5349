"""Jobs over REST: lists, single jobs, results, cancel, retry and live output, by rights of their own."""

from __future__ import annotations

import asyncio
import contextlib
import json
from typing import Any

import pytest

from millstream.aio import stored_jobs
from millstream.jobs.key_limits import KEY_HEADER
from millstream.jobs.options import PRIORITY_HEADER
from millstream.server.auth.access import Principal
from millstream.server.auth.permission import parse_permissions
from millstream.server.core import Core
from millstream.server.rest.ask import Ask
from millstream.server.rest.job_stream import HEARTBEAT, events_of
from millstream.server.rest.jobs import on_jobs
from tests.unit.server.asking import AsSomebody, Rest, looped, problem, served, serving


async def put(rest: Rest, task: str, queue: str = "jobs", **arguments: Any) -> str:
    """Put a job as a program does, and return its id."""
    if (await rest.get(f"/queues/{queue}")).status_code == 404:
        spec = {"priority_by": PRIORITY_HEADER, "done_retention": 3600, "keep_payloads": True}
        await rest.put(f"/queues/{queue}", json=spec)
    body = {"value": arguments, "headers": {"task": task}}
    answer = await rest.post(f"/queues/{queue}/messages", json=body)
    return f"{queue}-{answer.json()['id']}"


async def end(rest: Rest, how: str, queue: str = "jobs", **more: Any) -> None:
    """Claim a job and end its attempt."""
    (message,) = (await rest.post(f"/queues/{queue}/claims", json={"n": 1})).json()["messages"]
    answer = await rest.post(f"/queues/{queue}/{how}", json={"claims": [message["claim"]], **more})
    assert answer.status_code == 200, answer.text


async def ids(rest: Rest, **query: Any) -> list[str]:
    answer = await rest.get("/jobs", params=query)
    assert answer.status_code == 200, answer.text
    return [job["id"] for job in answer.json()["jobs"]]


@served
async def test_jobs_are_listed_by_state_task_and_queue(rest: Rest) -> None:
    assert (await rest.get("/jobs")).json() == {"jobs": [], "next": None}
    first = await put(rest, "shop:mail", to="ada")
    second = await put(rest, "shop:bill", amount=12345678901234567890)
    third = await put(rest, "shop:mail", "slow", to="eve")
    await rest.put("/queues/plain")
    await rest.post("/queues/plain/messages", json={"value": 1})
    assert await ids(rest) == [second, first, third]  # newest first in each queue
    assert await ids(rest, task="shop:mail") == [first, third]
    assert await ids(rest, queue="slow") == [third]
    assert await ids(rest, queue="plain") == []
    assert await ids(rest, state="failed") == []
    await end(rest, "ack", result=1)
    await end(rest, "fail", reason="ValueError: no card\n  line 1")
    assert await ids(rest, state="done") == [first]
    (failed,) = (await rest.get("/jobs?state=failed")).json()["jobs"]
    assert (failed["task"], failed["attempts"]) == ("shop:bill", 1)
    assert failed["reason"] == "ValueError: no card"
    assert '"arguments":{"amount":12345678901234567890}' in (
        await rest.get("/jobs?state=failed")
    ).text.replace(" ", "")
    counts = (await rest.get("/jobs/tasks")).json()["tasks"]
    assert [(one["task"], one["queue"], one["waiting"], one["failed"]) for one in counts] == [
        ("shop:bill", "jobs", 0, 1),
        ("shop:mail", "jobs", 0, 0),
        ("shop:mail", "slow", 1, 0),
    ]


@served
async def test_a_list_goes_on_after_each_page_and_each_scan(rest: Rest) -> None:
    every = [await put(rest, f"t{n % 2}", "a" if n < 3 else "b", n=n) for n in range(6)]
    seen: list[str] = []
    after = None
    for _ in range(4):
        query = {"limit": 2} if after is None else {"limit": 2, "after": after}
        page = (await rest.get("/jobs", params=query)).json()
        seen += [job["id"] for job in page["jobs"]]
        after = page["next"]
        if after is None:
            break
    assert seen == [*every[2::-1], *every[:2:-1]]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(stored_jobs, "SCANNED_MAX", 2)
        page = (await rest.get("/jobs", params={"task": "t1"})).json()
        assert [job["id"] for job in page["jobs"]] == [every[1]]
        rest_of = await rest.get("/jobs", params={"task": "t1", "after": page["next"]})
        assert [job["id"] for job in rest_of.json()["jobs"]] == [every[5]]


@served
async def test_cancelled_jobs_are_listed_and_many_jobs_are_estimated(rest: Rest) -> None:
    for number in range(8):
        await put(rest, f"t{number % 2}")
    await rest.post("/jobs/jobs-7/cancel")
    assert await ids(rest, state="cancelled") == ["jobs-7"]
    counts = (await rest.get("/jobs/tasks")).json()["tasks"]
    facts = ("task", "waiting", "cancelled", "is_estimated")
    exact = [("t0", 4, 0, False), ("t1", 3, 1, False)]
    assert [tuple(one[fact] for fact in facts) for one in counts] == exact
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(stored_jobs, "COUNTED_MAX", 2)
        patch.setattr(stored_jobs, "PEEKED_MAX", 2)
        counts = (await rest.get("/jobs/tasks")).json()["tasks"]
    assert [(one["task"], one["waiting"], one["is_estimated"]) for one in counts] == [
        ("t0", 4, True),
        ("t1", 4, True),
    ]


@served
async def test_a_job_is_shown_with_attempts_error_and_result(rest: Rest) -> None:
    id = await put(rest, "shop:bill", amount=5)
    error = {"kind": "ValueError", "message": "no card", "trace": "line 1"}
    await end(rest, "nack", delay=0, reason="ValueError: no card", error=error)
    shown = (await rest.get(f"/jobs/{id}")).json()
    assert (shown["state"], shown["arguments"], shown["error"]) == ("waiting", {"amount": 5}, error)
    await end(rest, "ack", result={"paid": True})
    shown = (await rest.get(f"/jobs/{id}")).json()
    assert (shown["state"], shown["result"], shown["error"]) == ("done", {"paid": True}, None)
    assert [(one["outcome"], one["reason"]) for one in shown["tries"]] == [
        ("again", "ValueError: no card"),
        ("done", ""),
    ]
    assert shown["output"] is None
    result = await rest.get(f"/jobs/{id}/result")
    assert (result.status_code, result.json()) == (
        200,
        {"id": id, "state": "done", "result": {"paid": True}},
    )


@served
async def test_a_result_can_be_waited_for(rest: Rest) -> None:
    id = await put(rest, "t")
    early = await rest.get(f"/jobs/{id}/result")
    assert (early.status_code, early.json()) == (202, {"id": id, "state": "waiting"})
    waiting = asyncio.create_task(rest.get(f"/jobs/{id}/result?wait=50"))
    await end(rest, "fail", reason="KeyError: 'x'")
    answer = await waiting
    assert answer.status_code == 200
    assert (answer.json()["state"], answer.json()["error"]["message"]) == (
        "failed",
        "KeyError: 'x'",
    )


@served
async def test_jobs_are_cancelled_and_retried(rest: Rest) -> None:
    id = await put(rest, "t")
    for _ in range(2):
        answer = await rest.post(f"/jobs/{id}/cancel")
        shown = {"id": id, "cancelled": True, "requested": False, "state": "cancelled"}
        assert answer.json() == shown
    problem(await rest.post(f"/jobs/{id}/retry"), 409, "Conflict")
    failing = await put(rest, "t")
    await end(rest, "fail", reason="no")
    answer = await rest.post(f"/jobs/{failing}/retry")
    assert (answer.status_code, answer.json()["state"]) == (200, "waiting")
    await end(rest, "ack")
    found = problem(await rest.post(f"/jobs/{failing}/retry"), 409, "Conflict")
    assert (
        found["detail"] == f"job '{failing}' is done, not failed: only a failed job is tried again"
    )


@served
async def test_a_running_job_is_asked_to_end(rest: Rest) -> None:
    id = await put(rest, "t")
    (message,) = (await rest.post("/queues/jobs/claims", json={"n": 1})).json()["messages"]
    answer = (await rest.post(f"/jobs/{id}/cancel")).json()
    assert answer == {"id": id, "cancelled": False, "requested": True, "state": "running"}
    assert (await rest.get(f"/jobs/{id}")).json()["is_cancel_requested"] is True
    await rest.post("/queues/jobs/nack", json={"claims": [message["claim"]]})
    assert (await rest.get(f"/jobs/{id}/result")).json() == {"id": id, "state": "cancelled"}
    ended = (await rest.post(f"/jobs/{id}/cancel")).json()
    assert (ended["cancelled"], ended["state"]) == (True, "cancelled")


@served
async def test_bad_input_is_refused_in_words(rest: Rest) -> None:
    await put(rest, "t")
    await rest.put("/queues/plain")
    await rest.post("/queues/plain/messages", json={"value": 1})
    for id in ("jobs-7", "none-0", "plain-0"):
        for method, path in (
            ("GET", ""),
            ("GET", "/result"),
            ("POST", "/cancel"),
            ("GET", "/stream"),
        ):
            found = problem(await rest.request(method, f"/jobs/{id}{path}"), 404, "NotFound")
            assert f"there is no job '{id}'" in found["detail"]
        problem(await rest.post(f"/jobs/{id}/retry"), 404, "NotFound")
    problem(await rest.get("/jobs/none-0?wait=1"), 404, "NotFound")
    assert (await rest.get("/queues/plain/messages/0")).json()["state"] == "available"
    for id in ("jobs", "-1", "jobs-x", "jobs--", "jobs-99999999999999999999"):
        found = problem(await rest.get(f"/jobs/{id}"), 422, "InvalidInput")
        assert "the id of a job" in found["detail"]
    found = problem(await rest.get("/jobs?state=gone"), 422, "InvalidInput")
    assert "it is one of waiting, scheduled, running, done, failed, cancelled" in found["detail"]
    problem(await rest.get("/jobs?limit=0"), 422, "InvalidInput")
    problem(await rest.get("/jobs?after=x"), 422, "InvalidInput")
    problem(await rest.get("/jobs?queue=none"), 404, "NotFound")


@served
async def test_keys_get_limits_of_their_own(rest: Rest) -> None:
    assert (await rest.get("/jobs/limits")).json() == {"limits": []}
    spec = {"priority_by": PRIORITY_HEADER, "group_by": KEY_HEADER, "group_order": False}
    await rest.put("/queues/jobs.mail", json=spec)
    wish = {"queue": "jobs.mail", "key": "acme", "running": 10, "per_minute": 90}
    expected = {"limits": [{**wish, "per_minute": 90.0}]}
    assert (await rest.put("/jobs/limits", json=wish)).json() == expected
    assert (await rest.get("/jobs/limits")).json() == expected
    removed = await rest.put("/jobs/limits", json={"queue": "jobs.mail", "key": "acme"})
    assert removed.json() == {"limits": []}
    for wrong in ({"running": 0}, {"per_minute": 0}, {"runing": 1}, {"key": ""}, {"queue": ""}):
        answer = await rest.put("/jobs/limits", json={**wish, **wrong})
        assert answer.status_code == 422, wrong
    assert (await rest.put("/jobs/limits", json={**wish, "queue": "no"})).status_code == 404


@looped
async def test_jobs_have_rights_of_their_own() -> None:
    async with serving() as rest:
        id = await put(rest, "t")
        other = await put(rest, "t", "other")
        await end(rest, "fail", reason="no")
        somebody = rest.asked_by.app
        assert isinstance(somebody, AsSomebody)

        def become(*permissions: str) -> None:
            somebody.principal = Principal("somebody", parse_permissions(permissions))

        become("job:read:jobs")
        assert (await rest.get(f"/jobs/{id}")).status_code == 200
        assert await ids(rest, state="failed") == [id]
        assert await ids(rest) == []  # the jobs of the other queue are not seen
        problem(await rest.get(f"/jobs/{other}"), 403, "Denied")
        found = problem(await rest.post(f"/jobs/{id}/retry"), 403, "Denied")
        assert "it needs the permission job:write:jobs" in found["detail"]
        problem(await rest.get("/queues/jobs/messages"), 403, "Denied")
        become("queue:admin", "log:admin")
        for path in ("", "/result", "/stream"):
            problem(await rest.get(f"/jobs/{id}{path}"), 403, "Denied")
        problem(await rest.post(f"/jobs/{id}/cancel"), 403, "Denied")
        assert await ids(rest, state="failed") == []
        become("job:write:jobs")
        assert (await rest.post(f"/jobs/{id}/retry")).json()["state"] == "waiting"
        assert (await rest.post(f"/jobs/{id}/cancel")).json()["cancelled"] is True
        problem(await rest.post("/queues/jobs/purge"), 403, "Denied")


@looped
async def test_who_may_cancel_a_job_may_end_its_group_with_it() -> None:
    async with serving() as rest:
        part = {"log": "jobs.group.g", "index": 0, "size": 1}
        await put(rest, "t")
        await rest.put("/queues/jobs.chores")
        await rest.put("/logs/jobs.group.g")
        headers = {"task": "t", "job-part": json.dumps(part)}
        body = {"value": {}, "headers": headers}
        number = (await rest.post("/queues/jobs/messages", json=body)).json()["id"]
        somebody = rest.asked_by.app
        assert isinstance(somebody, AsSomebody)
        before = somebody.principal
        somebody.principal = Principal("somebody", parse_permissions(["job:write:jobs"]))
        answer = await rest.post(f"/jobs/jobs-{number}/cancel")
        assert answer.json()["cancelled"] is True
        somebody.principal = before
        (outcome,) = (await rest.get("/logs/jobs.group.g/records")).json()["records"]
        assert outcome["offset"] == 0


async def emit(rest: Rest, id: str, *chunks: Any) -> None:
    records = [{"value": chunk} for chunk in chunks]
    await rest.post(f"/logs/jobs.output.{id}/records", json={"records": records})


def asked(rest: Rest) -> Ask:
    core: Core = rest.core
    return on_jobs(Ask(core, {"type": "http", "headers": [], "state": {}}, ANYONE), "read")


ANYONE = Principal("local", parse_permissions(["*:admin"]))


@served
async def test_the_output_of_an_ended_job_is_read_later_and_resumed(rest: Rest) -> None:
    id = await put(rest, "t")
    await emit(rest, id, "Hello", {"n": [1, 2]})
    over = {"base64": "", "headers": {"job-end": "done"}}
    await rest.post(f"/logs/jobs.output.{id}/records", json=over)
    await end(rest, "ack")
    answer = await rest.get(f"/jobs/{id}/stream")
    assert answer.headers["content-type"].startswith("text/event-stream")
    last = 'event: end\ndata: {"state":"done"}\n\n'
    second = 'id: 1\ndata: {"n":[1,2]}\n\n'
    assert answer.text == f'id: 0\ndata: "Hello"\n\n{second}{last}'
    resumed = await rest.get(f"/jobs/{id}/stream", headers={"last-event-id": "0"})
    assert resumed.text == second + last
    assert (await rest.get(f"/jobs/{id}/stream?start=2")).text == last
    assert (await rest.get(f"/jobs/{id}")).json()["output"] == {
        "log": f"jobs.output.{id}",
        "start_offset": 0,
        "end_offset": 3,
    }


@served
async def test_output_is_followed_while_the_job_writes_it(rest: Rest) -> None:
    id = await put(rest, "t")
    events = events_of(asked(rest), id, 0)
    coming = asyncio.ensure_future(anext(events))
    await emit(rest, id, "one")
    assert await coming == b'id: 0\ndata: "one"\n\n'
    coming = asyncio.ensure_future(anext(events))
    await emit(rest, id, "two")
    assert await coming == b'id: 1\ndata: "two"\n\n'
    coming = asyncio.ensure_future(anext(events))
    await end(rest, "fail", reason="no")
    assert await coming == b'event: end\ndata: {"state":"failed"}\n\n'
    with pytest.raises(StopAsyncIteration):
        await anext(events)


@served
async def test_a_stream_ends_when_the_server_stops(rest: Rest) -> None:
    id = await put(rest, "t")
    events = events_of(asked(rest), id, 0)
    coming = asyncio.ensure_future(anext(events))
    await asyncio.sleep(0)
    rest.core.closing.set()
    with contextlib.suppress(StopAsyncIteration):
        assert await coming == HEARTBEAT
    with pytest.raises(StopAsyncIteration):
        await anext(events)
