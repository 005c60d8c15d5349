"""Promise: what is replayed is in the log once, in its order, however often its run was killed."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from pyarrow import parquet

import millstream
from millstream import Millstream
from millstream.errors import Conflict, InvalidInput, NotFound
from millstream.spark.pipelines import replay as module
from millstream.spark.pipelines.replay import replay

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Millstream]:
    with millstream.open(tmp_path / "store.db") as opened:
        yield opened


@pytest.fixture
def run(spark: SparkSession, store: Millstream, tmp_path: Path) -> Any:
    def start(source: str | Path, log: str = "to", **options: Any) -> Any:
        options.setdefault("checkpoint", tmp_path / "checkpoint")
        return replay(spark, str(store.stats()["path"]), source, log, **options)

    return start


class Killed(BaseException):
    """Stands for the end of the process."""


def test_rows_become_json_and_columns_can_be_mapped(
    run: Any, store: Millstream, tmp_path: Path
) -> None:
    source = tmp_path / "people.csv"
    source.write_text("id,name,born\n1,Ada,1985-12-10 00:00:00\n2,Grace,1996-12-09 00:00:00\n")
    assert run(source, format="csv").records == 2
    assert [record.json()["name"] for record in store.log("to").read()] == ["Ada", "Grace"]

    run(
        source,
        "mapped",
        format="csv",
        checkpoint=tmp_path / "other",
        columns={"key": "cast(id as string)", "value": "upper(name)", "timestamp": "born"},
        headers={"id": "id", "odd": "id % 2 = 1", "half": "id / 2", "none": "nullif(name, 'Ada')"},
        order_by="id desc",
        options={"timestampFormat": "yyyy-MM-dd HH:mm:ss"},
    )
    first, second = store.log("mapped").read()
    assert (first.key, first.value, dict(first.headers)) == (
        b"2",
        b"GRACE",
        {"id": 2, "odd": False, "half": 1.0, "none": "Grace"},
    )
    assert dict(second.headers) == {"id": 1, "odd": True, "half": 0.5}
    assert 0 < second.timestamp < first.timestamp < 900_000_000_000


def test_json_parquet_and_tables_are_taken(
    spark: SparkSession, run: Any, store: Millstream, tmp_path: Path
) -> None:
    lines = tmp_path / "in.json"
    lines.write_text("\n".join(json.dumps({"n": n, "value": f"v{n}"}) for n in range(5)))
    assert run(lines, format="json", where="n >= 2").total == 3
    assert [record.value for record in store.log("to").read()] == [b"v2", b"v3", b"v4"]
    spark.range(0, 50, 1, 3).selectExpr("id", "cast(id as string) as value").write.parquet(
        str(tmp_path / "p")
    )
    run(tmp_path / "p", "numbers", checkpoint=tmp_path / "c2", step_records=20, order_by="id")
    assert [int(record.value) for record in store.log("numbers").read()] == list(range(50))
    spark.read.parquet(str(tmp_path / "p")).createOrReplaceTempView("numbers_view")
    run("numbers_view", "again", format="table", checkpoint=tmp_path / "c3")
    assert store.log("again").end_offset() == 50


@pytest.mark.parametrize("at", ["replay staged", "replay appended"])
def test_a_run_that_ends_anywhere_is_continued(
    spark: SparkSession, run: Any, store: Millstream, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch, at: str,
) -> None:  # fmt: skip
    rows = spark.range(0, 30, 1, 1).selectExpr("cast(id as string) as value")
    rows.write.parquet(str(tmp_path / "p"))
    hits: list[str] = []

    def point(name: str) -> None:
        hits.append(name)
        if name == at and hits.count(at) == (2 if at == "replay appended" else 1):
            raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(module, "point", point)
        with pytest.raises(Killed):
            run(tmp_path / "p", step_records=10)
    before = store.log("to").end_offset()
    assert before == (20 if at == "replay appended" else 0)
    # What the source has become since makes no difference once there is a plan.
    summary = run(tmp_path / "p", step_records=7)
    assert summary.resumed == (at == "replay appended")
    assert [int(record.value) for record in store.log("to").read()] == list(range(30))
    assert run(tmp_path / "p").records == 0
    assert store.log("to").end_offset() == 30


def test_a_rate_is_kept(run: Any, store: Millstream, tmp_path: Path) -> None:
    source = tmp_path / "in.json"
    source.write_text("\n".join(json.dumps({"value": f"v{n}"}) for n in range(40)))
    summary = run(source, format="json", rate=40.0)
    assert summary.records == 40
    assert summary.seconds >= 1.0


def test_bad_wishes_are_refused(run: Any, store: Millstream, tmp_path: Path) -> None:
    source = tmp_path / "in.json"
    source.write_text('{"a": 1}')
    with pytest.raises(InvalidInput, match="a format is one of"):
        run(source, format="xml")
    with pytest.raises(NotFound, match="nothing at"):
        run(tmp_path / "nowhere")
    with pytest.raises(InvalidInput, match="no column 'colour' in a log"):
        run(source, format="json", columns={"colour": "a"})
    with pytest.raises(InvalidInput, match=r"cannot be mapped to a log.*nope"):
        run(source, format="json", columns={"key": "nope"})
    with pytest.raises(InvalidInput, match="header 'h' would be"):
        run(source, format="json", headers={"h": "array(a)"})
    with pytest.raises(InvalidInput, match="a rate is"):
        run(source, format="json", rate=0)
    run(source, format="json")
    with pytest.raises(Conflict, match="belongs to another replay"):
        run(source, "elsewhere", format="json")
    assert store.log("to").end_offset() == 1


def test_a_file_that_is_no_parquet_is_named(run: Any, store: Millstream, tmp_path: Path) -> None:
    folder = tmp_path / "some files"
    folder.mkdir()
    wrong = folder / "b.parquet"
    wrong.write_bytes(b"id,name\n1,Ada\n2,Grace\n")
    with pytest.raises(InvalidInput, match=r"b\.parquet cannot be read as parquet") as refused:
        run(wrong)
    assert str(wrong) in str(refused.value)
    assert "\n" not in str(refused.value)
    parquet.write_table(pa.table({"value": [b"1"]}), folder / "a.parquet")
    with pytest.raises(InvalidInput, match=r"b\.parquet cannot be read as parquet"):
        run(folder)  # the first file tells the columns: this one is noticed when rows are read
    assert store.log("to").end_offset() == 0
