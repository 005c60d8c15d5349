"""`millstream doctor`: exit codes, what it prints, and that it only looks."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import Any

import apsw
import pytest

import millstream


@pytest.fixture(autouse=True)
def _orders(cli: Any) -> None:
    with millstream.open("millstream.db") as ms:
        for number in range(20):
            ms.log("orders").append(b"%d" % number)
            ms.fold()  # each alone, so that none is joined with another


def test_a_healthy_store_ends_with_0(cli: Any) -> None:
    assert cli("doctor").splitlines()[-1] == "healthy"
    found = cli.json("doctor", "millstream.db")
    assert (found["healthy"], found["problems"], found["records"]) == (True, [], 20)


def test_damage_ends_with_1_and_names_the_log_and_the_offsets(cli: Any) -> None:
    with closing(apsw.Connection("millstream.db")) as file:
        file.execute("DELETE FROM millstream_payload WHERE id IN (3, 4)")
    before = Path("millstream.db").read_bytes()
    shown = cli("doctor", code=1)
    assert "damage: log 'orders', offsets 3 to 4 lost: the payload is missing" in shown
    assert shown.splitlines()[-1] == "damaged"
    found = cli.json("doctor", code=1)
    assert (found["healthy"], found["records_lost"]) == (False, 2)
    assert [(p["log"], p["lost"]) for p in found["problems"]] == [("orders", [3, 5])]
    assert Path("millstream.db").read_bytes() == before


def test_queues_are_counted_and_a_message_without_its_payload_is_named(cli: Any) -> None:
    with millstream.open("millstream.db") as ms:
        queue = ms.queue("jobs", sources="orders", start="earliest")
        queue.ack(queue.claim(2))
        queue.claim(3)
        ms.fold()
    facts = dict(line.split("\t") for line in cli("doctor").splitlines()[:-1])
    assert facts["queues"] == "1 holding 18 messages"
    assert facts["messages without payload"] == "0"
    with closing(apsw.Connection("millstream.db")) as file:
        file.execute("DELETE FROM millstream_payload WHERE id = 3")
    shown = cli("doctor", code=1)
    assert "messages without payload\t1" in shown
    (line,) = [line for line in shown.splitlines() if "queue 'jobs'" in line]
    assert line.startswith("damage: missing payload: queue 'jobs', claim ")
    assert line.endswith(", in flight, of log 'orders', offset 3")
    assert cli.json("doctor", code=1)["payloads_missing"] == 1


def test_what_cannot_be_opened_ends_with_2(cli: Any) -> None:
    assert "does not exist" in cli.error("doctor", "none.db", code=2)
    Path("empty.db").touch()
    assert "is empty" in cli.error("doctor", "empty.db", code=2)
    assert not Path("none.db").exists()


def test_reading_damaged_records_says_to_run_the_doctor(cli: Any) -> None:
    with closing(apsw.Connection("millstream.db")) as file:
        file.execute("UPDATE millstream_payload SET value = x'00' WHERE id = 3")
    assert "doctor" in cli.error("read", "orders")


def test_a_bundle_is_written_once_and_said(cli: Any) -> None:
    cli("append", "orders", "x", "--store", "a.db")
    cli("doctor", "a.db", "--bundle", "facts.zip")
    assert "without payloads" in cli.stderr
    assert "name another file" in cli.error("doctor", "a.db", "--bundle", "facts.zip", code=2)
