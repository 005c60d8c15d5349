"""Applying: entries of other nodes in the shared log become rows of this node.

A follower applies many entries in one local commit. Every entry is checked against the chain of hashes
before it counts.
"""

from __future__ import annotations

from collections.abc import Collection, Container, Iterator
from typing import Any, cast

from millstream.cluster import entry as entries
from millstream.cluster.entry import Differs, EpochBody, Position, SharedCommit, SharedEntry
from millstream.cluster.node.position import LogProgress, NeedsSnapshot
from millstream.cluster.shared_log import Stored
from millstream.engine.commit import Commit, Row
from millstream.engine.protocol import ChangesetWriter, TablesDiffer, Writer

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
            try:
                cast(ChangesetWriter, writer).apply_changes(body.tables)
            except TablesDiffer as error:
                raise Differs(str(error)) from error
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


class Applier:
    """Applies entries as a follower; everything happens in the member's turn."""

    def __init__(self, progress: LogProgress, *, campaigns: Container[bytes]) -> None:
        """`campaigns` holds the ids of epoch entries that this process has sent."""
        self.replays = 0
        """Commits that were applied."""
        self.backlog = 0
        """Entries up to here were stored before this node joined: only wall clocks tell their age.
        """
        self._progress, self._campaigns = progress, campaigns

    def apply(self, read_entries: list[Stored]) -> bool:
        """Apply entries in order; return whether an entry closes the log.

        Raises `Differs` after applying all earlier entries, and `NeedsSnapshot`.
        """
        progress, is_closed = self._progress, False
        batch = EntryBatch(progress.position, progress.chunks, progress.chunks_of)
        for stored in read_entries:
            if stored.sequence <= batch.position.sequence:
                continue  # a repeated entry
            if stored.sequence != batch.position.sequence + 1:
                break  # missing entries are read again
            try:
                entry, epoch = batch.add(stored)
            except Differs:
                self._flush(batch)  # the earlier entries are valid
                raise
            progress.clock.follow(entry, live=stored.sequence > self.backlog)
            if epoch is not None:
                self._flush(batch)
                self._check_same(stored.sequence, epoch)
                progress.begin(entry.epoch, epoch, is_own=entry.id in self._campaigns)
            elif batch.is_full:
                self._flush(batch)
            is_closed = is_closed or entry.kind == entries.CLOSED
        self._flush(batch)
        progress.leadership.heard(progress.clock.seconds())
        return is_closed

    def _flush(self, batch: EntryBatch) -> None:
        """Store the gathered entries, with the position of the last noted entry."""
        progress = self._progress
        if batch.noted is not None:
            with progress.engine.write() as writer:
                batch.write(writer)
            self.replays += batch.commits
            progress.noted = batch.noted
            batch.clear()
        progress.chunks, progress.chunks_of = batch.chunks, batch.chunks_of
        progress.position = batch.position
        progress.tell()

    def _check_same(self, sequence: int, epoch: EpochBody) -> None:
        local_seq = self._progress.engine.last_seq()
        if local_seq == epoch.last_seq:
            return
        if sequence == 1 and not local_seq:  # the cluster began with a store that had rows
            raise NeedsSnapshot(f"the cluster began with a store of {epoch.node} that had rows")
        raise Differs(
            f"at entry {sequence} this store stands at commit {local_seq}, and that of {epoch.node} at "
            f"{epoch.last_seq}"
        )
