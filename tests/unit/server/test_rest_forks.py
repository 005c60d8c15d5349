"""Forks and owners over REST."""

from __future__ import annotations

from millstream.log.commands import CreateLog, ForkLog
from millstream.server.access import Permission, Principal
from tests.unit.server.asking import Rest, looped, problem, served, serving


@served
async def test_a_log_is_forked_and_merged(rest: Rest) -> None:
    await rest.post("/logs/orders/records", json={"records": [{"value": 0}]})
    made = await rest.post("/logs/orders/fork", json={"name": "trial"})
    assert (made.status_code, made.json()) == (201, {"fork": "trial"})
    await rest.post("/logs/trial/records", json={"records": [{"value": 1}]})
    merged = await rest.post("/logs/trial/merge", json={})
    assert merged.json() == {
        "parent": "orders",
        "adopted": 1,
        "start": 0,
        "end": 2,
        "set_aside": None,
    }
    await rest.post("/logs/trial/records", json={"records": [{"value": 2}]})
    await rest.post("/logs/orders/records", json={"records": [{"value": 3}]})
    refused = await rest.post("/logs/trial/merge", json={})
    assert problem(refused, 409, "ForkDetected")["data"]["offset"] == 2
    again = await rest.post("/logs/trial/merge", json={"on_fork": "rebase"})
    assert again.json()["end"] == 4


@served
async def test_what_is_refused(rest: Rest) -> None:
    await rest.put("/logs/orders")
    for path, body, status in (
        ("/logs/nowhere/fork", {}, 404),
        ("/logs/orders/fork", {"name": "orders"}, 409),
        ("/logs/orders/fork", {"name": ""}, 422),
        ("/logs/orders/fork", {"nome": "x"}, 422),
        ("/logs/orders/merge", {}, 422),
        ("/logs/orders/merge", {"on_fork": "force"}, 422),
    ):
        answer = await rest.post(path, json=body)
        assert answer.status_code == status, (path, body, answer.text)
    assert (await rest.get("/logs/nowhere/owner")).status_code == 404


@served
async def test_the_owner_is_shown_and_changed(rest: Rest) -> None:
    await rest.put("/logs/orders")
    here = (await rest.get("/logs/orders/owner")).json()
    assert (here["epoch"], here["here"]) == (0, True)
    there = await rest.put("/logs/orders/owner", json={"store": "elsewhere"})
    assert there.json() == {"store": "elsewhere", "epoch": 1, "here": False}
    refused = await rest.post("/logs/orders/records", json={"records": [{"value": 0}]})
    assert problem(refused, 409, "NotOwner")["data"]["owner"] == "elsewhere"
    back = await rest.put("/logs/orders/owner", json={"store": None})
    assert back.json() == {**here, "epoch": 2}


@looped
async def test_whoever_merges_may_write_to_both_logs() -> None:
    """A right on the fork alone does not reach what it was forked from."""
    writer = Principal("writer", (Permission("log", "write", "trial*"),))
    async with serving(principal=writer) as rest:
        session = rest.core.session
        await session.execute(CreateLog("orders"))
        await session.execute(ForkLog("orders", "trial"))
        assert (await rest.post("/logs/trial/records", json={"value": 1})).status_code == 201
        denied = problem(await rest.post("/logs/trial/merge", json={}), 403, "Denied")
        assert denied["data"]["name"] == "orders"
        problem(await rest.post("/logs/trial/fork", json={"name": "other"}), 403, "Denied")
        made = await rest.post("/logs/trial/fork", json={"name": "trial2"})
        assert made.status_code == 201
        assert (await rest.post("/logs/trial2/merge", json={})).status_code == 200
