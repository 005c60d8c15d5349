"""Logs with partitions on the command line: made, appended to, read and listed as one."""

from __future__ import annotations

from typing import Any

import millstream
from millstream.partitioning import key_partition


def test_a_log_is_made_once_with_its_partitions(cli: Any) -> None:
    made = cli.json("log", "create", "orders", "--partitions", "4")
    assert made == {"log": "orders", "partitions": 4, "records": 0}
    assert "4 partitions" in cli("log", "create", "orders", "--partitions", "4")
    assert "has 4 partitions, not 5" in cli.error("log", "create", "orders", "--partitions", "5")
    assert cli.json("log", "create", "orders", "--partitions", "6", "--grow")["partitions"] == 6
    assert cli.json("log", "create", "orders")["partitions"] == 6
    assert cli.json("log", "create", "plain") == {"log": "plain", "partitions": 0, "records": 0}
    cli("log", "create", "orders", "--grow", code=2)
    assert "--grow needs --partitions" in cli.stderr


def test_records_are_spread_by_their_keys_and_read_as_one(cli: Any) -> None:
    cli("log", "create", "orders", "--partitions", "4")
    for key in ("a", "b", "c"):
        number = key_partition(key.encode(), 4)
        with millstream.open("millstream.db") as ms:
            first = ms.log("orders", partitions=4).partition(number).end_offset()
        assert cli("append", "orders", key, "x", "--key", key) == f"{number}:{first}-{first + 1}\n"
    appended = cli.json("append", "orders", "y", "z", "--key", "a")
    assert (appended["count"], appended["ranges"][0][0]) == (2, key_partition(b"a", 4))
    lines = [line.split("\t") for line in cli("read", "orders").splitlines()]
    assert sorted(line[3] for line in lines) == ["a", "b", "c", "x", "x", "x", "y", "z"]
    assert all(int(line[0].split(":")[0]) == key_partition(line[2].encode(), 4) for line in lines)
    assert len(cli("read", "orders", "--limit", "3").splitlines()) == 3
    assert cli("read", "orders", "--from", "latest") == ""
    assert len(cli("log", "tail", "orders", "--from", "earliest", "--limit", "8").splitlines()) == 8
    assert len(cli("read", "orders", "--since", "1h").splitlines()) == 8
    one = f"orders-partition-{key_partition(b'a', 4)}"
    assert len(cli("read", one, "--from", "1").splitlines()) >= 3
    for wrong in (("--from", "3"), ("--to", "3")):
        cli("read", "orders", *wrong, code=2)
        assert "is for a single partition" in cli.stderr
    cli("append", "orders", "x", "--expect-end", "0", code=2)
    assert "are for a single" in cli.stderr


def test_it_is_listed_as_one_log(cli: Any) -> None:
    cli("log", "create", "orders", "--partitions", "3")
    cli("append", "other", "x")
    cli("append", "orders", "x", "y")
    listed = {info["name"]: info for info in cli.json("log", "list")}
    assert set(listed) == {"orders", "other"}
    assert (listed["orders"]["partitions"], listed["orders"]["records"]) == (3, 2)
    assert "orders (3 partitions)" in cli("log", "list")
    assert cli.json("log", "list", "*-partition-*") == []
    parts = [f"orders-partition-{number}" for number in range(3)]
    assert [one["name"] for one in cli.json("log", "list", "--partitions")] == [*parts, "other"]
    assert [one["name"] for one in cli.json("log", "list", "orders", "--partitions")] == parts
    last = cli.json("log", "list", "*-partition-2", "--partitions")
    assert [one["name"] for one in last] == parts[2:]
    assert cli.json("stats")["logs"] == 2
    assert cli.json("stats")["records"] == 3
    found = cli.json("log", "info", "orders")
    assert (found["records"], len(found["parts"])) == (2, 3)
    assert "partition 2" in cli("log", "info", "orders")
    cli("log", "retention", "orders", "--count", "1", "--yes")
    assert {one["retention"]["count"] for one in cli.json("log", "info", "orders")["parts"]} == {1}
    assert cli.json("log", "delete", "orders", "--yes")["deleted"]
    assert [info["name"] for info in cli.json("log", "list")] == ["other"]
