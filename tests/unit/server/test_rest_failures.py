"""Failed messages by reason, the retry of a group, and the consumers of a queue, over REST."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from millstream.server.auth.access import Principal
from millstream.server.auth.permission import parse_permissions
from millstream.server.rest import failures
from tests.unit.server.asking import AsSomebody, Rest, looped, problem, served, serving


async def fail(rest: Rest, reason: str, count: int = 1) -> None:
    """Let messages of the queue `q` fail, in their first attempt."""
    values = [{"value": n} for n in range(count)]
    await rest.post("/queues/q/messages", json={"messages": values})
    claimed = (await rest.post("/queues/q/claims", json={"n": count})).json()["messages"]
    claims = [message["claim"] for message in claimed]
    await rest.post("/queues/q/fail", json={"claims": claims, "reason": reason})


async def groups(rest: Rest) -> list[tuple[str, int]]:
    found = (await rest.get("/queues/q/failures")).json()["groups"]
    return [(group["reason"], group["count"]) for group in found]


@served
async def test_failed_messages_are_counted_by_the_first_line_of_their_reason(rest: Rest) -> None:
    await rest.put("/queues/q")
    assert (await rest.get("/queues/q/failures")).json() == {
        "groups": [],
        "scanned": 0,
        "next": None,
    }
    rest.clock.advance(60)
    await fail(rest, "no such customer")
    await fail(rest, "KeyError: 'card'\n  File \"a.py\", line 1, in charge", 3)
    rest.clock.advance(60)
    await fail(rest, "KeyError: 'card'\n  File \"b.py\", line 2, in refund")
    await fail(rest, "")
    assert await groups(rest) == [("KeyError: 'card'", 4), ("", 1), ("no such customer", 1)]
    largest = (await rest.get("/queues/q/failures")).json()["groups"][0]
    assert largest["first"] < largest["last"]
    problem(await rest.get("/queues/none/failures"), 404, "NotFound")


@served
async def test_a_group_is_retried_and_the_other_groups_stay(rest: Rest) -> None:
    await rest.put("/queues/q")
    await fail(rest, "busy", 3)
    await fail(rest, "wrong", 2)
    body = {"reason": "busy"}
    dry = await rest.post("/queues/q/failures/retry", json={**body, "dry_run": True})
    assert dry.json() == {"count": 3, "scanned": 5, "next": None}
    assert await groups(rest) == [("busy", 3), ("wrong", 2)]
    assert (await rest.post("/queues/q/failures/retry", json=body)).json()["count"] == 3
    assert await groups(rest) == [("wrong", 2)]
    assert (await rest.get("/queues/q")).json()["available"] == 3
    assert (await rest.post("/queues/q/failures/retry", json=body)).json()["count"] == 0


@looped
async def test_a_scan_ends_at_its_bound_and_goes_on_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(failures, "SCANNED_MAX", 4)
    monkeypatch.setattr(failures, "PAGE", 2)
    async with serving() as rest:
        await rest.put("/queues/q")
        for _ in range(3):
            await fail(rest, "odd")
            await fail(rest, "even")
        first = (await rest.get("/queues/q/failures")).json()
        assert (first["scanned"], [group["count"] for group in first["groups"]]) == (4, [2, 2])
        rest_of_it = (await rest.get(f"/queues/q/failures?after={first['next']}")).json()
        assert (rest_of_it["scanned"], rest_of_it["next"]) == (2, None)
        count, after = 0, None
        while True:
            body = {"reason": "odd", "after": after}
            answer = (await rest.post("/queues/q/failures/retry", json=body)).json()
            count += answer["count"]
            if answer["next"] is None:
                break
            after = answer["next"]
        assert count == 3
        assert (await rest.get("/queues/q")).json()["failed"] == 3


@looped
async def test_a_reader_sees_groups_and_retries_none() -> None:
    reader = Principal("r", parse_permissions(["queue:read"]))
    async with serving() as rest:
        await rest.put("/queues/q")
        await fail(rest, "busy")
        transport = httpx.ASGITransport(AsSomebody(rest.app, reader))
        async with httpx.AsyncClient(transport=transport, base_url="http://here") as other:
            assert (await other.get("/queues/q/failures")).json()["scanned"] == 1
            for is_dry in (True, False):
                body = {"reason": "busy", "dry_run": is_dry}
                problem(await other.post("/queues/q/failures/retry", json=body), 403, "Denied")


async def consumers(rest: Rest) -> dict[str, Any]:
    found: dict[str, Any] = (await rest.get("/queues/q/consumers")).json()
    return found


@served
async def test_the_consumers_of_a_queue_are_listed_with_what_they_hold(rest: Rest) -> None:
    await rest.put("/queues/q")
    assert await consumers(rest) == {"consumers": [], "is_complete": True}
    await rest.post("/queues/q/messages", json={"messages": [{"value": n} for n in range(6)]})
    await rest.post("/queues/q/claims", json={"n": 1, "consumer": "ann", "lease": 60})
    rest.clock.advance(5)
    await rest.post("/queues/q/claims", json={"n": 2, "consumer": "ann", "lease": 20})
    await rest.post("/queues/q/claims", json={"n": 1, "consumer": "bob", "lease": 60})
    ann, bob = (await consumers(rest))["consumers"]
    assert (ann["consumer"], ann["messages"]) == ("ann", 3)
    assert (bob["consumer"], bob["messages"]) == ("bob", 1)
    assert ann["since"] < bob["since"] < ann["until"] < bob["until"]
    problem(await rest.get("/queues/none/consumers"), 404, "NotFound")
