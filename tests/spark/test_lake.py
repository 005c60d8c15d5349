"""Promise: an archive is a table too, of Iceberg or Delta: every record once, nothing copied."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

import millstream
from millstream import Millstream
from millstream.errors import InvalidInput, NotFound
from millstream.spark.archive import Archive, Move, Segment
from millstream.spark.archiving import write_ranges
from millstream.spark.bins import Range
from millstream.spark.lake import archive_schema, delta_table, iceberg_table, register, version_at
from millstream.spark.options import read_options

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


@pytest.fixture
def archive(tmp_path: Path) -> Archive:
    return Archive(tmp_path / "kept")


def keep(store: Millstream, archive: Archive, log: str, count: int) -> None:
    """Append records and archive them, as a round of the pipeline does, without a Java."""
    at = store.log(log).end_offset()
    numbers = range(at, at + count)
    store.log(log).append_many(
        [b"%d" % n for n in numbers],
        keys=[f"k{n}" for n in numbers],
        headers=[{"n": n} for n in numbers],
    )
    wanted = Range(log, at, at + count)
    given = {"path": str(store.stats()["path"]), "subscribePattern": ".*", "typedHeaders": "true"}
    with archive.writing():
        (written,) = write_ranges(
            read_options(given),
            [wanted],
            archive_schema(),
            staged=str(archive.path / "_staging"),
            codec="zstd",
        )
        moves = [
            Move(staged=Path(one.path), log=log, date=one.date, name=f"{at:020}-{number}.parquet")
            for number, one in enumerate(written.files)
        ]
        places = archive.move_in(moves)
        files = [replace(one, path=place) for one, place in zip(written.files, places, strict=True)]
        archive.add(
            [Segment(log=log, created=1, start=at, stop=at + count, files=files, written=5)]
        )


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
    parquet = sorted(archive.path.glob("log=*/date=*/*.parquet"))
    assert len(parquet) == 4  # the archive's own files: nothing was copied
    assert not list(archive.path.glob("_*/**/*.parquet"))


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


def test_a_kind_that_there_is_not_is_refused(archive: Archive) -> None:
    with pytest.raises(InvalidInput, match="a table is one of iceberg, delta, not 'hudi'"):
        register(archive, "hudi")
