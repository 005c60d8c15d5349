"""Transactions over REST: operations of every kind, all of them or none."""

from __future__ import annotations

from typing import Any

import pytest

from tests.unit.server.asking import Rest, looped, problem, served, serving
from tests.unit.server.test_rest_queues import claim


async def transact(rest: Rest, *operations: dict[str, Any]) -> Any:
    answer = await rest.post("/transactions", json={"operations": operations})
    assert answer.status_code == 200, answer.text
    return answer.json()["results"]


@served
async def test_every_operation_answers_in_its_place(rest: Rest) -> None:
    await rest.put("/queues/q", json={"priority_by": "p"})
    await rest.put("/logs/a/cursors/c")
    results = await transact(
        rest,
        {"op": "create_log", "log": "b"},
        {"op": "append", "log": "a", "value": {"x": 1}, "expect_end": 0},
        {"op": "append", "log": "a", "records": [{"value": 1}, {"value": 2}]},
        {"op": "cursor_ack", "log": "a", "cursor": "c", "offsets": [0]},
        {"op": "cursor_seek", "log": "a", "cursor": "c", "offset": 2},
        {"op": "set_metadata", "log": "a", "key": "k", "value": [1]},
        {"op": "truncate", "log": "a", "before": 1},
        {"op": "put", "queue": "q", "value": "m", "priority": 3},
        {"op": "put", "queue": "q", "messages": [{"value": "n"}]},
        {"op": "delete_log", "log": "b"},
    )
    assert results == [True, 0, 1, 1, 2, None, 1, 0, 1, True]
    claims = [one["claim"] for one in await claim(rest, n=2)]
    ended = await transact(
        rest,
        {"op": "ack", "queue": "q", "claims": claims[0]},
        {"op": "nack", "queue": "q", "claims": [claims[1]], "delay": 0},
        {"op": "append", "log": "out", "value": "done"},
    )
    assert ended == [None, None, 0]
    (again,) = await claim(rest)
    (until,) = await transact(
        rest, {"op": "renew", "queue": "q", "claims": again["claim"], "lease": 60}
    )
    assert until > again["until"]
    assert await transact(rest, {"op": "fail", "queue": "q", "claims": again["claim"]}) == [None]


@served
async def test_one_refusal_undoes_all(rest: Rest) -> None:
    await rest.put("/queues/q")
    operations = [
        {"op": "append", "log": "a", "value": 1},
        {"op": "ack", "queue": "q", "claims": "1000:1"},
    ]
    answer = await rest.post("/transactions", json={"operations": operations})
    problem(answer, 409, "LeaseLost")
    problem(await rest.get("/logs/a/records"), 404, "NotFound")


@pytest.mark.parametrize(
    "operations",
    [
        [],
        [{"op": "sql", "statement": "drop"}],
        [{"log": "a", "value": 1}],
        [{"op": "append", "log": "a"}],
        [{"op": "append", "log": "", "value": 1}],
        [{"op": "append", "log": "a", "records": []}],
        [{"op": "append", "log": "a", "value": 1, "queue": "q"}],
        [{"op": "truncate", "log": "a"}],
        [{"op": "ack", "queue": "q", "claims": "x"}],
        [{"op": "create_log", "log": "a"}] * 1_001,
    ],
    ids=lambda operations: str(operations)[:60],
)
@looped
async def test_what_is_no_transaction_is_refused(operations: list[Any]) -> None:
    async with serving() as rest:
        answer = await rest.post("/transactions", json={"operations": operations})
        assert answer.status_code == 422, answer.text
        assert (await rest.get("/logs")).json()["logs"] == []


@served
async def test_a_put_to_no_queue_is_not_found(rest: Rest) -> None:
    body = {"operations": [{"op": "put", "queue": "none", "value": 1}]}
    problem(await rest.post("/transactions", json=body), 404, "NotFound")
    problem(await rest.post("/transactions", json=late(body)), 404, "NotFound")


def late(body: dict[str, Any]) -> dict[str, Any]:
    return {"operations": [{**one, "delay": 5} for one in body["operations"]]}


@served
async def test_a_put_of_a_transaction_has_all_that_a_put_has(rest: Rest) -> None:
    spec = {"priority_by": "p", "group_by": "g", "group_in_flight": 0, "dedup_by": "d"}
    await rest.put("/queues/q", json=spec)
    producer = {"name": "p", "sequence": 0}
    results = await transact(
        rest,
        {"op": "put", "queue": "q", "value": 1, "priority": 3, "group": "a", "dedup": "x"},
        {"op": "put", "queue": "q", "messages": [{"value": 2, "dedup": "x"}, {"value": 3}]},
        {"op": "put", "queue": "q", "value": 4, "producer": producer},
        {"op": "put", "queue": "q", "value": 5, "priority": 9, "delay": 1000},
        {"op": "put", "queue": "q", "messages": [{"value": 6}], "at": "2090-01-01T00:00:00Z"},
    )
    assert len(results) == 5
    found = await claim(rest, n=9)
    assert [one["value"] for one in found] == [1, 3, 4]
    assert found[0]["headers"]["p"] == 3
    queue = (await rest.get("/queues/q")).json()
    assert (queue["delayed"], queue["duplicates"]) == (2, 1)


@pytest.mark.parametrize(
    "more",
    [
        {"priority": 10},
        {"delay": -1},
        {"at": "yesterday"},
        {"delay": 1, "at": 5},
        {"group": "a"},
    ],
    ids=str,
)
@looped
async def test_a_put_that_cannot_be_is_refused_with_all_else(more: dict[str, Any]) -> None:
    async with serving() as rest:
        await rest.put("/queues/q")
        operations = [
            {"op": "append", "log": "a", "value": 1},
            {"op": "put", "queue": "q", "value": 1, **more},
        ]
        answer = await rest.post("/transactions", json={"operations": operations})
        assert answer.status_code == 422, answer.text
        problem(await rest.get("/logs/a/records"), 404, "NotFound")


@served
async def test_a_transaction_sends_to_rooms(rest: Rest) -> None:
    await rest.put("/rooms/hall/settings", json={"retained": ["rect"]})
    results = await transact(
        rest,
        {"op": "send", "room": "hall", "type": "chat", "data": "hi", "user": "ann"},
        {"op": "send", "room": "hall", "type": "rect", "data": {"x": 1}, "key": "a"},
        {"op": "send", "room": "hall", "type": "rect", "key": "b", "deleted": True},
    )
    assert results == [0, 1, 2]
    found = (await rest.get("/rooms/hall/retained")).json()
    assert [one["data"] for one in found["retained"]] == [{"x": 1}]
