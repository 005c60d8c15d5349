"""Schemas over REST: set, shown, checked and deleted; records that do not fit are refused."""

from __future__ import annotations

from typing import Any

from millstream.log.commands import SetSchema
from tests.unit.server.asking import Rest, problem, served

ORDER: dict[str, Any] = {
    "title": "Order",
    "type": "object",
    "properties": {"id": {"type": "integer"}},
    "required": ["id"],
}
WIDER = {**ORDER, "properties": {"id": {"type": "number"}, "note": {"type": "string"}}}
OTHER = {**ORDER, "properties": {"id": {"type": "string"}}}


@served
async def test_a_schema_is_set_shown_and_deleted(rest: Rest) -> None:
    problem(await rest.get("/logs/orders/schema"), 404, "NotFound")
    assert (await rest.get("/logs/orders/schemas")).json() == {"versions": []}
    shown = (await rest.put("/logs/orders/schema", json={"schema": ORDER})).json()
    assert (shown["version"], shown["start"], shown["mode"]) == (1, 0, "enforce")
    assert shown["schema"]["required"] == ["id"]
    assert shown["spark"] == "`id` BIGINT NOT NULL"
    assert (await rest.get("/logs/orders/schema")).json() == shown
    assert (await rest.delete("/logs/orders/schema")).json() == {"deleted": True}
    assert (await rest.delete("/logs/orders/schema")).json() == {"deleted": False}


@served
async def test_records_are_checked(rest: Rest) -> None:
    await rest.put("/logs/orders/schema", json={"schema": ORDER})
    refused = await rest.post("/logs/orders/records", json={"value": {"id": "x"}})
    problem(refused, 422, "InvalidInput")
    assert "expected integer at $.id" in refused.json()["detail"]
    assert (await rest.post("/logs/orders/records", json={"value": {"id": 1}})).is_success
    assert (await rest.get("/logs/orders")).json()["end_offset"] == 1


@served
async def test_versions_are_compared(rest: Rest) -> None:
    await rest.put("/logs/orders/schema", json={"schema": ORDER})
    check = await rest.post("/logs/orders/schema/check", json={"schema": WIDER})
    assert check.json() == {"compatible": True, "conflicts": []}
    check = await rest.post("/logs/orders/schema/check", json={"schema": OTHER})
    assert check.json() == {
        "compatible": False,
        "conflicts": ["$.id: integer cannot become text"],
    }
    problem(await rest.put("/logs/orders/schema", json={"schema": OTHER}), 422, "InvalidInput")
    forced = await rest.put("/logs/orders/schema", json={"schema": OTHER, "force": True})
    assert (forced.json()["version"], forced.json()["forced"]) == (2, True)
    versions = (await rest.get("/logs/orders/schemas")).json()["versions"]
    assert [each["version"] for each in versions] == [1, 2]


@served
async def test_hostile_schemas_are_refused(rest: Rest) -> None:
    for schema in ({}, "no JSON", {"type": "object", "pattern": "(a+)+"}, "[" * 50_000):
        answer = await rest.put("/logs/orders/schema", json={"schema": schema})
        problem(answer, 422, "InvalidInput")
    for body in ({}, {"schema": ORDER, "mode": "maybe"}, {"schema": ORDER, "more": 1}):
        assert (await rest.put("/logs/orders/schema", json=body)).status_code in (400, 422)
    assert (await rest.get("/logs/orders/schemas")).json() == {"versions": []}


def test_force_needs_admin() -> None:
    needs = {right.action for right in SetSchema.traits.needs if right.when}  # type: ignore[union-attr]
    assert needs == {"admin"}


@served
async def test_a_queue_has_a_schema(rest: Rest) -> None:
    problem(await rest.put("/queues/mail/schema", json={"schema": ORDER}), 404, "NotFound")
    await rest.put("/queues/mail", json={})
    problem(await rest.get("/queues/mail/schema"), 404, "NotFound")
    set_now = (await rest.put("/queues/mail/schema", json={"schema": ORDER})).json()
    assert (await rest.get("/queues/mail/schema")).json() == set_now
    refused = await rest.post("/queues/mail/messages", json={"value": {"id": "x"}})
    problem(refused, 422, "InvalidInput")
    check = await rest.post("/queues/mail/schema/check", json={"schema": OTHER})
    assert check.json()["conflicts"] == ["$.id: integer cannot become text"]
    assert (await rest.put("/queues/mail/schema", json={"schema": WIDER})).json()["version"] == 2
    versions = (await rest.get("/queues/mail/schemas")).json()["versions"]
    assert [each["version"] for each in versions] == [1, 2]
    assert (await rest.delete("/queues/mail/schema")).json() == {"deleted": True}
    assert (await rest.post("/queues/mail/messages", json={"value": "any"})).is_success
