"""`millstream schema`: list, show, set, check and delete, with codes for CI."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import millstream

ORDER = {"type": "object", "properties": {"id": {"type": "integer"}}, "required": ["id"]}
OTHER = {"type": "object", "properties": {"id": {"type": "string"}}, "required": ["id"]}


@pytest.fixture(autouse=True)
def _files(cli: Any) -> None:
    Path("order.json").write_text(json.dumps(ORDER))
    Path("other.json").write_text(json.dumps(OTHER))
    with millstream.open("millstream.db") as ms:
        ms.log("orders").append({"id": 1})


def test_a_schema_is_set_shown_listed_and_deleted(cli: Any) -> None:
    assert cli.json("schema", "list") == []
    assert "no schema" in cli.error("schema", "show", "orders")
    made = cli.json("schema", "set", "orders", "order.json")
    assert (made["log"], made["version"], made["start"], made["mode"]) == (
        "orders",
        1,
        1,
        "enforce",
    )
    assert cli("schema", "show", "orders", "--form", "spark") == "`id` BIGINT NOT NULL\n"
    assert cli.json("schema", "show", "orders")["schema"]["required"] == ["id"]
    assert cli.json("schema", "show", "orders", "--form", "avro")["schema"]["type"] == "record"
    assert [each["version"] for each in cli.json("schema", "show", "orders", "--history")] == [1]
    assert [each["log"] for each in cli.json("schema", "list")] == ["orders"]
    assert "expected integer at $.id" in cli.error("append", "orders", '{"id": "x"}')
    assert cli.json("schema", "delete", "orders", "--yes") == {"log": "orders", "deleted": True}
    assert cli.json("schema", "list") == []


def test_a_check_exits_with_a_code(cli: Any) -> None:
    facts = cli.json("schema", "check", "orders", "order.json")
    assert facts == {"log": "orders", "version": 0, "compatible": True, "conflicts": []}
    assert "which has no schema" in cli("schema", "check", "orders", "order.json")
    assert "there is no log 'ordrs' yet" in cli("schema", "check", "ordrs", "order.json")
    assert "there is no queue 'mail' yet" in cli("schema", "check", "queue:mail", "order.json")
    cli("schema", "set", "orders", "order.json")
    assert "compatible with version 1" in cli("schema", "check", "orders", "order.json")
    shown = cli("schema", "check", "orders", "other.json", code=1)
    assert "$.id: integer cannot become text" in shown
    assert "cannot become" in cli.error("schema", "set", "orders", "other.json")
    forced = cli.json("schema", "set", "orders", "other.json", "--force", "--yes")
    assert (forced["version"], forced["forced"]) == (2, True)


def test_a_bad_file_is_one_line(cli: Any) -> None:
    Path("bad.json").write_text("{")
    Path("binary.json").write_bytes(b"\xff")
    assert "both in JSON" in cli.error("schema", "set", "orders", "bad.json")
    assert "not UTF-8" in cli.error("schema", "check", "orders", "binary.json")
    assert "missing.json" in cli.error("schema", "set", "orders", "missing.json")


def test_a_queue_has_a_schema_by_the_name_of_its_log(cli: Any) -> None:
    with millstream.open("millstream.db") as ms:
        ms.create_queue("mail")
    assert cli.json("schema", "set", "queue:mail", "order.json")["version"] == 1
    assert cli.json("schema", "show", "queue:mail")["schema"]["required"] == ["id"]
    assert cli.json("schema", "check", "queue:mail", "order.json")["compatible"]
    assert "version 1 of queue 'mail'" in cli("schema", "check", "queue:mail", "order.json")
    assert [each["log"] for each in cli.json("schema", "list")] == ["queue:mail"]
    assert "expected integer at $.id" in cli.error("put", "mail", '{"id": "x"}')
    assert cli.json("schema", "delete", "queue:mail", "--yes")["deleted"]
    assert "no schema" in cli.error("schema", "show", "queue:mail")
