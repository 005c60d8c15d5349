"""The formats of files: how each is written and read. Imports little: the command line starts fast."""

from __future__ import annotations

from collections.abc import Iterator
from enum import StrEnum
from pathlib import PurePath
from typing import TYPE_CHECKING, BinaryIO, Protocol

from millstream.errors import InvalidInput

if TYPE_CHECKING:
    from millstream.exchange.rows import RowChunk
    from millstream.exchange.selection import ChosenRecords


class Format(StrEnum):
    """A format of records in a file."""

    JSONL = "jsonl"
    CSV = "csv"
    PARQUET = "parquet"


_SUFFIXES = {
    ".jsonl": Format.JSONL,
    ".ndjson": Format.JSONL,
    ".json": Format.JSONL,
    ".csv": Format.CSV,
    ".parquet": Format.PARQUET,
}


class RecordWriter(Protocol):
    """Writes records to a stream that the caller opens and closes."""

    def write(self, records: ChosenRecords) -> None:
        """Write records; they may wait in memory until `close`."""

    def close(self) -> None:
        """Write what waits, and the end of the file; the stream stays open."""


class RowReader(Protocol):
    """Reads the records of a stream in chunks; with `needs_log` each record must name a log."""

    def __call__(self, stream: BinaryIO, *, needs_log: bool) -> Iterator[RowChunk]: ...


def format_of(name: str, chosen: Format | None) -> Format:
    """Return the chosen format, else the format of a file's suffix, else JSON Lines for a stream."""
    if chosen is not None:
        return chosen
    if name == "-":
        return Format.JSONL
    format = _SUFFIXES.get(PurePath(name).suffix.lower())
    if format is None:
        raise InvalidInput(
            f"the suffix of {name!r} names no format: use --format jsonl, csv or parquet, or a suffix "
            f"of {', '.join(_SUFFIXES)}"
        )
    return format


def writer_of(format: Format, stream: BinaryIO) -> RecordWriter:
    """Return a writer of a format on a stream."""
    if format is Format.CSV:
        from millstream.exchange.csv_table import CsvWriter

        return CsvWriter(stream)
    if format is Format.PARQUET:
        _need_arrow()
        from millstream.exchange.parquet_table import ParquetWriter

        return ParquetWriter(stream)
    from millstream.exchange.json_lines import JsonLinesWriter

    return JsonLinesWriter(stream)


def reader_of(format: Format) -> RowReader:
    """Return the function that reads the rows of a format."""
    if format is Format.CSV:
        from millstream.exchange.csv_table import read_csv

        return read_csv
    if format is Format.PARQUET:
        _need_arrow()
        from millstream.exchange.parquet_table import read_parquet

        return read_parquet
    from millstream.exchange.json_lines import read_json_lines

    return read_json_lines


def _need_arrow() -> None:
    try:
        import pyarrow.parquet  # noqa: F401
    except ImportError:
        raise InvalidInput(
            "Parquet needs pyarrow, which is not installed: pip install 'millstream[arrow]'"
        ) from None
