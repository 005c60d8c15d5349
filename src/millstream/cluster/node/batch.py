"""A batch: entries that a follower applies in one local commit, checked against the chain."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Any

from millstream.cluster import entry as entries
from millstream.cluster.entry import Differs, EpochBody, Position, SharedCommit, SharedEntry
from millstream.cluster.node import table_changes as changes
from millstream.cluster.shared_log import Stored
from millstream.engine.commit import Commit, Row
from millstream.engine.protocol import Writer

BATCH_BYTES_MAX = 4 * 1024 * 1024


class OneMore:
    """Rows, and an additional last row."""

    __slots__ = ("_last", "_rows")

    def __init__(self, rows: Collection[Row], last: Row) -> None:
        self._rows, self._last = rows, last

    def __len__(self) -> int:
        return len(self._rows) + 1

    def __contains__(self, row: object) -> bool:
        return row == self._last or row in self._rows

    def __iter__(self) -> Iterator[Row]:
        yield from self._rows
        yield self._last


class EntryBatch:
    """Consecutive entries behind a position."""

    def __init__(self, position: Position, chunks: list[bytes], chunks_of: bytes) -> None:
        self.position = position
        """The position behind the last added entry."""
        self.chunks, self.chunks_of = list(chunks), chunks_of
        """Pieces whose last piece has not arrived, and their id."""
        self.clear()

    def clear(self) -> None:
        """Start an empty batch: the gathered entries are stored."""
        self.noted: Position | None = None
        """The position behind the last noted entry."""
        self.commits = 0
        self.is_full = False
        self._merged = MergedCommits()
        self._bytes = 0
        self._tables: list[SharedCommit] = []

    def add(self, stored: Stored) -> tuple[SharedEntry, EpochBody | None]:
        """Add an entry; return the entry, and the body of an epoch. Raises `Differs`."""
        sequence, data = stored
        entry = entries.decode(sequence, data)
        if entry.previous != self.position.hash:
            raise Differs(
                f"entry {sequence} of the shared log does not follow what this store has applied: "
                "the log was exchanged or damaged, or this store belongs to another cluster"
            )
        position = entries.behind(self.position, data, entry)
        epoch: EpochBody | None = None
        if entry.kind == entries.CHUNK:
            self._add_chunk(entry)
        elif entry.kind == entries.COMMIT:
            self._add_commit(sequence, entry.body)
        elif entry.kind == entries.CHUNKED:
            self._add_commit(sequence, self._joined(sequence, entry))
        elif entry.kind == entries.EPOCH:
            self.chunks = []
            epoch = entries.decode_body(sequence, EpochBody, entry.body)
        elif entry.kind == entries.CLOSED:
            self.chunks = []
        self.position = position
        if entries.is_noted(entry.kind, sequence) and not self.chunks:
            self.noted = position
        return entry, epoch

    def write(self, writer: Writer) -> None:
        """Apply the gathered entries, with the position behind them."""
        assert self.noted is not None
        for body in self._tables:
            changes.apply(writer, body.tables)
        writer.commit(self._merged.finish(self.noted))

    def _add_chunk(self, entry: SharedEntry) -> None:
        if entry.id != self.chunks_of:
            self.chunks, self.chunks_of = [], entry.id
        self.chunks.append(entry.body)

    def _joined(self, sequence: int, entry: SharedEntry) -> bytes:
        said: Any = entries.decode_body(sequence, entries.ChunkedBody, entry.body)
        body = b"".join(self.chunks) if entry.id == self.chunks_of else b""
        if len(self.chunks) != said.chunks or len(body) != said.size:
            raise Differs(f"entry {sequence} of the shared log ends chunks that are not there")
        return body

    def _add_commit(self, sequence: int, data: bytes) -> None:
        body: SharedCommit = entries.decode_body(sequence, SharedCommit, data)
        self._merged.add(body)
        if body.tables:
            self._tables.append(body)
        self.chunks = []
        self.commits += 1
        self._bytes += len(data)
        self.is_full = self._bytes > BATCH_BYTES_MAX


class MergedCommits:
    """Several commits merged into one with the same effect on the rows."""

    def __init__(self) -> None:
        self._rows: dict[bytes, bytes] = {}
        self._deletes: set[bytes] = set()
        self._ranges: list[tuple[bytes, bytes]] = []

    def add(self, body: SharedCommit) -> None:
        """Add a commit behind the commits that were added before."""
        rows = self._rows
        for key in body.deletes:
            rows.pop(key, None)
        self._deletes.update(body.deletes)
        for start, stop in body.ranges:
            for key in [key for key in rows if start <= key < stop]:
                del rows[key]
        self._ranges += body.ranges
        rows.update(body.rows)

    def finish(self, position: Position) -> Commit:
        """Return the merged commit, with the position behind it."""
        self._rows.update((position.row(),))
        return Commit(list(self._rows.items()), list(self._deletes), self._ranges)
