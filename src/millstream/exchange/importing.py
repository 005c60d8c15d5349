"""Import: the records of files, appended to logs in batches, each record once.

Every row of a file is checked first, so that nothing of a bad file is stored. Then the records are
appended in batches; a large file is read again for that. Each batch has a sequence of a producer
whose name comes from the bytes of the file. A repeated import, or the next run of an interrupted
import, makes equal batches with equal sequences, and the store recognises the batches that it has.

A thread stores one batch while the caller's thread makes the next one: a commit waits for the disk, or
for the server, a third of the time.
"""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from types import TracebackType
from typing import BinaryIO, NamedTuple, Self

from msgspec import Struct, field

from millstream.clock import SystemClock
from millstream.errors import InvalidInput, NotFound, OutOfSequence
from millstream.exchange.formats import RowReader
from millstream.exchange.rows import BadRow, RecordColumns, RowChunk, check_target
from millstream.format.packing import Batch, Single, pack_checked
from millstream.limits import MiB
from millstream.log.commands import Append
from millstream.partitioning import key_partition, partition_name, partition_of
from millstream.record import Producer
from millstream.threads.database import Millstream

BATCH_RECORDS = 5_000
BATCH_BYTES = 4 * MiB
"""The size of a batch; a change needs another `_BATCHING`, because repeats must make equal batches."""

GATHERED_RECORDS_MAX = 50_000
GATHERED_BYTES_MAX = 32 * MiB
"""How much waits for full batches, over all logs of a file."""

KEPT_BYTES_MAX = 32 * MiB
"""Keys and values of a checked file that stay in memory until they are stored."""

DIGEST_BYTES = 1 * MiB
SHOWN_BAD = 5
"""Bad rows that an error describes."""

_BATCHING = "1"
"""The version of the rules that cut a file into batches; a part of the producer's name."""

Tell = Callable[[str, int, int], None]
"""Receives progress: the stage, how many bytes or rows are done, and the total or 0."""


class ImportSummary(Struct):
    """The counts of an import."""

    stored: int = 0
    repeated: int = 0
    """Records that an earlier import of the same file had stored."""
    bad: int = 0
    """Rows that were left out."""
    bad_rows: list[BadRow] = field(default_factory=list)
    """The first bad rows."""
    logs: dict[str, int] = field(default_factory=dict)
    """The stored records of each log."""


def check_rows(chunks: Iterable[RowChunk], heard: Tell | None = None) -> list[RowChunk] | None:
    """Read all rows; raise `InvalidInput` for bad ones.

    Return the chunks of a small file, which need not be parsed again; None for a larger file.
    """
    bad: list[BadRow] = []
    checked_chunks: list[RowChunk] | None = []
    bad_count = done = kept_bytes = 0
    for chunk in chunks:
        bad_count += len(chunk.bad)
        bad += chunk.bad[: SHOWN_BAD - len(bad)]
        done += chunk.size
        kept_bytes += chunk.records.size()
        if kept_bytes > KEPT_BYTES_MAX:
            checked_chunks = None
        if checked_chunks is not None:
            checked_chunks.append(chunk)
        if heard is not None:
            heard("checking", done, 0)
    if bad_count:
        raise bad_input(bad, bad_count, "nothing was stored")
    return checked_chunks


def bad_input(bad: list[BadRow], count: int, stored: str) -> InvalidInput:
    """Return the error for bad rows."""
    shown = "; ".join(f"line {row.row}: {row.reason}" for row in bad)
    omitted = f"; and {count - len(bad):,} more bad lines" if count > len(bad) else ""
    return InvalidInput(f"{shown}{omitted}; {stored}; --skip-bad leaves bad lines out")


