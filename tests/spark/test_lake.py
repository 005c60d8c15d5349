"""Promise: an archive is a table too, of Iceberg or Delta: every record once, nothing copied."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

import millstream
from millstream import Millstream
from millstream.bench.objects import BUCKET, object_server, variables
from millstream.errors import Conflict, InvalidInput, Locked, NotFound
from millstream.record import wall_ms_of
from millstream.spark.archive import lake
from millstream.spark.archive.archive import Archive, Move, Segment, directory_of, path_of
from millstream.spark.archive.lake import delta_table, iceberg_table, register, version_at
from millstream.spark.archive.lake_columns import archive_schema
from millstream.spark.archive.partitioning import PartitionBy
from millstream.spark.archive.shape import file_shape
from millstream.spark.archive.table import TableLayout
from millstream.spark.archive.task import write_ranges
from millstream.spark.options import read_options
from millstream.spark.pipelines import merging
from millstream.spark.pipelines.merging import merge_small, settle_tables
from millstream.spark.place import reading
from millstream.spark.source.bins import Range
from millstream.spark.source.layout import schema_of
from millstream.spark.source.reader import LogReader

pytestmark = [
    pytest.mark.requires("lake"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::UserWarning"),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
]

LOGS = ("orders", "odd, name/50% [ü]", "empty")
KINDS = ("delta", "iceberg")


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Millstream]:
    with millstream.open(tmp_path / "store.db") as opened:
        yield opened


@pytest.fixture(scope="module")
def bucket() -> Iterator[str]:
    with object_server() as address, variables(address):
        yield f"s3://{BUCKET}"


@pytest.fixture(params=["disk", pytest.param("s3", marks=pytest.mark.requires("s3"))])
def archive(request: pytest.FixtureRequest, tmp_path: Path) -> Archive:
    if request.param == "disk":
        return Archive(tmp_path / "kept")
    return Archive(f"{request.getfixturevalue('bucket')}/{tmp_path.name}")


def keep(store: Millstream, archive: Archive, log: str, count: int) -> None:
    """Append records and archive them."""
    at = store.log(log).end_offset()
    numbers = range(at, at + count)
    store.log(log).append_many(
        [b"%d" % n for n in numbers],
        keys=[f"k{n}" for n in numbers],
        headers=[{"n": n} for n in numbers],
    )
    archive_rest(store, archive, log)


def archive_rest(store: Millstream, archive: Archive, log: str) -> None:
    """Archive what is new, as a round of the pipeline does, without a Java."""
    at = next((one.stop for one in reversed(archive.segments(log))), 0)
    end = store.log(log).end_offset()
    wanted = Range(log, at, end)
    created = wall_ms_of(next(info.created for info in store.logs() if info.name == log))
    given = {"path": str(store.stats()["path"]), "subscribePattern": ".*", "typedHeaders": "true"}
    with archive.writing():
        (written,) = write_ranges(
            read_options(given),
            [wanted],
            archive_schema(),
            folder=archive.folder,
            codec="zstd",
        )
        moves = [
            Move(
                staged=one.path,
                target=path_of(log, PartitionBy(), one, f"{at:020}-{number}.parquet"),
            )
            for number, one in enumerate(written.files)
        ]
        places = archive.move_in(moves)
        files = [replace(one, path=place) for one, place in zip(written.files, places, strict=True)]
        archive.add([Segment(log=log, created=created, start=at, stop=end, files=files, written=5)])


class Killed(BaseException):
    """Stands for the end of the process."""


def killer(at: str) -> Callable[[str], None]:
    """What ends a process when it comes to a point."""

    def point(name: str) -> None:
        if name == at:
            raise Killed

    return point


def rows_of(kind: str, archive: Archive, version: int | None = None) -> list[tuple[Any, ...]]:
    """Log, offset, value and a header of every row, read by the table's own library and DuckDB."""
    import duckdb

    if kind == "delta":
        table = delta_table(archive.path)
        if version is not None:
            table.load_as_version(version)
        found = table.to_pyarrow_table()
    else:
        found = iceberg_table(archive.path).scan(snapshot_id=version).to_arrow()
    assert found.num_rows >= 0
    columns = "topic, \"offset\", value, key, headers['n'].i"
    return duckdb.sql(f"select {columns} from found order by 1, 2").fetchall()


def expected(log: str, *numbers: int) -> list[tuple[Any, ...]]:
    return [(log, n, b"%d" % n, b"k%d" % n, n) for n in numbers]


