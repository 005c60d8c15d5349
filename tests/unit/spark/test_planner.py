"""The planner: what a query needs of a store, answered as Java asks for it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

import millstream
from millstream import Item

pytestmark = pytest.mark.requires("spark")

RECORDS = 60


@pytest.fixture
def path(tmp_path: Path) -> str:
    place = tmp_path / "rows.db"
    with millstream.open(place) as ms:
        ms.log("a").append_many([Item(b"%d" % n, timestamp=1000 + n) for n in range(RECORDS)])
        ms.log("a").truncate(before=10)
        ms.log("b").append_many([b"x"] * 5)
        ms.log("parts", partitions=2).append_many(
            [Item(b"%d" % n, key=b"%d" % n) for n in range(RECORDS)]
        )
        ms.create_queue("work", sources=["b"], start="earliest")
    return str(place)


def asked(path: str, operation: str, **question: Any) -> dict[str, Any]:
    """Ask as Java does."""
    from millstream.spark.connector.planner import answer

    options = {"path": path, "subscribe": "a,b,parts"} | question.pop("options", {})
    line = msgspec.json.encode({"operation": operation, "options": options, **question})
    found: dict[str, Any] = msgspec.json.decode(answer(line))
    return found


def schema(path: str, **options: str) -> str:
    text: str = asked(path, "schema", options=options)["schema"]
    return text


def rows(path: str, columns: list[str], **question: Any) -> list[dict[str, Any]]:
    """Plan, and run the task of each partition as a worker of Spark does."""
    import pyarrow as pa
    from pyspark.serializers import CloudPickleSerializer

    question.setdefault("schema", schema(path, **question.get("options", {})))
    plan = asked(path, "plan", columns=columns, **question)
    assert "error" not in plan, plan
    decoded = {"function": plan["function"], "partitions": plan["partitions"]}
    made = msgspec.convert(decoded, dict[str, bytes | list[bytes]], builtin_types=())
    function, _ = CloudPickleSerializer().loads(made["function"])  # type: ignore[no-untyped-call]
    found: list[dict[str, Any]] = []
    for partition in made["partitions"]:
        batch = pa.record_batch([pa.array([partition], pa.binary())], names=["partition"])
        for result in function(iter([batch])):
            found += result.to_pylist()
    return found


def condition(column: str, sign: str, value: int | list[str]) -> dict[str, Any]:
    return {"column": column, "is": sign, "texts" if isinstance(value, list) else "number": value}


@pytest.mark.parametrize(
    ("conditions", "offsets"),
    [
        ([], {"a": range(10, 60), "b": range(5)}),
        ([condition("offset", ">=", 58)], {"a": range(58, 60)}),
        ([condition("offset", ">", 3), condition("offset", "<", 11)], {"a": [10], "b": [4]}),
        ([condition("offset", "<=", 1), condition("topic", "in", ["a", "b"])], {"b": [0, 1]}),
        ([condition("offset", "=", 12), condition("topic", "in", ["b"])], {}),
    ],
)
def test_conditions_on_topic_and_offset_choose_exactly_what_they_say(
    path: str, conditions: list[dict[str, Any]], offsets: dict[str, Any]
) -> None:
    options = {"subscribe": "a,b"}
    found: dict[str, list[int]] = {}
    for row in rows(path, ["topic", "offset"], conditions=conditions, options=options):
        found.setdefault(row["topic"], []).append(row["offset"])
    assert found == {log: list(kept) for log, kept in offsets.items()}
    counted = asked(
        path,
        "aggregate",
        schema=schema(path),
        conditions=conditions,
        options=options,
        groups=["topic"],
        measures=["count", "min", "max"],
    )["rows"]
    assert counted == [[log, len(kept), kept[0], kept[-1]] for log, kept in offsets.items()]


def test_only_the_columns_of_the_query_are_made_and_values_are_not_read_for_others(
    path: str,
) -> None:
    found = rows(path, ["offset", "partition"], options={"subscribe": "parts"})
    assert len(found) == RECORDS
    assert {tuple(row) for row in found} == {("partition", "offset")}
    assert {row["partition"] for row in found} == {0, 1}


def test_a_span_of_time_leaves_out_whole_blocks_and_no_record_of_the_span(path: str) -> None:
    span = [condition("timestamp", ">=", 5_000_000)]
    with millstream.open(path) as ms:
        ms.fold()
        ms.log("a").append_many([Item(b"late", timestamp=n) for n in (4000, 5000, 6000)])
    found = rows(path, ["timestamp", "value"], conditions=span, options={"subscribe": "a"})
    assert [row["value"] for row in found][-2:] == [b"late"] * 2
    assert len(found) < RECORDS - 10


def test_later_queries_of_a_dataframe_read_what_its_first_one_read(path: str) -> None:
    first = asked(path, "aggregate", schema=schema(path), measures=["count"])
    with millstream.open(path) as ms:
        ms.log("b").append_many([b"new"] * 7)
    again = {"schema": schema(path), "snapshot": first["snapshot"]}
    assert asked(path, "aggregate", measures=["count"], **again)["rows"] == first["rows"]
    assert [[len(rows(path, ["topic"], **again))]] == first["rows"]
    fresh = asked(path, "aggregate", schema=schema(path), measures=["count"])
    assert fresh["rows"] == [[first["rows"][0][0] + 7]]


def test_states_of_a_queue_stay_those_of_the_first_query(path: str) -> None:
    options = {"queue": "work", "state": "available", "subscribe": ""}
    columns = schema(path, **options)
    first = asked(path, "plan", options=options, schema=columns, columns=["offset"])
    with millstream.open(path) as ms:
        ms.queue("work").claim(2)
    kept = asked(
        path,
        "plan",
        options=options,
        schema=columns,
        columns=["state", "offset"],
        snapshot=first["snapshot"],
    )
    assert kept["partitions"] == first["partitions"]


@pytest.mark.parametrize(
    "options",
    [
        {"filter": "region = 'eu'"},
        {"failOnDataLoss": "false"},
        {"queue": "work", "state": "done", "subscribe": ""},
        {"subscribe": "nowhere"},
        {"subscribe": "a", "colour": "red"},
        {"subscribe": "a", "mode": "FAILFAST"},
        {"subscribe": "a", "mode": "DROPMALFORMED"},
    ],
)
def test_what_metadata_cannot_count_is_refused(path: str, options: dict[str, str]) -> None:
    columns = schema(path)
    assert "error" in asked(path, "aggregate", schema=columns, options=options, measures=["count"])


def test_columns_that_a_read_has_not_are_refused_whichever_a_query_chooses(path: str) -> None:
    from pyspark.sql.types import StructType

    wrong = StructType().add("offset", "long").add("_value", "binary").json()
    for question in (
        asked(path, "plan", schema=wrong, columns=["offset"]),
        asked(path, "aggregate", schema=wrong, measures=["count"]),
        asked(path, "ready", schema=wrong),
    ):
        assert "there is no column '_value' in this read" in question["error"]


def test_conditions_on_logs_are_ours_and_conditions_on_queues_are_sparks(path: str) -> None:
    from pyspark.sql.types import StructType

    chosen = StructType().add("topic", "string").add("offset", "long").json()
    conditions = [condition("offset", ">", 2)]
    assert asked(path, "ready", schema=chosen, conditions=conditions) == {}
    queue = {"schema": chosen, "options": {"queue": "work", "state": "available", "subscribe": ""}}
    assert "error" not in asked(path, "plan", columns=["offset"], **queue)
    for question in (
        asked(path, "plan", columns=["offset"], conditions=conditions, **queue),
        asked(path, "ready", **queue),
    ):
        assert "Spark applies the conditions on messages of a queue" in question["error"]


def test_a_group_without_records_is_not_there_and_a_count_of_nothing_is_zero(path: str) -> None:
    nothing = {"schema": schema(path), "conditions": [condition("offset", ">", 1000)]}
    measures = ["count", "min", "max"]
    assert asked(path, "aggregate", measures=measures, **nothing)["rows"] == [[0, None, None]]
    assert asked(path, "aggregate", measures=measures, groups=["topic"], **nothing)["rows"] == []


def test_a_partition_is_pickled_as_spark_reads_it(path: str) -> None:
    from pyspark.serializers import CloudPickleSerializer
    from pyspark.sql.datasource import InputPartition

    pickler: Any = CloudPickleSerializer()
    plan = asked(path, "plan", schema=schema(path), columns=["offset"])
    for text in plan["partitions"]:
        pickled = msgspec.convert(text, bytes, builtin_types=())
        assert isinstance(pickler.loads(pickled), InputPartition)


def test_a_question_that_is_no_question_is_answered_with_an_error() -> None:
    from millstream.spark.connector.planner import answer

    for line in (b"", b"{}", b"\xff", b'{"operation": "dance", "options": {}}'):
        assert "error" in msgspec.json.decode(answer(line))
