"""Cursors over REST: open, take, acknowledge, seek."""

from __future__ import annotations

import asyncio

from millstream.clock import SystemClock
from tests.unit.server.asking import Rest, looped, problem, served, serving

CURSOR = "/logs/a/cursors/c"


async def append(rest: Rest, count: int) -> None:
    await rest.post("/logs/a/records", json={"records": [{"value": i} for i in range(count)]})


@served
async def test_a_cursor_is_opened_listed_and_deleted(rest: Rest) -> None:
    await append(rest, 3)
    problem(await rest.get(CURSOR), 404, "NotFound")
    made = await rest.put(CURSOR, json={"start": 1})
    assert (made.status_code, made.json()["floor"], made.json()["durable"]) == (201, 1, True)
    assert (await rest.put(CURSOR)).status_code == 200
    assert (await rest.get(CURSOR)).json()["lag"] == 2
    listed = (await rest.get("/logs/a/cursors")).json()["cursors"]
    assert [cursor["name"] for cursor in listed] == ["c"]
    assert (await rest.delete(CURSOR)).json() == {"deleted": True}
    assert (await rest.delete(CURSOR)).json() == {"deleted": False}
    problem(await rest.put(CURSOR, json={"start": 9}), 416, "OutOfRange")
    problem(await rest.put(CURSOR, json={"start": "middle"}), 416, "OutOfRange")
    problem(await rest.put(CURSOR, json={"section": 0}), 422, "InvalidInput")


@served
async def test_a_take_goes_on_at_its_position_and_leaves_out_what_is_done(rest: Rest) -> None:
    await append(rest, 6)
    await rest.put(CURSOR)
    first = (await rest.post(f"{CURSOR}/take", json={"n": 2})).json()
    assert ([one["value"] for one in first["records"]], first["position"]) == ([0, 1], 2)
    answer = await rest.post(f"{CURSOR}/ack", json={"offsets": [0], "ranges": [[3, 5]]})
    assert answer.json() == {"floor": 1}
    again = (await rest.post(f"{CURSOR}/take", json={"n": 10})).json()
    assert [one["value"] for one in again["records"]] == [1, 2, 5]
    onwards = await rest.post(f"{CURSOR}/take", json={"n": 10, "position": 2})
    assert [one["value"] for one in onwards.json()["records"]] == [2, 5]
    assert (await rest.post(f"{CURSOR}/ack", json={"up_to": 6})).json() == {"floor": 6}
    assert (await rest.post(f"{CURSOR}/take")).json() == {"records": [], "position": 6}


@served
async def test_what_was_truncated_is_passed_over(rest: Rest) -> None:
    await append(rest, 4)
    await rest.put(CURSOR)
    await rest.post("/logs/a/truncate", json={"before": 2})
    taken = (await rest.post(f"{CURSOR}/take", json={"n": 9})).json()
    assert [one["value"] for one in taken["records"]] == [2, 3]
    assert taken["lost"] == [[0, 2]]
    info = (await rest.get(CURSOR)).json()
    assert (info["lost"], info["lost_ranges"]) == (2, [[0, 2]])
    strict = await rest.post(f"{CURSOR}/take", json={"on_loss": "raise"})
    assert problem(strict, 410, "RecordsLost")["data"]["ranges"] == [[0, 2]]
    onwards = {"position": 3, "on_loss": "raise"}
    assert "lost" not in (await rest.post(f"{CURSOR}/take", json=onwards)).json()
    await rest.post(f"{CURSOR}/ack", json={"lost": [[0, 2]]})
    assert (await rest.get(CURSOR)).json()["lost"] == 2
    assert "lost" not in (await rest.post(f"{CURSOR}/take", json={"on_loss": "raise"})).json()


@served
async def test_seeking_sets_the_floor(rest: Rest) -> None:
    await append(rest, 4)
    await rest.put(CURSOR, json={"start": "latest"})
    assert (await rest.post(f"{CURSOR}/seek", json={"offset": 1})).json() == {"floor": 1}
    problem(await rest.post(f"{CURSOR}/seek", json={"offset": 5}), 416, "OutOfRange")
    problem(await rest.post(f"{CURSOR}/seek", json={}), 422, "InvalidInput")
    both = {"offset": 1, "since": 5}
    problem(await rest.post(f"{CURSOR}/seek", json=both), 422, "InvalidInput")


@served
async def test_cursors_start_at_a_time_and_move_to_one(rest: Rest) -> None:
    records = [{"value": n, "timestamp": 1_000 * n} for n in range(5)]
    await rest.post("/logs/a/records", json={"records": records})
    made = await rest.put(CURSOR, json={"since": 1_500})
    assert made.json()["floor"] == 2
    moved = await rest.post(f"{CURSOR}/seek", json={"since": "1970-01-01T00:00:03Z"})
    assert moved.json() == {"floor": 3}
    naive = {"since": "1970-01-01T00:00:03"}
    problem(await rest.post(f"{CURSOR}/seek", json=naive), 422, "InvalidInput")
    both = {"since": 5, "start": 1}
    problem(await rest.put("/logs/a/cursors/d", json=both), 422, "InvalidInput")


@served
async def test_bad_acknowledgements_are_refused(rest: Rest) -> None:
    await append(rest, 2)
    problem(await rest.post(f"{CURSOR}/ack", json={"offsets": [0]}), 404, "NotFound")
    problem(await rest.post(f"{CURSOR}/take", json={}), 404, "NotFound")
    await rest.put(CURSOR)
    problem(await rest.post(f"{CURSOR}/ack", json={"offsets": [2]}), 416, "OutOfRange")
    problem(await rest.post(f"{CURSOR}/ack", json={"ranges": [[1, 1]]}), 422, "InvalidInput")
    problem(await rest.post(f"{CURSOR}/ack", json={}), 422, "InvalidInput")
    assert (await rest.post(f"{CURSOR}/ack", json={"up_to": 0})).json() == {"floor": 0}


@looped
async def test_a_take_waits_for_the_next_record() -> None:
    async with serving(clock=SystemClock()) as rest:
        await rest.put(CURSOR)
        taking = asyncio.create_task(rest.post(f"{CURSOR}/take", json={"wait": 30}))
        await asyncio.sleep(0)
        await append(rest, 1)
        assert [one["value"] for one in (await taking).json()["records"]] == [0]