@pytest.mark.parametrize("kind", KINDS)
def test_a_table_has_every_record_once_and_a_repeat_adds_nothing(
    store: Millstream, archive: Archive, kind: str
) -> None:
    keep(store, archive, LOGS[0], 30)
    keep(store, archive, LOGS[1], 5)
    first = register(archive, kind)
    assert (first.files, first.records) == (2, 35)
    again = register(archive, kind)
    assert (again.files, again.records, again.version) == (0, 0, first.version)
    whole = expected(LOGS[1], *range(5)) + expected(LOGS[0], *range(30))
    assert rows_of(kind, archive) == whole

    keep(store, archive, LOGS[0], 10)  # two rounds: a run between them was cut before its table
    keep(store, archive, LOGS[0], 2)
    assert register(archive, kind).records == 12
    whole = expected(LOGS[1], *range(5)) + expected(LOGS[0], *range(42))
    assert rows_of(kind, archive) == whole
    parquet = [name for name in archive.folder.names("") if name.endswith(".parquet")]
    assert len(parquet) == 4  # the archive's own files: nothing was copied
    assert all(name.startswith("log=") for name in parquet)


@pytest.mark.parametrize("kind", KINDS)
def test_a_table_is_found_as_it_was_at_an_offset(
    store: Millstream, archive: Archive, kind: str
) -> None:
    for count in (10, 5, 5):
        keep(store, archive, "orders", count)
        register(archive, kind)
    for offset, seen in ((10, 10), (14, 10), (15, 15), (19, 15), (20, 20), (99, 20)):
        version = version_at(archive, kind, "orders", offset)
        assert rows_of(kind, archive, version) == expected("orders", *range(seen))
    if kind == "iceberg":  # a Delta table has a version without a row
        with pytest.raises(NotFound, match="no version of the table ends before offset 3"):
            version_at(archive, kind, "orders", 3)


def test_a_delta_table_notes_the_end_of_each_log_as_a_transaction(
    store: Millstream, archive: Archive
) -> None:
    keep(store, archive, "a", 7)
    keep(store, archive, "b", 3)
    register(archive, "delta")
    table = delta_table(archive.path)
    assert [table.transaction_version(f"millstream:{log}") for log in "ab"] == [7, 3]


def merge(archive: Archive, *logs: str, target_bytes: int = 1_000_000) -> int:
    """Merge small files as the pipeline does, without a Java."""

    def in_tasks(work: Callable[[Any], bytes], some: Sequence[Any]) -> list[bytes]:
        return [work(one) for one in some]

    with archive.writing():
        return merge_small(in_tasks, archive, logs, target_bytes=target_bytes, codec="zstd")


def parquet_of(archive: Archive, log: str) -> list[str]:
    return archive.folder.names(directory_of(log))


def test_small_files_become_larger_ones_and_nothing_is_lost(
    store: Millstream, archive: Archive
) -> None:
    for count in (10, 5, 5):
        keep(store, archive, LOGS[1], count)
    size = archive.segments(LOGS[1])[0].files[0].bytes
    assert merge(archive, LOGS[1], target_bytes=size) == 0  # nothing fits
    assert merge(archive, LOGS[1]) == 3
    (segment,) = archive.segments(LOGS[1])
    assert (segment.start, segment.stop, len(segment.files)) == (0, 20, 1)
    assert (segment.files[0].rows, len(segment.replaced)) == (20, 3)
    assert settle_tables(archive, [LOGS[1]], keep_ms=10**9) == 3  # no table: they go at once
    assert parquet_of(archive, LOGS[1]) == [segment.files[0].path]
    assert archive.segments(LOGS[1])[0].replaced == []
    assert merge(archive, LOGS[1]) == 0
    keep(store, archive, LOGS[1], 1)
    assert register(archive, "delta").records == 21
    assert rows_of("delta", archive) == expected(LOGS[1], *range(21))


