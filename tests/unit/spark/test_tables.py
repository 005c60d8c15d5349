"""Promise: a commit of a table says which records it holds, and a rewrite loses and repeats none."""

from __future__ import annotations

import json
import random
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, cast

import msgspec
import pyarrow as pa
import pytest
from pyarrow import parquet

import millstream
from millstream.clock import SystemClock
from millstream.errors import Conflict, InvalidInput
from millstream.schema import model as m
from millstream.spark.archive.archive import ArchivedFile
from millstream.spark.archive.folders import Folder, folder_of
from millstream.spark.archive.partitioning import BY_DATE, PartitionBy
from millstream.spark.archive.task import PartitionFiles
from millstream.spark.archive.typed_columns import TypedColumns, typed_columns, union
from millstream.spark.pipelines.table_run import TableRun
from millstream.spark.pipelines.target import PipelineRun, quiet
from millstream.spark.source.positions import packed
from millstream.spark.tables.rewriting import (
    compact_files,
    inserted,
    latest_rows,
    plan_compactions,
    without_keys,
)
from millstream.spark.tables.rows import base_columns, missing_rows, write_rows
from millstream.spark.tables.sink import (
    Covered,
    FileChange,
    TableFile,
    TableSink,
    new_name,
    open_sink,
)

pytestmark = [
    pytest.mark.requires("lake"),
    pytest.mark.filterwarnings("ignore"),
]

KINDS = ("delta", "iceberg")
SCHEMA = m.StructType(
    fields=(
        m.SchemaField(name="id", type=m.IntegerType()),
        m.SchemaField(name="land", type=m.TextType(nullable=True), required=False),
    )
)


def batch(
    start: int, values: list[bytes | None], keys: list[bytes | None] | None = None
) -> pa.RecordBatch:
    """Records of the log `orders`, as Spark hands them to a task."""
    count = len(values)
    times = pa.array([1_800_000_000_000_000] * count, pa.timestamp("us", tz="UTC"))
    rows = {
        "key": pa.array(keys or [None] * count, pa.binary()),
        "value": pa.array(values, pa.binary()),
        "topic": ["orders"] * count,
        "partition": pa.array([0] * count, pa.int32()),
        "offset": pa.array(range(start, start + count), pa.int64()),
        "timestamp": times,
        "appendTimestamp": times,
        "headers": pa.nulls(count, base_columns().field("headers").type),
    }
    return pa.record_batch(rows, schema=base_columns())


def orders(start: int, count: int) -> pa.RecordBatch:
    lands = ("DE", "AT", None)
    return batch(
        start,
        [json.dumps({"id": n, "land": lands[n % 3]}).encode() for n in range(start, start + count)],
        [b"k%d" % (n % 10) for n in range(start, start + count)],
    )


class Table:
    """A table without a Java: what the pipeline does, in this process."""

    def __init__(
        self, path: Path, kind: str, *, by: PartitionBy = BY_DATE, typed: bool = True
    ) -> None:
        self.folder: Folder = folder_of(path)
        self.kind, self.by = kind, by
        self.typed: dict[str, TypedColumns] = {"orders": typed_columns(SCHEMA)} if typed else {}
        wanted = union([base_columns(), *(each.fields() for each in self.typed.values())])
        self.sink: TableSink = open_sink(self.folder, kind, wanted, by, 1)
        self.columns = self.sink.prepare(wanted)

    def placed(self, files: list[ArchivedFile]) -> list[ArchivedFile]:
        moved = []
        for file in files:
            below = "data/" if self.kind == "iceberg" else ""
            target = f"{below}{self.by.directory(file.partition)}/{new_name()}"
            self.folder.move({file.path: target})
            moved.append(msgspec.structs.replace(file, path=target))
        return moved

    def staged(self, rows: pa.RecordBatch, *, upserts: bool = False) -> list[ArchivedFile]:
        return write_rows(
            [rows],
            self.typed,
            self.columns,
            folder=self.folder,
            by=self.by,
            codec="zstd",
            upserts=upserts,
        )

    def append(self, rows: pa.RecordBatch) -> None:
        end = rows.column("offset")[-1].as_py() + 1
        change = FileChange(
            added=self.placed(self.staged(rows)), covered=Covered({"orders": end}, {"orders": 7})
        )
        self.sink.commit(change)

    def upsert(self, rows: pa.RecordBatch) -> int:
        end = rows.column("offset")[-1].as_py() + 1
        files = self.staged(rows, upserts=True)
        read = [
            parquet.read_table(self.folder.opened(one.path), partitioning=None) for one in files
        ]
        latest, keyless = latest_rows(pa.concat_tables(read))
        added, removed = list[ArchivedFile](), list[TableFile]()
        for file in self.sink.files():
            made = without_keys(self.folder, file, latest, self.columns, by=self.by, codec="zstd")
            if made is not None:
                removed.append(file)
                added += made
        fresh = PartitionFiles(self.folder, self.columns, self.by, "zstd", has_unique_offsets=False)
        for part in inserted(latest, self.columns):
            fresh.add(part)
        self.sink.commit(
            FileChange(
                added=self.placed(added + fresh.close()),
                removed=removed,
                covered=Covered({"orders": end}, {"orders": 7}),
            )
        )
        return keyless

    def compact(self, target_bytes: int = 10**8) -> int:
        planned = plan_compactions(self.sink.files(), target_bytes)
        made = [compact_files(self.folder, one, self.columns, self.by, "zstd") for one in planned]
        removed = [file for one in planned for file in one.files]
        self.sink.commit(
            FileChange(
                added=self.placed(made),
                removed=removed,
                covered=self.sink.covered(["orders"]),
                keeps_rows=True,
            )
        )
        return len(removed)

    def rows(self) -> list[dict[str, Any]]:
        """All rows as the library of the table reads them."""
        if self.kind == "delta":
            from deltalake import DeltaTable

            found = DeltaTable(self.folder.text).to_pyarrow_table()
        else:
            from millstream.spark.archive.iceberg import catalog_of, name_of

            found = catalog_of(self.folder, "").load_table(name_of(self.folder)).scan().to_arrow()
        rows: list[dict[str, Any]] = found.to_pylist()
        return sorted(rows, key=lambda row: row["offset"])

    def parquet(self) -> int:
        return sum(
            name.endswith(".parquet") and "_delta_log" not in name for name in self.folder.names("")
        )


