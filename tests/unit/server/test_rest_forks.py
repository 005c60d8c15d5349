"""Forks and owners over REST."""

from __future__ import annotations

import httpx

from millstream.log.commands import CreateLog, ForkLog, ListLogs
from millstream.server.auth.access import Principal
from millstream.server.auth.permission import Permission, parse_permissions
from tests.unit.server.asking import AsSomebody, Rest, looped, problem, served, serving


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
        await session.execute(ForkLog("trial", "trial2"))
        assert (await rest.post("/logs/trial2/merge", json={})).status_code == 200


@looped
async def test_a_fork_is_made_only_by_a_token_that_can_delete_it() -> None:
    rights = (Permission("log", "write", "orders"), Permission("log", "admin", "trial*"))
    async with serving(principal=Principal("writer", rights)) as rest:
        assert (await rest.post("/logs/orders/records", json={"value": 1})).status_code == 201
        denied = problem(await rest.post("/logs/orders/fork", json={}), 403, "Denied")
        assert "log:admin:orders~fork-*" in denied["detail"]
        denied = problem(await rest.post("/logs/orders/fork", json={"name": "x"}), 403, "Denied")
        assert "log:admin:x" in denied["detail"]
        listed = await rest.core.session.execute(ListLogs("", 10))
        assert [info.name for info in listed] == ["orders"]
        made = await rest.post("/logs/orders/fork", json={"name": "trial"})
        assert made.status_code == 201
        assert (await rest.delete("/logs/trial")).json() == {"deleted": True}
    admin = Principal("admin", (Permission("log", "admin", "orders*"),))
    async with serving(principal=admin) as rest:
        await rest.post("/logs/orders/records", json={"value": 1})
        fork = (await rest.post("/logs/orders/fork", json={})).json()["fork"]
        assert (await rest.delete(f"/logs/{fork}")).json() == {"deleted": True}


@looped
async def test_a_merge_that_sets_aside_needs_the_right_to_delete_what_it_sets_aside() -> None:
    rights = (Permission("log", "write", "orders"), Permission("log", "write", "trial"))
    async with serving(principal=Principal("writer", rights)) as rest:
        session = rest.core.session
        await session.execute(CreateLog("orders"))
        await session.execute(ForkLog("orders", "trial"))
        for log, count in (("orders", 1), ("trial", 2)):
            await rest.post(f"/logs/{log}/records", json={"records": [{"value": log}] * count})
        body = {"on_fork": "longest"}
        denied = problem(await rest.post("/logs/trial/merge", json=body), 403, "Denied")
        assert "log:admin:orders~fork-*" in denied["detail"]
        rebased = await rest.post("/logs/trial/merge", json={"on_fork": "rebase"})
        assert rebased.status_code == 200


@served
async def test_forks_are_listed_with_what_they_come_from(rest: Rest) -> None:
    for log in ("a", "b"):
        await rest.post(f"/logs/{log}/records", json={"value": 1})
    await rest.post("/logs/a/fork", json={"name": "c"})
    await rest.post("/logs/c/fork", json={"name": "d"})
    await rest.post("/logs/d/records", json={"value": 2})
    page = (await rest.get("/forks")).json()
    found = [(one["name"], one["parent"], one["end_offset"]) for one in page["forks"]]
    assert (found, page["after"]) == ([("c", "a", 1), ("d", "c", 2)], None)
    page = (await rest.get("/forks?limit=3")).json()
    assert ([one["name"] for one in page["forks"]], page["after"]) == (["c"], "c")
    assert [one["name"] for one in (await rest.get("/forks?after=c")).json()["forks"]] == ["d"]


@looped
async def test_a_fork_does_not_tell_of_a_log_that_may_not_be_read() -> None:
    async with serving() as rest:
        await rest.post("/logs/secret/records", json={"value": 1})
        await rest.post("/logs/secret/fork", json={"name": "open"})
        reader = Principal("r", parse_permissions(["log:read:open"]))
        transport = httpx.ASGITransport(AsSomebody(rest.app, reader))
        async with httpx.AsyncClient(transport=transport, base_url="http://here") as other:
            (fork,) = (await other.get("/forks")).json()["forks"]
        assert (fork["name"], fork["parent"]) == ("open", None)