class RecordImport:
    """Appends the records of one file to the logs of a store; a context that ends with its last append."""

    def __init__(
        self, ms: Millstream, summary: ImportSummary, *, log: str | None, identity: str | None
    ) -> None:
        self._ms = ms
        self._summary = summary
        self._log = None if log is None else check_target(log)
        self._producer = None
        if identity is not None:
            source = hashlib.blake2b(
                f"{_BATCHING}\n{log or ''}\n{identity}".encode(), digest_size=16
            )
            self._producer = f"import:{source.hexdigest()}"
        self._targets: dict[tuple[str, int], _Target] = {}
        self._logs: dict[str, _LogBatch] = {}
        self._gathered_records = self._gathered_bytes = self._chunks = 0
        self._beside = ThreadPoolExecutor(1, thread_name_prefix="millstream-import")
        self._under_way: _UnderWay | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._beside.shutdown()

    def add(self, records: RecordColumns) -> None:
        """Add the records of a chunk to the batches of their logs; full batches are stored.

        Each run cuts a file into equal chunks. So the end of a chunk may end a batch.
        """
        for name, log_records in self._by_log(records):
            batch = self._logs.get(name)
            if batch is None:
                batch = self._logs[name] = _LogBatch(self._ms.log(name).end_offset())
            size = batch.add(log_records)
            self._gathered_records += len(log_records)
            self._gathered_bytes += size
            if len(batch.values) >= BATCH_RECORDS or batch.size >= BATCH_BYTES:
                self._store(name, batch)
        if (
            self._gathered_records >= GATHERED_RECORDS_MAX
            or self._gathered_bytes >= GATHERED_BYTES_MAX
        ):
            self._store_all()

    def finish(self) -> None:
        """Store the batches that are not full, and wait for the last append."""
        self._store_all()
        self.settle()

    def _store_all(self) -> None:
        for name, batch in self._logs.items():
            self._store(name, batch)

    def _by_log(self, records: RecordColumns) -> Iterator[tuple[str, RecordColumns]]:
        """Yield the records of each log in their order."""
        names = records.logs if self._log is None else [self._log] * len(records)
        places = set(zip(names, records.partitions, strict=True))
        for place in places - self._targets.keys():
            self._targets[place] = _target(self._ms, *place)
        if len(places) == 1 and (name := self._targets[places.pop()].only_log()) is not None:
            yield name, records
            return
        indexes: dict[str, list[int]] = {}
        for index, place in enumerate(zip(names, records.partitions, strict=True)):
            name = self._targets[place].log_for(records.keys[index], self._chunks)
            indexes.setdefault(name, []).append(index)
        self._chunks += 1
        for name, chosen in indexes.items():
            columns = [
                [getattr(records, field)[index] for index in chosen]
                for field in RecordColumns.__struct_fields__
            ]
            yield name, RecordColumns(*columns)

    def _store(self, name: str, batch: _LogBatch) -> None:
        """Store all records of a batch, in appends of a bounded number of records."""
        for records in batch.slices(BATCH_RECORDS):
            packed = self._packed(records)
            self.settle()
            if batch.sequence < batch.sequences_known:
                self._summary.repeated += len(records)
            else:
                producer = None
                if self._producer is not None:
                    producer = Producer(self._producer, batch.sequence)
                append = Append(name, packed, None, producer)
                answer = self._beside.submit(self._ms.session.execute, append)
                self._under_way = _UnderWay(answer, name, batch, batch.sequence, len(records))
            batch.sequence += 1
        self._gathered_records -= len(batch.values)
        self._gathered_bytes -= batch.size
        batch.clear()

    def _packed(self, records: RecordColumns) -> Single | Batch:
        timestamps = records.timestamps
        if None in timestamps:
            now_ms = SystemClock().wall_ms()
            timestamps = [now_ms if ms is None else ms for ms in timestamps]
        return pack_checked(
            records.values,
            keys=records.keys,
            header_cells=records.headers,
            timestamps=timestamps,  # type: ignore[arg-type]
            limits=self._ms.session.limits,
        )

    def settle(self) -> None:
        """Wait for the append that is under way, and count its records."""
        under_way, self._under_way = self._under_way, None
        if under_way is None:
            return
        answer, name, batch, sequence, count = under_way
        summary = self._summary
        try:
            is_repeat = answer.result() < batch.end_before
        except OutOfSequence as error:
            if error.expected <= sequence:
                raise
            batch.sequences_known = error.expected  # the store forgot the offsets of old batches
            is_repeat = True
        if is_repeat:
            summary.repeated += count
        else:
            summary.stored += count
            summary.logs[name] = summary.logs.get(name, 0) + count


class _LogBatch:
    """The records of one log that wait to be stored, and the sequence of their batch."""

    def __init__(self, end_before: int) -> None:
        self.sequence = 0
        self.sequences_known = 0
        """Batches below this sequence are stored."""
        self.end_before = end_before
        """Where the log ended before the import; a batch below it is a repeat."""
        self.clear()

    def clear(self) -> None:
        """Forget the records."""
        self.values: list[bytes | None] = []
        self._keys: list[bytes | None] = []
        self._headers: list[bytes] = []
        self._timestamps: list[int | None] = []
        self.size = 0

    def add(self, records: RecordColumns) -> int:
        """Add records, and return their size."""
        self.values += records.values
        self._keys += records.keys
        self._headers += records.headers
        self._timestamps += records.timestamps
        size = records.size()
        self.size += size
        return size

    def slices(self, count_max: int) -> Iterator[RecordColumns]:
        """Yield the records in slices of a bounded number."""
        for first in range(0, len(self.values), count_max):
            chosen = slice(first, first + count_max)
            yield RecordColumns(
                [],
                self.values[chosen],
                self._keys[chosen],
                self._headers[chosen],
                self._timestamps[chosen],
                [],
            )