@pytest.fixture(params=KINDS)
def table(request: pytest.FixtureRequest, tmp_path: Path) -> Table:
    return Table(tmp_path / "lake", request.param)


def test_a_commit_notes_what_the_table_holds(table: Table) -> None:
    assert table.sink.covered(["orders"]) == Covered()
    table.append(orders(0, 20))
    table.append(orders(20, 5))
    again = Table(Path(table.folder.text), table.kind)
    assert again.sink.covered(["orders", "other"]) == Covered({"orders": 25}, {"orders": 7})
    rows = again.rows()
    assert [(row["offset"], row["id"]) for row in rows] == [(n, n) for n in range(25)]
    assert [row["land"] for row in rows[:3]] == ["DE", "AT", None]
    assert {(row["value"], row["_corrupt"]) for row in rows} == {(None, None)}


def test_a_value_that_does_not_fit_stays_as_bytes(table: Table) -> None:
    table.append(batch(0, [b'{"id": 1}', b"\xff", None]))
    rows = [(row["id"], row["value"], row["_corrupt"]) for row in table.rows()]
    assert rows == [
        (1, None, None),
        (None, b"\xff", "\N{REPLACEMENT CHARACTER}"),
        (None, None, None),
    ]


@pytest.mark.parametrize("kind", [m.StructType(), m.ListType(items=m.StructType()), None])
def test_values_stay_where_a_field_has_no_column(table: Table, kind: m.AnyOf | None) -> None:
    fields = () if kind is None else (*SCHEMA.fields, m.SchemaField(name="meta", type=kind))
    table.typed["orders"] = typed_columns(m.StructType(fields=fields))
    table.columns = table.sink.prepare(union([base_columns(), table.typed["orders"].fields()]))
    meta = b"[{}]" if isinstance(kind, m.ListType) else b'{"a": 1}'
    value = b'{"id": 1, "meta": %s}' % meta
    table.append(batch(0, [value]))
    assert [(row["value"], row["_corrupt"]) for row in table.rows()] == [(value, None)]


def test_columns_are_added_and_their_types_never_change(table: Table) -> None:
    table.append(orders(0, 3))
    text = m.SchemaField(name="note", type=m.TextType(), required=False)
    table.typed["orders"] = typed_columns(m.StructType(fields=(*SCHEMA.fields, text)))
    table.columns = table.sink.prepare(union([base_columns(), table.typed["orders"].fields()]))
    table.append(batch(3, [b'{"id": 3, "note": "new"}']))
    assert [row["note"] for row in table.rows()] == [None, None, None, "new"]
    with pytest.raises(InvalidInput, match="column 'id' has the type int64 already"):
        table.sink.prepare(union([base_columns(), [pa.field("id", pa.string())]]))


