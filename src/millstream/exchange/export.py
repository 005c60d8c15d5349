"""Export: the chosen records of logs, written to a stream in one format, a few blocks at a time."""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, cast

from msgspec import Struct, field

from millstream.errors import CannotOpen
from millstream.exchange.formats import Format, writer_of
from millstream.exchange.selection import RecordSelection, exported_logs, named_logs
from millstream.threads.database import Millstream

Tell = Callable[[str, int, int], None]
"""Receives progress: the log, and how many records of the log were looked at, of how many."""


class ExportSummary(Struct):
    """The counts of an export."""

    format: str
    records: int = 0
    looked_at: int = 0
    """How many records were read; the others did not match."""
    bytes: int = 0
    logs: dict[str, int] = field(default_factory=dict)
    """The exported records of each log."""


def export(
    ms: Millstream,
    names: Sequence[str],
    stream: BinaryIO,
    *,
    format: Format,
    selection: RecordSelection,
    heard: Tell | None = None,
) -> ExportSummary:
    """Write the chosen records of logs to a stream.

    A log is exported as of the time when its turn comes. Records of a log are in offset order, and
    partitions come one after the other.
    """
    summary = ExportSummary(format=format.value)
    logs = [log for name in named_logs(ms, names) for log in exported_logs(ms, name, selection)]
    counting = _CountingStream(stream)
    writer = writer_of(format, cast(BinaryIO, counting))
    for log in logs:
        count, looked_at = 0, 0
        bounds = ms.log(log.name).extent()
        for records, block_count in selection.read(ms, log):
            if records.offsets:
                writer.write(records)
            count += len(records.offsets)
            looked_at += block_count
            if heard is not None:
                heard(log.name, looked_at, max(looked_at, bounds.end - bounds.start))
        summary.logs[log.name] = count
        summary.records += count
        summary.looked_at += looked_at
    writer.close()
    summary.bytes = counting.size
    return summary


class _CountingStream:
    """Counts the bytes that are written to a stream; pyarrow needs the other methods."""

    closed = False

    def __init__(self, stream: BinaryIO) -> None:
        self._stream = stream
        self.size = 0

    def write(self, data: bytes) -> int:
        self._stream.write(data)
        self.size += len(data)
        return len(data)

    def writable(self) -> bool:
        return True

    def readable(self) -> bool:
        return False

    def seekable(self) -> bool:
        return False

    def tell(self) -> int:
        return self.size

    def flush(self) -> None:
        self._stream.flush()

    def close(self) -> None:
        """Leave the stream open: it belongs to the caller."""


@contextmanager
def replaced_file(path: Path) -> Iterator[BinaryIO]:
    """Open a file to write; its name appears when the block ends, complete and synced.

    An error removes the partial file, and keeps a file that had the name before.
    """
    if not path.parent.is_dir():
        raise CannotOpen(
            f"{path}: the directory {path.parent} does not exist; create it first", path=str(path)
        )
    if path.is_dir():
        raise CannotOpen(f"{path} is a directory; name a file in it", path=str(path))
    partial = path.with_name(f".{path.name}.{secrets.token_hex(4)}.partial")
    try:
        with partial.open("xb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        partial.replace(path)
    except BaseException:
        partial.unlink(missing_ok=True)
        raise
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
