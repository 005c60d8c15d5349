"""Promise: rows that name their logs are packed by log, each log's rows in their order."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

import pyarrow as pa
import pytest

import millstream
from millstream.embedded.session import EmbeddedSession
from millstream.errors import InvalidInput, InvalidName
from millstream.format.packing import Batch, Single
from millstream.limits import Limits
from millstream.spark.sink import disk_staging as staging
from millstream.spark.sink import rows
from millstream.spark.sink.disk_staging import publish
from millstream.spark.sink.publishing import Version
from millstream.spark.sink.rows import blocks_by_log, rows_by_topic
from millstream.testing import Probe


def batch(*pairs: tuple[str | None, bytes]) -> pa.RecordBatch:
    topics, values = zip(*pairs, strict=True)
    return pa.record_batch({"topic": pa.array(topics, pa.string()), "value": pa.array(values)})


def by_topic(batches: Iterable[pa.RecordBatch]) -> Iterator[tuple[str, Single | Batch]]:
    return blocks_by_log((one for some in batches for one in rows_by_topic(some)), Limits())


def packed(*batches: pa.RecordBatch) -> list[tuple[str, int]]:
    return [(log, block.count) for log, block in by_topic(batches)]


def test_rows_of_a_log_share_a_block_across_batches() -> None:
    one = batch(("a", b"1"), ("b", b"2"), ("a", b"3"))
    other = batch(("b", b"4"), ("c", b"5"))
    assert packed(one, other) == [("a", 2), ("b", 2), ("c", 1)]
    found = dict(by_topic([one, other]))
    first, last = found["a"], found["c"]
    assert isinstance(first, Batch)
    assert first.payload.endswith(b"13".ljust(8, bytes(1)))
    assert isinstance(last, Single)
    assert last.value == b"5"


def test_what_waits_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rows, "BLOCK_BYTES", 1_000)
    monkeypatch.setattr(rows, "WAITING_BYTES", 2_000)
    one = batch(*[(name, b"x" * 300) for name in "abcabcabc"])
    found = packed(one, one, one)
    assert {log: sum(n for name, n in found if name == log) for log, _ in found} == dict.fromkeys(
        "abc", 9
    )
    assert len(found) > 3


@pytest.mark.parametrize(
    ("wrong", "error", "told"),
    [
        (batch(("a", b"1"), (None, b"2")), InvalidInput, "row 1 of a batch has no topic"),
        (batch(("", b"1")), InvalidName, "1 to 255 characters"),
        (batch(("millstream:spark", b"1")), InvalidInput, "the store's own"),
    ],
)
def test_a_name_that_cannot_be_is_refused(
    wrong: pa.RecordBatch, error: type[Exception], told: str
) -> None:
    with pytest.raises(error, match=told):
        packed(wrong)


def test_a_topic_is_a_string() -> None:
    wrong = pa.record_batch({"topic": pa.array([1]), "value": pa.array([b"x"])})
    with pytest.raises(InvalidInput, match="a string, not int64"):
        packed(wrong)


def test_staged_rows_of_many_logs_are_published_in_one_commit_and_once(tmp_path: Path) -> None:
    path = str(tmp_path / "store.db")
    found_rows = batch(*[(f"log-{n % 7}", b"%d" % n) for n in range(70)])
    with millstream.open(path) as store:
        session = EmbeddedSession(Probe(store).store)
        for _ in range(2):
            found = staging.stage(path, "t", "0", by_topic([found_rows]), Limits())
            publish(session, path, "", [found], Version("app", 1))
        for name in range(7):
            values = [int(record.value) for record in store.log(f"log-{name}").read()]
            assert values == list(range(name, 70, 7))