@pytest.mark.parametrize("kind", KINDS)
def test_partitions_are_by_a_column(tmp_path: Path, kind: str) -> None:
    table = Table(tmp_path / "lake", kind, by=PartitionBy("land", by_day=False))
    for start in range(0, 50, 10):
        table.append(orders(start, 10))
    assert table.compact() == 15
    assert {file.partition for file in table.sink.files()} == {
        "DE",
        "AT",
        "__HIVE_DEFAULT_PARTITION__",
    }
    assert [(row["id"], row["land"]) for row in table.rows()] == [
        (n, ("DE", "AT", None)[n % 3]) for n in range(50)
    ]
    with pytest.raises(InvalidInput, match="is partitioned by"):
        Table(tmp_path / "lake", kind)


def test_small_files_are_compacted_and_old_versions_expire(table: Table) -> None:
    for start in range(0, 60, 10):
        table.append(orders(start, 10))
    version = table.sink.version()
    assert table.compact(target_bytes=1) == 0
    assert table.compact() == 6
    assert table.sink.version() != version
    assert (len(table.sink.files()), table.parquet()) == (1, 7)
    assert table.sink.covered(["orders"]).ends == {"orders": 60}
    assert table.sink.expire(0) == 0
    table.folder.write({table.staged(orders(90, 1))[0].path.replace("_staging", "left"): b""})
    gone = table.sink.expire(SystemClock().wall_ms() + 60_000)
    assert gone >= 6
    assert [row["id"] for row in table.rows()] == list(range(60))
    table.append(orders(60, 1))
    assert len(table.rows()) == 61


def test_commits_of_some_logs_keep_what_is_noted_of_others(table: Table) -> None:
    table.sink.commit(
        FileChange(covered=Covered({"clicks": 9, "gone": 3}, {"clicks": 4, "gone": 5}))
    )
    table.append(orders(0, 20))
    table.append(orders(20, 5))
    table.compact()
    logs = ["clicks", "gone", "orders"]
    everything = Covered(
        {"clicks": 9, "gone": 3, "orders": 25}, {"clicks": 4, "gone": 5, "orders": 7}
    )
    assert table.sink.covered(logs) == everything
    assert Table(Path(table.folder.text), table.kind).sink.covered(logs) == everything


class BatchRows:
    """The rows of a batch, read by a task in this process."""

    def __init__(self, rows: pa.RecordBatch, while_read: Callable[[], object]) -> None:
        self._rows, self._while_read = rows, while_read

    def mapInArrow(self, work: Callable[..., Iterator[pa.RecordBatch]], _: str) -> BatchRows:  # noqa: N802
        self._work = work
        return self

    def collect(self) -> list[tuple[bytes]]:
        self._while_read()
        return [(batch.column(0)[0].as_py(),) for batch in self._work(iter([self._rows]))]


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[millstream.Millstream]:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))  # for checkpoints
    with millstream.open(tmp_path / "store.db") as ms:
        ms.log("orders").append_many([b"old"] * 3)
        yield ms


def run_of(store: millstream.Millstream, path: Path, log_id: int) -> TableRun:
    """Begin a run whose first batch is planned for the log with an id."""
    job = PipelineRun(cast(Any, None), str(store.stats()["path"]), quiet)
    run = TableRun(
        job, store.session, folder_of(path), "delta", ["orders"], by="", upserts=False,
        target_bytes=0, expire_ms=1,
    )  # fmt: skip
    run.starts()
    (run.checkpoint / "offsets").mkdir()
    position = msgspec.json.encode(packed({"orders": 3}, {"orders": log_id}))
    (run.checkpoint / "offsets" / "0").write_bytes(position)
    return run


@pytest.mark.parametrize("fails", [False, True])
def test_rows_of_a_log_that_is_made_anew_while_tasks_read_are_refused(
    store: millstream.Millstream, tmp_path: Path, fails: bool
) -> None:
    def make_anew() -> None:
        store.log("orders").delete()
        store.log("orders").append_many([b"new"] * 3)
        if fails:
            raise RuntimeError("a task failed")

    run = run_of(store, tmp_path / "lake", store.log("orders").info().id)
    with pytest.raises(
        Conflict, match=r"is of another log 'orders': .* Write the new log to another table"
    ):
        run.begin(cast(Any, BatchRows(batch(0, [b"new"] * 3), make_anew)), 0)
    assert run.sink.covered(["orders"]) == Covered()


def test_rows_of_a_log_that_is_deleted_behind_the_tasks_are_committed(
    store: millstream.Millstream, tmp_path: Path
) -> None:
    log_id = store.log("orders").info().id
    run = run_of(store, tmp_path / "lake", log_id)
    run.begin(cast(Any, BatchRows(batch(0, [b"old"] * 3), store.log("orders").delete)), 0)
    assert run.records == 3
    assert run.sink.covered(["orders"]) == Covered({"orders": 3}, {"orders": log_id})


