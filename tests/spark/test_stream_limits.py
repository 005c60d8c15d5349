"""Promise: a batch of a stream is as large as the options say, and reports say how far behind it is.

Asked as Spark asks, without a Java: positions go through JSON.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.cloudpickle import dumps, loads
from pyspark.sql.streaming.datasource import ReadAllAvailable

import millstream
from millstream import Millstream
from millstream.errors import InvalidInput
from millstream.spark.options import read_options, write_options
from millstream.spark.source.layout import schema_of
from millstream.spark.source.positions import unpacked
from millstream.spark.source.stream import LogStreamReader


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Millstream]:
    with millstream.open(tmp_path / "store.db") as opened:
        yield opened


def reader_of(store: Millstream, **options: str) -> LogStreamReader:
    given = {"path": str(store.stats()["path"]), "startingOffsets": "earliest", **options}
    found = read_options(given, streaming=True)
    return LogStreamReader(found, schema_of(found))


def plan(reader: LogStreamReader, start: Any, limit: Any = None) -> Any:
    end = reader.latestOffset(start, limit or reader.getDefaultReadLimit())
    return unpacked(json.loads(json.dumps(end)))


def test_progress_says_how_far_behind_a_stream_is(store: Millstream) -> None:
    store.log("a").append_many([b"x"] * 30)
    store.log("b").append_many([b"x"] * 10)
    reader = reader_of(store, subscribe="a,b", maxOffsetsPerTrigger="20")
    end = plan(reader, reader.initialOffset())
    assert end == {"a": 15, "b": 5}
    assert reader.reportLatestOffset() == {
        "a": 30,
        "b": 10,
        "offsetsBehindLatest": {"min": 5, "avg": 10.0, "max": 15},
    }
    assert plan(reader, end) == {"a": 30, "b": 10}
    assert reader.reportLatestOffset()["offsetsBehindLatest"]["max"] == 0
    reader.stop()


def test_a_batch_waits_until_there_is_enough_for_it(store: Millstream) -> None:
    store.log("a").append_many([b"x"] * 5)
    wished = {"subscribe": "a", "minOffsetsPerTrigger": "10"}
    reader = reader_of(store, **wished, maxTriggerDelay="1h")
    first = plan(reader, reader.initialOffset())
    assert first == {"a": 5}  # as with Kafka, the first batch takes what there is
    store.log("a").append_many([b"x"] * 9)
    assert plan(reader, first) == first
    assert plan(reader, first, ReadAllAvailable()) == {"a": 14}  # a trigger that takes all
    store.log("a").append(b"x")
    assert plan(reader, first) == {"a": 15}
    reader.stop()
    soon = reader_of(store, **wished, maxTriggerDelay="0ms")
    assert plan(soon, first) == {"a": 15}
    store.log("a").append(b"x")
    assert plan(soon, {"a": 15}) == {"a": 16}
    soon.stop()
    now = reader_of(store, **wished)
    assert plan(now, first) == {"a": 16}
    store.log("a").append(b"x")
    now.prepareForTriggerAvailableNow()
    assert plan(now, {"a": 16}) == {"a": 17}
    now.stop()


def test_a_batch_is_bounded_by_bytes(store: Millstream) -> None:
    store.log("small").append_many([b"x" * 100] * 1_000)
    store.log("large").append_many([b"x" * 10_000] * 100)
    reader = reader_of(store, subscribePattern=".*", maxBytesPerTrigger="110000")
    start, batches = reader.initialOffset(), 0
    while (end := plan(reader, start)) != start:
        size = 100 * (end["small"] - start["small"]) + 10_000 * (end["large"] - start["large"])
        assert 0 < size < 150_000
        start, batches = end, batches + 1
    assert start == {"small": 1_000, "large": 100}
    assert batches >= 8
    both = reader_of(
        store, subscribe="small", maxBytesPerTrigger="1000000", maxOffsetsPerTrigger="7"
    )
    assert plan(both, both.initialOffset()) == {"small": 7}
    tiny = reader_of(store, subscribe="large", maxBytesPerTrigger="1")
    assert plan(tiny, tiny.initialOffset()) == {"large": 1}
    for one in (reader, both, tiny):
        one.stop()


def test_logs_are_assigned_as_with_kafka(store: Millstream) -> None:
    store.log("a").append_many([b"x"] * 3)
    store.log("b").append(b"x")
    reader = reader_of(store, assign='{"a": [0]}')
    assert plan(reader, reader.initialOffset()) == {"a": 3}
    loads(dumps(reader)).stop()  # it travels to tasks
    reader.stop()


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"assign": '{"a": []}'}, "option assign: .* the one 0"),
        ({"assign": '{"a": [-1]}'}, "option assign: .* the one 0"),
        ({"assign": '{"a": [0]}', "subscribe": "a"}, "got subscribe and assign"),
        ({"assign": "true"}, "option assign: expected JSON"),
        ({"subscribe": "a", "maxTriggerDelay": "soon"}, "expected a time such as 500ms"),
        ({"subscribe": "a", "minOffsetsPerTrigger": "9", "maxOffsetsPerTrigger": "3"}, "at most"),
        ({"subscribe": "a", "maxbytes": "9"}, "unknown option maxbytes; did you mean maxBytesPer"),
        ({"subscribe": "a", "startOffsets": "x"}, "did you mean startingOffsets"),
        ({"subscribe": "a", "zzz": "x"}, "unknown option zzz; did you mean"),
        ({"subscribe": "a", "kafka.bootstrap.servers": "x"}, "the options path or server say"),
    ],
)
def test_what_cannot_be_is_refused(options: dict[str, str], told: str) -> None:
    with pytest.raises(InvalidInput, match=told):
        read_options({"path": "x.db", **options}, streaming=True)


def test_a_write_refuses_what_it_does_not_know() -> None:
    with pytest.raises(InvalidInput, match="unknown option logs; did you mean log"):
        write_options({"path": "x.db", "logs": "a"})
    assert write_options({"path": "x.db", "log": "a", "checkpointLocation": "c"}).log == "a"