@pytest.mark.parametrize("kind", KINDS)
def test_a_table_follows_a_merge_in_one_commit_and_older_versions_last_until_they_expire(
    store: Millstream, archive: Archive, kind: str
) -> None:
    for count in (10, 5):
        keep(store, archive, LOGS[1], count)
        register(archive, kind)
    keep(store, archive, LOGS[0], 3)
    assert merge(archive, LOGS[0], LOGS[1]) == 2
    done = register(archive, kind)
    assert (done.files, done.removed) == (2, 2)
    whole = expected(LOGS[1], *range(15)) + expected(LOGS[0], *range(3))
    assert rows_of(kind, archive) == whole
    assert settle_tables(archive, LOGS, keep_ms=10**9) == 0
    early = version_at(archive, kind, LOGS[1], 12)
    assert rows_of(kind, archive, early) == expected(LOGS[1], *range(10))
    assert version_at(archive, kind, LOGS[1], 15) == done.version

    assert settle_tables(archive, LOGS, keep_ms=-10_000) == 2
    assert len(parquet_of(archive, LOGS[1])) == 1
    assert rows_of(kind, archive) == whole
    with pytest.raises(NotFound, match=r"expired|no version of the table ends before"):
        version_at(archive, kind, LOGS[1], 12)
    assert version_at(archive, kind, LOGS[1], 15) == done.version
    keep(store, archive, LOGS[1], 1)
    assert register(archive, kind).files == 1


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("at", ["table planned", "table committed"])
def test_a_registration_that_is_cut_is_completed_by_the_next(
    store: Millstream, archive: Archive, monkeypatch: pytest.MonkeyPatch, at: str, kind: str
) -> None:
    keep(store, archive, "orders", 4)
    register(archive, kind)
    keep(store, archive, "orders", 3)
    with monkeypatch.context() as patch:
        patch.setattr(lake, "point", killer(at))
        with pytest.raises(Killed):
            register(archive, kind)
    assert rows_of(kind, archive) == expected("orders", *range(7 if at == "table committed" else 4))
    register(archive, kind)
    assert rows_of(kind, archive) == expected("orders", *range(7))
    assert version_at(archive, kind, "orders", 7) != version_at(archive, kind, "orders", 6)


@pytest.mark.parametrize("at", ["merge staged", "merge moved", "merge noted"])
def test_a_merge_that_is_cut_anywhere_changes_nothing_that_is_read(
    store: Millstream, archive: Archive, monkeypatch: pytest.MonkeyPatch, at: str
) -> None:
    for count in (4, 3):
        keep(store, archive, "orders", count)
    register(archive, "delta")
    with monkeypatch.context() as patch:
        patch.setattr(merging, "point", killer(at))
        with pytest.raises(Killed):
            merge(archive, "orders")
    segments = archive.segments("orders")
    assert segments[-1].stop == sum(file.rows for one in segments for file in one.files) == 7
    register(archive, "delta")
    assert rows_of("delta", archive) == expected("orders", *range(7))
    archive.clean("orders", segments)
    assert merge(archive, "orders") == (0 if at == "merge noted" else 2)
    settle_tables(archive, ["orders"], keep_ms=-10_000)
    assert rows_of("delta", archive) == expected("orders", *range(7))
    assert len(parquet_of(archive, "orders")) == 1


@pytest.mark.parametrize("kind", KINDS)
def test_headers_may_come_go_and_change_their_type(
    store: Millstream, archive: Archive, kind: str
) -> None:
    log, seen = store.log("orders"), list[dict[str, Any]]()
    for headers in ({"n": 1}, {"n": "one", "new": 2.5}, {}, {"n": True}):
        log.append(b"x", headers=headers)
        archive_rest(store, archive, "orders")
        register(archive, kind)
        seen.append(headers)
    merge(archive, "orders")
    register(archive, kind)
    table = delta_table(archive.path).to_pyarrow_table() if kind == "delta" else None
    if table is None:
        table = iceberg_table(archive.path).scan().to_arrow()
    rows = sorted(table.to_pylist(), key=lambda row: row["offset"])
    found = [
        {name: next(v for v in typed.values() if v is not None) for name, typed in row["headers"]}
        for row in rows
    ]
    assert found == seen


def test_live_log_and_archive_are_one_table_also_after_a_merge(
    store: Millstream, archive: Archive
) -> None:
    for count in (10, 5):
        keep(store, archive, "orders", count)
    store.log("orders").truncate(before=15)
    store.log("orders").append_many([b"15", b"16"])
    assert read_here(store, archive) == list(range(17))
    merge(archive, "orders")
    assert read_here(store, archive) == list(range(17))
    settle_tables(archive, ["orders"], keep_ms=0)
    assert read_here(store, archive) == list(range(17))


def read_here(store: Millstream, archive: Archive) -> list[int]:
    """The offsets of a log and its archive, read as tasks of Spark do."""
    path = str(store.stats()["path"])
    options = read_options({"path": path, "archive": archive.path, "subscribe": "orders"})
    reader = LogReader(options, schema_of(options))
    found = [rows for task in reader.partitions() for rows in reader.read(task)]
    return sorted(offset for rows in found for offset in rows.column("offset").to_pylist())


