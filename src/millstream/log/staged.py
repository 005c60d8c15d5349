"""The staged records of a staging handle, without I/O, for threads and coroutines.

Each commit carries the token of the handle as a producer, and a sequence. So the outcome of a commit can
be asked for later: `probe` stores nothing, and tells whether the commit was stored.
"""

from __future__ import annotations

from msgspec.structs import replace

from millstream.format import block
from millstream.format.packing import Batch, Single, batch_of
from millstream.header import Headers
from millstream.limits import Limits
from millstream.log import commands as c
from millstream.log.model.names import NUMBER_MAX
from millstream.record import Producer, Record


class Staged:
    """Records to append at the end of a log."""

    def __init__(self, log: str, token: str, end: int, *, section: int, limits: Limits) -> None:
        self.committed = end
        self.records: list[Single] = []
        self.in_doubt = False
        """Whether the outcome of a commit is unknown."""
        self._log = log
        self._token = token
        self._section = section
        self._limits = limits
        self._bytes = 0
        self._sequence = 0
        self._by_call = False
        """Whether the commit in doubt was made while staging the last record, whose caller got the error."""
        self._repeatable: tuple[Single, int] | None = None
        """A stored record whose caller got an error, and its offset."""

    def add(self, record: Single) -> int:
        """Stage a record; return its offset."""
        self.records.append(record)
        self._bytes += _size(record)
        return self.committed + len(self.records) - 1

    def is_full(self) -> bool:
        """Return whether the records must be committed: a section is full, or the batch is large."""
        count, limits = len(self.records), self._limits
        return (
            (self.committed + count) % self._section == 0
            or count >= limits.batch_records_max
            or self._bytes > limits.batch_bytes_max // 2
        )

    def visible(self) -> list[Single]:
        """Return the records that readers see, without a record whose caller got an error."""
        return self.records[:-1] if self.in_doubt and self._by_call else self.records

    # Commits.

    def begin(self, *, by_call: bool) -> c.Append:
        """Return the command that commits the records; in doubt until its outcome is reported."""
        self.in_doubt, self._by_call = True, by_call
        return self._command(self.committed)

    def probe(self) -> c.Append:
        """Return a command that asks for the outcome of the commit in doubt, and stores nothing.

        It expects an end that no log has. The store answers a stored sequence before it checks the end.
        """
        return self._command(NUMBER_MAX)

    def succeeded(self) -> None:
        """Note that the commit was stored."""
        self.in_doubt = False
        self.committed += len(self.records)
        self._sequence += 1
        self.clear()

    def failed(self) -> None:
        """Note that nothing was stored, and drop a record whose caller got the error."""
        self.in_doubt = False
        if self._by_call:
            self._bytes -= _size(self.records.pop())

    def was_stored(self) -> None:
        """Note that the commit in doubt was stored."""
        if self._by_call:
            self._repeatable = self.records[-1], self.committed + len(self.records) - 1
        self.succeeded()

    def repeated(self, record: Single, *, timed: bool) -> int | None:
        """Return the offset of a record that is staged again after an error, if it was stored."""
        stored, self._repeatable = self._repeatable, None
        if stored is None or (timed and stored[0].timestamp_ms != record.timestamp_ms):
            return None
        before, offset = stored
        is_same = replace(before, timestamp_ms=record.timestamp_ms) == record
        return offset if is_same else None

    def clear(self) -> int:
        """Drop the staged records; return their number."""
        gone = len(self.records)
        self.records, self._bytes = [], 0
        return gone

    def _command(self, end: int) -> c.Append:
        records = self.records[0] if len(self.records) == 1 else _batch(self.records)
        producer = Producer(self._token, self._sequence)
        return c.Append(self._log, records, end, producer, self._token)


def _size(record: Single) -> int:
    return len(record.value or b"") + len(record.headers) + len(record.key or b"")


def _batch(records: list[Single]) -> Batch:
    """Pack staged records into a batch."""
    payload = block.encode_values([record.value or b"" for record in records])
    columns, metadata = block.encode_metadata(
        timestamps=[record.timestamp_ms or 0 for record in records],
        keys=[r.key for r in records] if any(r.key is not None for r in records) else None,
        headers=[r.headers for r in records] if any(r.headers for r in records) else None,
        valid=[r.value is not None for r in records],
    )
    return batch_of(len(records), payload, columns, metadata, None)


def staged_record(log: str, offset: int, record: Single) -> Record:
    """Return a staged record for readers of the handle, without an append time."""
    return Record(
        log,
        offset,
        record.value,
        record.timestamp_ms or 0,
        record.key,
        Headers(record.headers),
    )
