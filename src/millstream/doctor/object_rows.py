"""The rows of a store in a bucket, read by the doctor without fencing the writer.

The doctor compares the objects that the store names with a listing, and names a missing object
before its rows. The walk ends with a finding where SlateDB cannot read on.
"""

from __future__ import annotations

from collections.abc import Iterator

from millstream.clock import SystemClock
from millstream.doctor.examined import Found, Progress
from millstream.doctor.findings import Findings
from millstream.engine.slate.examined import ExaminedBucket
from millstream.errors import MillstreamError
from millstream.format import keys
from millstream.format.version import FORMAT

_UNRECORDED = {keys.PAYLOAD: "payload", keys.PAYLOAD_BLOCK: "payload_block", keys.DELTA: "delta"}
"""Types without records, which are walked by number."""


class ObjectRows:
    """The rows of a bucket as the doctor walks them, in one snapshot; close it when done."""

    format = FORMAT
    page_checksums = True
    backend = "SlateDB"

    def __init__(self, address: str, findings: Findings, progress: Progress) -> None:
        self._bucket = ExaminedBucket(address)
        self._findings, self._progress = findings, progress
        self._stage, self._done = "", 0

    def close(self) -> None:
        """Let go of the bucket."""
        self._bucket.close()

    def get(self, key: bytes) -> bytes | None:
        """The value of a key."""
        return self._bucket.snapshot.get(key)

    def scan(self, start: bytes, stop: bytes, *, limit: int) -> list[tuple[bytes, bytes]]:
        """Up to `limit` rows with start <= key < stop."""
        return self._bucket.snapshot.scan(start, stop, limit=limit)

    def last_seq(self) -> int:
        """The sequence of the newest delta."""
        return self._bucket.snapshot.last_seq()

    def enter(self, stage: str) -> None:
        """Say what is looked at from now on."""
        self._stage = stage
        self._progress(stage, self._done, 0)

    def integrity(self) -> list[str]:
        """Return the named objects that the bucket lacks."""
        missing = self._bucket.missing()
        if missing:
            self._findings.report.complete = False
        for line in self._bucket.left_over(SystemClock().wall_ms()):
            text = f"{line}, of a job that did not end well; the server removes them after a week"
            self._findings.add("file", text, severity="waste")
        return [f"the object {name} is missing" for name in missing]

    def count(self) -> dict[str, int]:
        """Counting would read everything once more."""
        return {}

    def payload(self, key: bytes) -> bytes | None:
        """As `get`, and counted as checked."""
        value = self.get(key)
        if value is not None:
            self._count(key, len(value))
        return value

    def walk(self, start: bytes, stop: bytes) -> Iterator[Found]:
        """Every record with start <= key < stop, in order."""
        for row in self._walk(start, stop):
            if row.key[1] not in _UNRECORDED:
                yield row

    def walk_deltas(self) -> Iterator[Found]:
        """Every delta, in order."""
        yield from self._walk(*keys.range_of(keys.prefix(keys.DELTA)))

    def numbers(self, kind: int) -> Iterator[tuple[int, int]]:
        """The number and size of every payload or payload block."""
        for row in self._walk(*keys.range_of(keys.prefix(kind)), counted=False):
            yield keys.number(row.key), len(row.value)

    def _walk(self, start: bytes, stop: bytes, *, counted: bool = True) -> Iterator[Found]:
        try:
            for key, value, is_sound in self._bucket.walk(start, stop):
                if counted and key[1] not in (keys.PAYLOAD, keys.PAYLOAD_BLOCK):
                    self._count(key, len(value))
                yield Found(key, value, "" if is_sound else "its checksum does not fit")
        except MillstreamError as error:
            self._findings.report.complete = False
            self._findings.add("file", f"{self._stage}: rows cannot be read to their end: {error}")

    def _count(self, key: bytes, size: int) -> None:
        report = self._findings.report
        name = _UNRECORDED.get(key[1], "record")
        report.rows[name] = report.rows.get(name, 0) + 1
        report.bytes += size
        self._done += 1
        if self._done % 256 == 0:
            self._progress(self._stage, self._done, 0)