def test_two_runs_do_not_write_to_one_archive(archive: Archive) -> None:
    other = Archive(archive.path)
    with (
        archive.writing(),
        pytest.raises(Locked, match="another run writes to the archive"),
        other.writing(),
    ):
        pass
    with other.writing():
        pass


def test_an_iceberg_table_can_be_in_a_catalog_that_is_configured(
    store: Millstream, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    uri = f"sqlite:///{tmp_path}/catalog.db"
    monkeypatch.setenv("PYICEBERG_CATALOG__MILLSTREAM__URI", uri)
    archive = Archive(tmp_path / "kept")
    keep(store, archive, "orders", 4)
    assert register(archive, "iceberg").records == 4
    from pyiceberg.catalog import load_catalog

    table = load_catalog("millstream", uri=uri).load_table(("millstream", "kept"))
    assert len(table.scan().to_arrow()) == 4
    with pytest.raises(Conflict, match="rename one of the folders"):
        register(Archive(tmp_path / "other" / "kept"), "iceberg")


def test_a_kind_that_there_is_not_is_refused(archive: Archive) -> None:
    with pytest.raises(InvalidInput, match="a table is one of iceberg, delta, not 'hudi'"):
        register(archive, "hudi")


SCHEMA = {
    "type": "object",
    "properties": {"id": {"type": "integer"}, "land": {"type": "string"}},
    "required": ["id"],
}


def keep_typed(store: Millstream, archive: Archive, kind: str, records: list[Any], by: str) -> None:
    """Append records and archive them with a column for each field, without a Java."""
    log = store.log("typed")
    at = log.end_offset()
    log.append_many([json.dumps(record).encode() for record in records])
    options = read_options({"path": str(store.stats()["path"]), "subscribePattern": ".*"})
    with archive.writing(), reading(options.place) as session:
        shape = file_shape(session, ["typed"], columns=True, by=by, table=True)
        (written,) = write_ranges(
            options, [Range("typed", at, at + len(records))], archive_schema(),
            folder=archive.folder, codec="zstd", by=shape.layout.by, typed=shape.typed,
        )  # fmt: skip
        moves = [
            Move(
                staged=one.path,
                target=path_of("typed", shape.layout.by, one, f"{at}-{number}.parquet"),
            )
            for number, one in enumerate(written.files)
        ]
        places = archive.move_in(moves)
        files = [replace(one, path=place) for one, place in zip(written.files, places, strict=True)]
        archive.add([
            Segment(log="typed", created=1, start=at, stop=at + len(records), files=files, written=5)
        ])  # fmt: skip
    register(archive, kind, shape.layout)


@pytest.mark.parametrize("kind", KINDS)
def test_typed_columns_follow_the_schema_in_the_partitions_of_a_column(
    store: Millstream, archive: Archive, kind: str
) -> None:
    store.log("typed", schema=SCHEMA)
    keep_typed(
        store, archive, kind, [{"id": 1, "land": "DE"}, {"id": 2}, {"id": 3, "land": "AT"}], "land"
    )
    properties = {**SCHEMA["properties"], "paid": {"type": "boolean"}}  # type: ignore[dict-item]
    store.log("typed", schema={**SCHEMA, "properties": properties})
    keep_typed(store, archive, kind, [{"id": 4, "land": "DE", "paid": True}], "land")
    folders = {name.split("/")[1] for name in parquet_of(archive, "typed")}
    assert folders == {"by_land=DE", "by_land=AT", "by_land=__HIVE_DEFAULT_PARTITION__"}

    def found() -> list[tuple[Any, ...]]:
        table = (
            delta_table(archive.path).to_pyarrow_table()
            if kind == "delta"
            else iceberg_table(archive.path).scan().to_arrow()
        )
        rows = sorted(table.to_pylist(), key=lambda row: row["offset"])
        return [
            (row["id"], row["land"], row["paid"], json.loads(row["value"])["id"]) for row in rows
        ]

    expected_rows = [(1, "DE", None, 1), (2, None, None, 2), (3, "AT", None, 3), (4, "DE", True, 4)]
    assert found() == expected_rows
    assert merge(archive, "typed") == 2
    register(archive, kind)
    assert found() == expected_rows
    with pytest.raises(InvalidInput, match=r"is partitioned by .*land.*, not by .*(date|day)"):
        register(archive, kind, TableLayout())