class _UnderWay(NamedTuple):
    """An append that is being stored."""

    answer: Future[int]
    log: str
    batch: _LogBatch
    sequence: int
    records: int


class _Target:
    """The target of records with equal names: a log, a partition, or partitions by key."""

    def __init__(self, name: str, partitions: int, partition: int | None) -> None:
        self._names = [partition_name(name, number) for number in range(partitions)] or [name]
        self._partition = partition

    def only_log(self) -> str | None:
        """Return the log, if all records go to one."""
        if len(self._names) == 1:
            return self._names[0]
        return None if self._partition is None else self._names[self._partition]

    def log_for(self, key: bytes | None, turn: int) -> str:
        """Return the log of a record; records without a key take partitions in turns."""
        name = self.only_log()
        if name is not None:
            return name
        if key is None:
            return self._names[turn % len(self._names)]
        return self._names[key_partition(key, len(self._names))]


def _target(ms: Millstream, name: str, partitions: int) -> _Target:
    """Return the target of a name; create a log with partitions if it does not exist.

    A record of a partition keeps its partition, if the log has as many partitions as the exported
    log had. Otherwise its key determines the partition.
    """
    place = partition_of(name)
    base_log, number = place or (name, None)
    try:
        count = ms.partitioned_log(base_log).partitions
    except NotFound:
        if number is None:
            return _Target(name, 0, None)
        if partitions <= number:
            raise InvalidInput(
                f"{name!r} is a partition, and log {base_log!r} does not exist: create it first, with "
                f"`millstream log create {base_log} --partitions N`"
            ) from None
        ms.log(base_log, partitions=partitions).create()
        count = partitions
    return _Target(base_log, count, number if partitions in (0, count) else None)


class CheckedFile(Struct):
    """A file or pipe that is ready to be stored."""

    chunks: Iterable[RowChunk]
    identity: str | None
    """The digest of the file's bytes; a pipe has no identity."""


def checked_file(
    stream: BinaryIO, read: RowReader, *, needs_log: bool, skip_bad: bool, heard: Tell | None = None
) -> CheckedFile:
    """Check the rows of a file, before anything is stored.

    Raises `InvalidInput` for bad rows unless `skip_bad`. A pipe cannot be read twice: the
    import checks its rows while storing them.
    """
    if not _is_file(stream):
        return CheckedFile(read(stream, needs_log=needs_log), None)
    before = os.fstat(stream.fileno())
    checked_chunks = None
    with ThreadPoolExecutor(1) as beside:  # the digest takes a fifth of the time of the check
        digest = beside.submit(_digest, stream.fileno())
        if not skip_bad:
            checked_chunks = check_rows(read(stream, needs_log=needs_log), heard)
            stream.seek(0)
        identity = digest.result()
    after = os.fstat(stream.fileno())
    if (before.st_size, before.st_mtime_ns) != (after.st_size, after.st_mtime_ns):
        raise InvalidInput("the file changed while it was read; nothing was stored")
    return CheckedFile(
        read(stream, needs_log=needs_log) if checked_chunks is None else checked_chunks, identity
    )


def _digest(file: int) -> str:
    """Return the digest of a file's bytes; the position of the file stays."""
    digest = hashlib.blake2b(digest_size=16)
    position = 0
    while data := os.pread(file, DIGEST_BYTES, position):
        digest.update(data)
        position += len(data)
    return digest.hexdigest()


def _is_file(stream: BinaryIO) -> bool:
    """Return whether a stream is a file that can be read twice."""
    try:
        return stat.S_ISREG(os.fstat(stream.fileno()).st_mode)
    except (OSError, ValueError):
        return False


def import_file(
    ms: Millstream,
    file: CheckedFile,
    summary: ImportSummary,
    *,
    log: str | None = None,
    identity: str | None = None,
    skip_bad: bool = False,
    heard: Tell | None = None,
) -> None:
    """Store the records of a file or pipe, and count them in a summary.

    A bad row raises `InvalidInput` unless `skip_bad`: rows behind it are not stored; of the rows before
    it the full batches are stored. `identity` replaces the digest of the file.
    """
    done = 0
    with RecordImport(ms, summary, log=log, identity=identity or file.identity) as importing:
        for chunk in file.chunks:
            if chunk.bad:
                if not skip_bad:
                    importing.settle()
                    stored = f"{summary.stored + summary.repeated:,} records before them are stored"
                    raise bad_input(list(chunk.bad[:SHOWN_BAD]), len(chunk.bad), stored)
                summary.bad += len(chunk.bad)
                summary.bad_rows += chunk.bad[: SHOWN_BAD - len(summary.bad_rows)]
            importing.add(chunk.records)
            done += chunk.size
            if heard is not None:
                heard("storing", done, 0)
        importing.finish()
