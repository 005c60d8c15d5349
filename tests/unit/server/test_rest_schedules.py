"""Schedules over REST, and the rights that they need."""

from __future__ import annotations

import pytest

from millstream.engine.memory.engine import MemoryEngine
from millstream.server.auth.access import Principal
from millstream.server.auth.permission import parse_permissions
from tests.unit.server.asking import Rest, looped, problem, served, serving

NIGHTLY = {"task": "shop:report", "every": "30 1 * * *", "tz": "Europe/Lisbon"}


@served
async def test_a_schedule_from_its_put_to_its_end(rest: Rest) -> None:
    await rest.put("/queues/jobs")
    made = await rest.put("/schedules/nightly", json={**NIGHTLY, "arguments": {"day": 1}})
    assert made.status_code == 201, made.text
    assert (await rest.put("/schedules/nightly", json=NIGHTLY)).status_code == 200
    (listed,) = (await rest.get("/schedules?upcoming=2")).json()["schedules"]
    assert (listed["name"], listed["arguments"], len(listed["upcoming"])) == ("nightly", {}, 2)
    assert (await rest.post("/schedules/nightly/pause")).json()["paused"]
    assert not (await rest.post("/schedules/nightly/resume")).json()["paused"]
    assert (await rest.post("/schedules/nightly/trigger")).json() == {"job": "jobs-0"}
    assert (await rest.get("/schedules/nightly")).json()["every"] == "30 1 * * *"
    assert (await rest.delete("/schedules/nightly")).json() == {"deleted": True}
    assert (await rest.delete("/schedules/nightly")).json() == {"deleted": False}
    problem(await rest.post("/schedules/nightly/pause"), 404, "NotFound")


@served
async def test_wrong_schedules_are_refused_and_nothing_is_stored(rest: Rest) -> None:
    for wrong, says in [
        ({"every": "99 1 * * *"}, "no cron expression"),
        ({"tz": "Mars/Olympus"}, "no time zone"),
        ({"start": "2020-01-01T00:00:00Z"}, "in the past"),
        ({"every": 0.5}, "from 1 second"),
        ({"task": ""}, "name of a task"),
    ]:
        answer = await rest.put("/schedules/x", json={**NIGHTLY, **wrong})
        assert answer.status_code == 422, answer.text
        assert says in answer.json()["detail"]
    assert (await rest.get("/schedules")).json() == {"schedules": []}


@pytest.mark.parametrize(
    ("rights", "allowed"),
    [
        ("job:read:jobs.schedules", {"list"}),
        ("job:write:jobs.schedules", {"list", "pause"}),
        ("job:write:jobs.schedules job:write:jobs", {"list", "pause", "trigger"}),
        ("job:write:jobs", set()),
        ("queue:write:jobs.schedules queue:put:jobs", {"put"}),
        ("queue:admin:jobs", set()),
    ],
)
@looped
async def test_rights_on_jobs_decide_and_a_put_needs_rights_on_queues(
    rights: str, allowed: set[str]
) -> None:
    engine = MemoryEngine()
    async with serving(engine=engine) as rest:
        await rest.put("/queues/jobs")
        await rest.put("/schedules/nightly", json=NIGHTLY)
    somebody = Principal("somebody", parse_permissions(rights.split()))
    async with serving(engine=engine.reopen(), principal=somebody) as rest:
        statuses = {
            "list": (await rest.get("/schedules")).status_code,
            "pause": (await rest.post("/schedules/nightly/pause")).status_code,
            "trigger": (await rest.post("/schedules/nightly/trigger")).status_code,
            "put": (await rest.put("/schedules/more", json=NIGHTLY)).status_code,
        }
    assert {call for call, status in statuses.items() if status < 300} == allowed, statuses
    assert {status for call, status in statuses.items() if call not in allowed} <= {403}
