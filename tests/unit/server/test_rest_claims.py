"""Claims over REST: leases, endings, one by one and in batches, waiting, popping."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest

from millstream.clock import SystemClock
from millstream.record import moment
from tests.unit.server.asking import EACH_WAY, Rest, each_way, looped, problem, served, serving
from tests.unit.server.test_rest_queues import claim

way = EACH_WAY(each_way)


async def with_messages(rest: Rest, count: int, **spec: Any) -> None:
    await rest.put("/queues/q", json=spec)
    messages = [{"value": i} for i in range(count)]
    await rest.post("/queues/q/messages", json={"messages": messages})


@served
async def test_a_claim_is_acknowledged_by_its_token(rest: Rest) -> None:
    await with_messages(rest, 2)
    (message,) = await claim(rest, lease=10, consumer="me")
    assert message["claim"] == f"{message['claim_id']}:1"
    assert isinstance(message["claim_id"], str)
    done = await rest.post("/queues/q/ack", json={"claims": message["claim"]})
    assert done.json() == {"count": 1, "lost": []}
    again = await rest.post("/queues/q/ack", json={"claims": [message["claim"]]})
    assert again.json() == {"count": 1, "lost": []}
    tried = await rest.get(f"/queues/q/messages/{message['claim_id']}/attempts")
    assert [(one["consumer"], one["outcome"]) for one in tried.json()["attempts"]] == [
        ("me", "done")
    ]
    problem(await rest.get("/queues/q/messages/x/attempts"), 422, "InvalidInput")
    problem(await rest.get("/queues/none/messages/1/attempts"), 404, "NotFound")


@served
async def test_a_claim_acknowledges_those_before_in_one_commit(rest: Rest) -> None:
    await with_messages(rest, 4)
    before = [one["claim"] for one in await claim(rest, n=2)]
    found = await claim(rest, n=2, ack=before)
    assert [one["value"] for one in found] == [2, 3]
    assert (await rest.get("/queues/q")).json()["done"] == 2


@served
async def test_results_and_errors_are_shown_with_their_messages(rest: Rest) -> None:
    await with_messages(rest, 5, max_attempts=1)
    as_json, raw, first, second, bad = await claim(rest, n=5)
    body: dict[str, Any] = {"claims": as_json["claim"], "result": {"total": 3}}
    assert (await rest.post("/queues/q/ack", json=body)).json() == {"count": 1, "lost": []}
    body = {"claims": raw["claim"], "result_base64": "/w=="}
    assert (await rest.post("/queues/q/ack", json=body)).status_code == 200
    body = {"claims": bad["claim"], "error": {"type": "ValueError"}}
    assert (await rest.post("/queues/q/nack", json=body)).status_code == 200
    body = {
        "n": 1,
        "ack": [first["claim"], second["claim"]],
        "results": {second["claim"]: "Mg=="},
    }
    assert (await rest.post("/queues/q/claims", json=body)).status_code == 200
    fates = [(await rest.get(f"/queues/q/messages/{id}")).json() for id in range(5)]
    assert [fate["state"] for fate in fates] == ["done"] * 4 + ["failed"]
    assert [fate.get("result") for fate in fates] == [{"total": 3}, None, None, 2, None]
    assert fates[1]["result_base64"] == "/w=="
    assert fates[4]["error"] == {"type": "ValueError"}


@served
async def test_a_result_of_several_claims_is_refused(rest: Rest) -> None:
    await with_messages(rest, 2)
    tokens = [message["claim"] for message in await claim(rest, n=2)]
    body: dict[str, Any] = {"claims": tokens, "result": 1}
    problem(await rest.post("/queues/q/ack", json=body), 422, "InvalidInput")
    body = {"claims": tokens[:1], "result": 1, "result_base64": "MQ=="}
    problem(await rest.post("/queues/q/ack", json=body), 422, "InvalidInput")
    operation = {"op": "ack", "queue": "q", "claims": tokens[0], "result": 1}
    body = {"operations": [operation]}
    assert (await rest.post("/transactions", json=body)).json() == {"results": [None]}
    assert (await rest.get("/queues/q/messages/0")).json()["result"] == 1


@served
async def test_who_comes_late_is_told_which_claims_are_lost(rest: Rest) -> None:
    await with_messages(rest, 2)
    late = [one["claim"] for one in await claim(rest, n=2, lease=1)]
    rest.clock.advance(2)
    answer = await rest.post("/queues/q/ack", json={"claims": late})
    assert problem(answer, 409, "LeaseLost")["data"]["lost"] == late
    good = [one["claim"] for one in await claim(rest, n=1)]
    each = await rest.post("/queues/q/ack", json={"claims": late + good, "each": True})
    assert each.json() == {"count": 1, "lost": late}
    renewed = await rest.post("/queues/q/renew", json={"claims": late, "each": True})
    assert renewed.json() == {"until": None, "lost": late}
    problem(await rest.post("/queues/q/renew", json={"claims": late}), 409, "LeaseLost")


def time_at(rest: Rest, seconds: int) -> str:
    """A moment from now, as JSON tells it."""
    told: str = msgspec.json.decode(
        msgspec.json.encode(moment(rest.clock.wall_ms() + seconds * 1000))
    )
    return told


@served
async def test_leases_are_renewed(rest: Rest) -> None:
    await with_messages(rest, 2)
    claims = [one["claim"] for one in await claim(rest, n=2, lease=5)]
    rest.clock.advance(4)
    until = (await rest.post("/queues/q/renew", json={"claims": claims, "lease": 5})).json()
    rest.clock.advance(4)
    each = await rest.post("/queues/q/renew", json={"claims": claims, "lease": 9, "each": True})
    assert each.json()["until"] == time_at(rest, 9)
    assert until["until"] == time_at(rest, 1)
    assert each.json()["lost"] == []
    assert (await rest.post("/queues/q/ack", json={"claims": claims})).status_code == 200


@served
async def test_a_nack_comes_again_and_a_fail_does_not(rest: Rest) -> None:
    await with_messages(rest, 2)
    first, second = [one["claim"] for one in await claim(rest, n=2)]
    await rest.post("/queues/q/nack", json={"claims": first, "delay": 0, "reason": "not now"})
    await rest.post("/queues/q/fail", json={"claims": [second], "reason": "never"})
    (again,) = await claim(rest, n=5)
    assert again["attempt"] == 2
    failed = (await rest.get("/queues/q/messages?state=failed")).json()["messages"]
    assert [one["reason"] for one in failed] == ["never"]


@served
async def test_popping_claims_and_acknowledges(rest: Rest) -> None:
    await with_messages(rest, 3)
    popped = (await rest.post("/queues/q/pop", json={"n": 2})).json()["messages"]
    assert [one["value"] for one in popped] == [0, 1]
    assert len((await rest.post("/queues/q/pop")).json()["messages"]) == 1
    assert (await rest.get("/queues/q")).json()["done"] == 3
    problem(await rest.post("/queues/none/pop"), 404, "NotFound")


@looped
async def test_a_claim_waits_and_is_woken() -> None:
    async with serving(clock=SystemClock()) as rest:
        await rest.put("/queues/q")
        claiming = asyncio.create_task(claim(rest, wait=30))
        popping = asyncio.create_task(rest.post("/queues/q/pop", json={"wait": 30}))
        await asyncio.sleep(0)
        await rest.post("/queues/q/messages", json={"messages": [{"value": 1}, {"value": 2}]})
        assert len(await claiming) == 1
        assert len((await popping).json()["messages"]) == 1


@looped
async def test_a_waiting_claim_ends_when_the_server_stops() -> None:
    async with serving(clock=SystemClock()) as rest:
        await rest.put("/queues/q")
        claiming = asyncio.create_task(claim(rest, wait=30))
        await asyncio.sleep(0)
        rest.core.closing.set()
        assert await claiming == []


@looped
async def test_a_waiting_claim_ends_when_its_client_leaves() -> None:
    async with serving(clock=SystemClock()) as rest:
        await rest.put("/queues/q")
        sent: list[dict[str, Any]] = []
        inbox = [
            {"type": "http.request", "body": b'{"wait": 30}', "more_body": False},
            {"type": "http.disconnect"},
        ]

        async def receive() -> dict[str, Any]:
            return inbox.pop(0)

        async def send(message: Any) -> None:
            sent.append(message)

        from millstream.server.auth.access import ANYONE_HERE

        scope = {
            "type": "http",
            "method": "POST",
            "path": "/queues/q/claims",
            "raw_path": b"/queues/q/claims",
            "query_string": b"",
            "headers": [(b"content-type", b"application/json")],
            "state": {"principal": ANYONE_HERE},
        }
        await rest.app(scope, receive, send)  # type: ignore[arg-type]
        await rest.post("/queues/q/messages", json={"value": 1})
        assert len(await claim(rest, wait=10)) == 1, "nobody holds it who is gone"


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("claims", {"n": 0}),
        ("claims", {"n": 10_001}),
        ("claims", {"lease": 0}),
        ("claims", {"lease": "long"}),
        ("claims", {"wait": -1}),
        ("claims", {"consumer": "x" * 200}),
        ("claims", {"ack": ["1"]}),
        ("pop", {"n": 0}),
        ("ack", {}),
        ("ack", {"claims": "1"}),
        ("ack", {"claims": "99999999999999999999:1"}),
        ("ack", {"claims": "9223372036854775807:1"}),
        ("ack", {"claims": ["1:0"]}),
        ("ack", {"claims": 5}),
        ("ack", {"claims": ["1:1"], "reason": "x"}),
        ("ack", {"claims": ["1:1"] * 10_001}),
        ("nack", {"claims": ["1:1"], "delay": -1}),
        ("nack", {"claims": ["1:1"], "delay": 1e12}),
        ("fail", {"claims": ["1:1"], "delay": 1}),
        ("renew", {"claims": ["1:1"], "lease": -1}),
    ],
    ids=str,
)
@looped
async def test_what_is_no_claim_is_refused(path: str, body: dict[str, Any]) -> None:
    async with serving() as rest:
        await with_messages(rest, 1)
        problem(await rest.post(f"/queues/q/{path}", json=body), 422, "InvalidInput")


@pytest.mark.parametrize("path", ["claims", "ack", "nack", "fail", "renew"])
@looped
async def test_claims_on_no_queue_are_not_found(path: str) -> None:
    async with serving() as rest:
        body = {} if path == "claims" else {"claims": "1:1"}
        problem(await rest.post(f"/queues/q/{path}", json=body), 404, "NotFound")


@served
async def test_a_running_message_is_asked_to_stop_and_shows_its_progress(rest: Rest) -> None:
    await with_messages(rest, 2)
    (message,) = await claim(rest)
    body: dict[str, Any] = {"claims": message["claim"], "progress": 0.5}
    assert (await rest.post("/queues/q/progress", json=body)).json()["count"] == 1
    plain = await rest.post("/queues/q/messages/0/cancel")
    assert plain.json() == {"cancelled": False}
    asked = await rest.post("/queues/q/messages/0/cancel", json={"running": True})
    assert asked.json() == {"cancelled": False, "requested": True}
    fate = (await rest.get("/queues/q/messages/0")).json()
    assert (fate["state"], fate["progress"], fate["is_cancel_requested"]) == (
        *("in_flight", 0.5),
        True,
    )
    operations = [
        {"op": "nack", "queue": "q", "claims": message["claim"], "error": "stopped"},
        {"op": "cancel", "queue": "q", "id": 1},
    ]
    done = await rest.post("/transactions", json={"operations": operations})
    assert done.json() == {"results": [None, True]}
    fate = (await rest.get("/queues/q/messages/0")).json()
    assert (fate["state"], fate["error"]) == ("cancelled", "stopped")
