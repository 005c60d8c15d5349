"""Logs with partitions over REST: made, appended to by key, read by partition."""

from __future__ import annotations

from millstream.partitioning import key_partition
from tests.unit.server.asking import Rest, problem, served


@served
async def test_a_log_is_made_once_with_its_partitions(rest: Rest) -> None:
    made = await rest.put("/logs/orders?partitions=4")
    assert (made.status_code, made.json()["partitions"]) == (201, 4)
    assert (await rest.put("/logs/orders?partitions=4")).status_code == 200
    assert (await rest.put("/logs/orders")).json()["partitions"] == 4
    refused = await rest.put("/logs/orders?partitions=5")
    assert problem(refused, 409, "Partitioned")["data"]["partitions"] == 4
    assert (await rest.put("/logs/orders?partitions=6&grows=true")).json()["partitions"] == 6
    for wrong in ("0", "1025", "x"):
        assert (await rest.put(f"/logs/orders?partitions={wrong}")).status_code == 422
    parts = (await rest.get("/logs/orders/partitions")).json()
    assert [one["name"] for one in parts] == [f"orders-partition-{number}" for number in range(6)]
    await rest.put("/logs/plain")
    assert (await rest.get("/logs/plain/partitions")).json() == []
    assert (await rest.get("/logs/none/partitions")).status_code == 404


@served
async def test_records_are_spread_by_their_keys(rest: Rest) -> None:
    await rest.put("/logs/orders?partitions=4")
    records = [{"value": number, "key": f"k{number % 7}"} for number in range(30)]
    answer = await rest.post("/logs/orders/records", json={"records": records})
    assert (answer.status_code, answer.json()["count"]) == (201, 30)
    places = answer.json()["places"]
    for record, place in zip(records, places, strict=True):
        number = key_partition(str(record["key"]).encode(), 4)
        assert place["partition"] == number
        query = f"partition={number}&start={place['offset']}&limit=1"
        found = (await rest.get(f"/logs/orders/records?{query}")).json()["records"]
        assert (found[0]["value"], found[0]["key"]) == (record["value"], record["key"])
    one = (await rest.post("/logs/orders/records", json={"value": 1, "key": "k1"})).json()
    assert one["places"] == [{"partition": key_partition(b"k1", 4), "offset": one["offset"]}]
    raw = await rest.post("/logs/orders/records", content=b"x", headers={"Millstream-Key": "k1"})
    assert raw.json()["places"][0]["offset"] == one["offset"] + 1
    assert (await rest.get("/logs/orders")).json()["end_offset"] == 32


@served
async def test_what_is_about_one_log_names_a_partition(rest: Rest) -> None:
    await rest.put("/logs/orders?partitions=2")
    for body in (
        {"value": 1, "expect_end": 0},
        {"value": 1, "producer": {"name": "p", "sequence": 0}},
    ):
        answer = await rest.post("/logs/orders/records", json=body)
        assert "has 2 partitions" in problem(answer, 409, "Partitioned")["detail"]
        named = await rest.post("/logs/orders-partition-1/records", json=body)
        assert named.status_code == 201
    assert (await rest.get("/logs/orders/records")).status_code == 409
    missing = await rest.get("/logs/orders/records?partition=5")
    assert "has no partition 5" in problem(missing, 404, "NotFound")["detail"]
    assert (await rest.delete("/logs/orders")).json() == {"deleted": True}
    assert (await rest.get("/logs/orders")).status_code == 404


@served
async def test_lists_show_the_log_and_its_partitions_on_request(rest: Rest) -> None:
    await rest.put("/logs/orders?partitions=3")
    await rest.put("/logs/plain")
    records = [{"value": number, "key": str(number)} for number in range(20)]
    await rest.post("/logs/orders/records", json={"records": records})
    whole, plain = (await rest.get("/logs")).json()["logs"]
    assert (whole["name"], whole["partitions"], whole["end_offset"]) == ("orders", 3, 20)
    assert (plain["name"], plain["partitions"]) == ("plain", 0)
    page = (await rest.get("/logs?limit=1")).json()
    assert ([one["name"] for one in page["logs"]], page["after"]) == (["orders"], "orders")
    page = (await rest.get("/logs?limit=1&after=orders")).json()
    assert [one["name"] for one in page["logs"]] == ["plain"]
    parts = (await rest.get("/logs?partitions=true")).json()["logs"]
    names = [f"orders-partition-{number}" for number in range(3)]
    assert [one["name"] for one in parts] == [*names, "plain"]
    assert sum(one["end_offset"] for one in parts) == 20
    assert [one["name"] for one in (await rest.get("/forks")).json()["forks"]] == []
    metrics = (await rest.get("/metrics")).text
    assert 'millstream_log_end_offset_total{log="orders"} 20.0' in metrics
    assert "orders-partition-" not in metrics


@served
async def test_a_fork_of_a_partition_is_listed(rest: Rest) -> None:
    await rest.put("/logs/orders?partitions=2")
    await rest.post("/logs/orders-partition-1/fork", json={"name": "trial"})
    (fork,) = (await rest.get("/forks")).json()["forks"]
    assert (fork["name"], fork["parent"]) == ("trial", "orders-partition-1")