def test_a_log_that_was_made_anew_and_deleted_again_is_refused(
    store: millstream.Millstream, tmp_path: Path
) -> None:
    log_id = store.log("orders").info().id
    run = run_of(store, tmp_path / "lake", log_id + 1)
    run.sink.commit(FileChange(covered=Covered({"orders": 2}, {"orders": log_id})))
    store.log("orders").delete()
    with pytest.raises(
        Conflict, match=r"is of another log 'orders': .* Write the new log to another table"
    ):
        run.begin(cast(Any, BatchRows(batch(0, []), lambda: None)), 0)


def test_an_upsert_keeps_the_latest_value_of_each_key(table: Table) -> None:
    assert table.upsert(orders(0, 25)) == 0
    assert [row["id"] for row in table.rows()] == list(range(15, 25))
    assert table.upsert(batch(25, [b'{"id": 25}', None, b'{"id": 27}'], [b"k3", b"k4", None])) == 1
    rows = {row["key"]: row["id"] for row in table.rows()}
    assert rows == {b"k%d" % (n % 10): n for n in (15, 16, 17, 18, 19, 20, 21, 22)} | {b"k3": 25}
    assert table.sink.covered(["orders"]).ends == {"orders": 28}


@pytest.mark.parametrize("kind", KINDS)
def test_random_upserts_end_as_a_dictionary_does(tmp_path: Path, kind: str) -> None:
    chance = random.Random(5)
    table = Table(tmp_path / "lake", kind, by=PartitionBy("land", by_day=False))
    expected: dict[bytes, int] = {}
    at = 0
    for _ in range(6):
        values, keys = list[bytes | None](), list[bytes | None]()
        for number in range(at, at + chance.randrange(1, 30)):
            key = b"%d" % chance.randrange(20)
            keys.append(key)
            if chance.random() < 0.2:
                values.append(None)
                expected.pop(key, None)
            else:
                values.append(json.dumps({"id": number, "land": chance.choice("ABC")}).encode())
                expected[key] = number
        table.upsert(batch(at, values, keys))
        at += len(values)
        assert {row["key"]: row["id"] for row in table.rows()} == expected


@pytest.mark.parametrize("kind", KINDS)
def test_two_writers_never_commit_the_same_records(tmp_path: Path, kind: str) -> None:
    first, second = Table(tmp_path / "lake", kind), Table(tmp_path / "lake", kind)
    first.append(orders(0, 5))
    with pytest.raises(Conflict, match="another writer changed the table"):
        second.append(orders(0, 5))
    assert [row["id"] for row in first.rows()] == list(range(5))


@pytest.mark.parametrize("kind", KINDS)
def test_values_of_a_log_without_a_schema_are_bytes(tmp_path: Path, kind: str) -> None:
    table = Table(tmp_path / "lake", kind, typed=False)
    table.append(batch(0, [b"\x00", b"", None]))
    assert [row["value"] for row in table.rows()] == [b"\x00", b"", None]


def test_delta_refuses_names_that_differ_in_case_alone(tmp_path: Path) -> None:
    nested = pa.struct([pa.field("id", pa.int64()), pa.field("ID", pa.string())])
    for fields in ([pa.field("n", pa.list_(nested))], list(nested)):
        columns = union([base_columns(), fields])
        with pytest.raises(InvalidInput, match=r"'id' and .*'ID'; write to an Iceberg table"):
            open_sink(folder_of(tmp_path / "new"), "delta", columns, BY_DATE, 1)
        old = open_sink(folder_of(tmp_path / "old"), "delta", base_columns(), BY_DATE, 1)
        with pytest.raises(InvalidInput, match="differ in upper and lower case alone"):
            old.prepare(columns)


def test_the_folder_of_an_archive_is_refused(tmp_path: Path) -> None:
    (tmp_path / "_manifest").mkdir()
    with pytest.raises(InvalidInput, match="is an archive; a continuous table needs a folder"):
        open_sink(folder_of(tmp_path), "delta", base_columns(), BY_DATE, 1)


def test_offsets_that_a_batch_lacks_are_named() -> None:
    def staged(topic: str, partition: int, offsets: list[int]) -> pa.Table:
        count = len(offsets)
        return pa.table(
            {"topic": [topic] * count, "partition": [partition] * count, "offset": offsets}
        )

    tables = [
        staged("orders", 0, [6, 3, 4]),
        staged("orders", 0, [9]),
        staged("parts", 1, [0, 1]),
    ]
    starts = {"orders": 2, "parts-partition-1": 0, "gone": 5}
    ends = {"orders": 10, "parts-partition-1": 2, "gone": 7}
    lost = missing_rows(tables, starts, ends)
    assert [(one.log, one.start, one.stop) for one in lost] == [
        ("orders", 2, 3),
        ("orders", 5, 6),
        ("orders", 7, 9),
        ("gone", 5, 7),
    ]
    assert lost[2].reason.startswith("log 'orders': the records at offsets 7 to 8 are")
