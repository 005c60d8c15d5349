"""What a staging handle holds, without I/O: the same for threads and coroutines.

Each commit carries the handle's token as a producer, and a sequence. So a commit whose outcome
is unknown can be asked for afterwards: `probe` stores nothing, and tells whether it was stored.
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
    """Records that are to follow a log's end."""

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
        """Whether that commit was part of staging the last record, whose caller got the error."""
        self._repeatable: tuple[Single, int] | None = None
        """A record whose caller got an error, although it was stored, and its offset."""

    def add(self, record: Single) -> int:
        """Stage a record; its offset."""
        self.records.append(record)
        self._bytes += _size(record)
        return self.committed + len(self.records) - 1

    def is_full(self) -> bool:
        """Whether what is staged must be committed: a section is full, or the batch is large."""
        count, limits = len(self.records), self._limits
        return (
            (self.committed + count) % self._section == 0
            or count >= limits.batch_records_max
            or self._bytes > limits.batch_bytes_max // 2
        )

    def visible(self) -> list[Single]:
        """What readers see: not a record whose caller got an error."""
        return self.records[:-1] if self.in_doubt and self._by_call else self.records

    # Commits.

    def begin(self, *, by_call: bool) -> c.Append:
        """The command that commits what is staged; in doubt until its outcome is reported."""
        self.in_doubt, self._by_call = True, by_call
        return self._command(self.committed)

    def probe(self) -> c.Append:
        """The same as a question: it expects an end that no log has, so nothing is stored by it.

        A sequence that was stored is answered before the end is looked at.
        """
        return self._command(NUMBER_MAX)

    def succeeded(self) -> None:
        """What was asked for is stored."""
        self.in_doubt = False
        self.committed += len(self.records)
        self._sequence += 1
        self.clear()

    def failed(self) -> None:
        """Nothing was stored; a record whose caller got the error is no longer staged."""
        self.in_doubt = False
        if self._by_call:
            self._bytes -= _size(self.records.pop())

    def was_stored(self) -> None:
        """The commit in doubt was stored after all."""
        if self._by_call:
            self._repeatable = self.records[-1], self.committed + len(self.records) - 1
        self.succeeded()

    def repeated(self, record: Single, *, timed: bool) -> int | None:
        """The offset of a record that is staged again after an error, and was stored nevertheless."""
        found, self._repeatable = self._repeatable, None
        if found is None or (timed and found[0].timestamp_ms != record.timestamp_ms):
            return None
        before, offset = found
        same = replace(before, timestamp_ms=record.timestamp_ms) == record
        return offset if same else None

    def clear(self) -> int:
        """Drop what is staged; how many records."""
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
    """Several staged records as one batch."""
    payload = block.encode_values([record.value or b"" for record in records])
    columns, metadata = block.encode_metadata(
        timestamps=[record.timestamp_ms or 0 for record in records],
        keys=[r.key for r in records] if any(r.key is not None for r in records) else None,
        headers=[r.headers for r in records] if any(r.headers for r in records) else None,
        valid=[r.value is not None for r in records],
    )
    return batch_of(len(records), payload, columns, metadata, None)


def staged_record(log: str, offset: int, record: Single) -> Record:
    """A staged record as readers of the handle see it; it has no time of its append yet."""
    return Record(
        log,
        offset,
        record.value,
        record.timestamp_ms or 0,
        record.key,
        Headers(record.headers),
    )
