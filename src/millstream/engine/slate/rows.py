"""Rows in SlateDB: cells with checksums, images of all rows as of one commit, and prefetch.

Prefetch. Payload blocks that are read in order are fetched several at a time. A block that is read
alone costs one request, so a claim fetches only the blocks that it hands out. A reader that continues
with later blocks gets two and then eight at once, and then a stream: SlateDB has several requests
in flight while the reader works. Measured with a latency of 300 ms per request: half a million
records in 2.0 s instead of 8.8 s.

Large commits. Payload blocks of a commit that does not fit into memory are written before it. Rows
refer to a block only in the commit itself, the last batch, so no reader sees the blocks earlier. A
row, the mark, names them. The first batch puts the mark, the commit deletes it, and both are atomic.
If the mark is found after a crash, the commit was never made, and its blocks are deleted.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

from millstream.engine.checksum import checked, row_checksum
from millstream.engine.commit import Commit, Row, SpooledRows
from millstream.engine.slate.binding import Binding, Cell
from millstream.errors import CorruptionError, MillstreamError, StoreError
from millstream.format import keys
from millstream.limits import MiB

STEPS = (2, 8)
STREAMED = 32
"""Blocks that one read takes from a stream."""

BYTES_MAX = 8 * 1024 * 1024
"""Bytes of one prefetch, estimated by the size of the last block."""

_BLOCKS, _STOP = keys.range_of(keys.prefix(keys.PAYLOAD_BLOCK))

CRC_BYTES = 4
SCAN_ROWS = 1_000
"""Rows of one step through a range that a commit deletes."""

MARK = keys.payload_block(2**64 - 1)
"""The key of the mark: its value is the keys of the first and the last early block. No message has
that id."""

_DELTAS = keys.range_of(keys.prefix(keys.DELTA))

EARLY_BYTES = 32 * MiB
"""Bytes of blocks in one early batch; a batch has at least one block."""

STEP_ROWS = 16
"""Blocks of one step while early blocks are deleted: each block may have megabytes."""


class ReadAhead:
    """Payload blocks of one image that were prefetched."""

    def __init__(self, binding: Binding, view: Any) -> None:
        self._binding, self._view = binding, view
        self._lock = threading.Lock()
        self._rows: dict[bytes, Cell] = {}
        self._last, self._size, self._step = b"", 1, 0
        self._stream: Any = None

    def get(self, key: bytes) -> Cell | None:
        """Return the payload block of a key; prefetch later blocks if reads come in order."""
        if not self._lock.acquire(blocking=False):
            return self._binding.get(self._view, key)  # another thread reads in a different order
        try:
            cell = self._fetch(key)
            if cell is not None:
                self._last, self._size = key, len(cell)
            return cell
        finally:
            self._lock.release()

    def _fetch(self, key: bytes) -> Cell | None:
        if key in self._rows:
            return self._rows.pop(key)
        continues = self._last < key and bool(self._last)
        if continues and not self._rows:
            self._rows = dict(self._next(key))
            if key in self._rows:
                return self._rows.pop(key)
        self._rows, self._step, self._stream = {}, 0, None
        return self._binding.get(self._view, key)

    def _next(self, key: bytes) -> list[tuple[bytes, Cell]]:
        """Fetch blocks from a key on, more with each step."""
        binding, view, blocks_max = self._binding, self._view, max(1, BYTES_MAX // self._size)
        if self._step < len(STEPS):
            self._step += 1
            return binding.scan(view, key, _STOP, min(STEPS[self._step - 1], blocks_max))
        stream, self._stream = self._stream, None
        if stream is None:
            stream = binding.begin(view, key, _STOP, "stream")
        limit = min(STREAMED, blocks_max)
        blocks = binding.following(stream, limit)
        if len(blocks) == limit:
            self._stream = stream
        return blocks


def cell_of(key: bytes, value: bytes) -> Cell:
    """Return the cell of a row: its value and checksum."""
    return value + row_checksum(key, value).to_bytes(CRC_BYTES, "little")


def value_of(key: bytes, cell: Cell) -> bytes:
    """Return the value in a cell; raise `CorruptionError` for damage."""
    return checked(key, cell[:-CRC_BYTES], int.from_bytes(cell[-CRC_BYTES:], "little"))


class SlateImage:
    """The rows of a store as of one commit: a snapshot of SlateDB, or a reader that does not follow."""

    __slots__ = (
        "__weakref__",
        "_early",
        "ahead",
        "binding",
        "last_seq",
        "place",
        "view",
    )

    def __init__(
        self, binding: Binding, view: Any, *, place: str, last_seq: int | None = None
    ) -> None:
        self.binding, self.view, self.place = binding, view, place
        self.ahead = ReadAhead(binding, view)
        self.last_seq = self._find_last_seq() if last_seq is None else last_seq
        self._early: tuple[bytes, bytes] | None = None

    def _find_last_seq(self) -> int:
        """Read the keys of all deltas, since SlateDB scans only in ascending order."""
        with reading(self):
            return max((keys.number(key) for key in walk(self, *_DELTAS)), default=0)

    def early(self) -> tuple[bytes, bytes] | None:
        """Return the keys of the first and the last early block, from the mark, read once."""
        if self._early is None:
            with reading(self):
                cell = self.binding.get(self.view, MARK)
            mark = b"" if cell is None else value_of(MARK, cell)
            self._early = mark[: len(MARK)], mark[len(MARK) :]
        return self._early if self._early[0] else None

    def visible(self, start: bytes, stop: bytes) -> bytes:
        """Return where a range ends for readers: before early blocks, which are the last blocks."""
        if not start.startswith(_BLOCKS) or (early := self.early()) is None:
            return stop
        return min(stop, early[0])


class SlateSnapshot:
    """Reads of one image."""

    def __init__(self, image: SlateImage) -> None:
        self._image = image

    def get(self, key: bytes) -> bytes | None:
        """Return the value of a key, or None."""
        image = self._image
        with reading(image):
            if key.startswith(_BLOCKS):
                cell = image.ahead.get(key)
            else:
                cell = image.binding.get(image.view, key)
        return None if cell is None else value_of(key, cell)

    def scan(self, start: bytes, stop: bytes, *, limit: int) -> list[Row]:
        """Return up to `limit` rows with start <= key < stop."""
        if start >= stop or limit < 1:
            return []
        image = self._image
        stop = image.visible(start, stop)
        if start >= stop:
            return []
        with reading(image):
            cells = image.binding.scan(image.view, start, stop, limit)
        return [(key, value_of(key, cell)) for key, cell in cells]

    def last_seq(self) -> int:
        """Return the sequence of the newest delta."""
        return self._image.last_seq


def walk(image: SlateImage, start: bytes, stop: bytes, *, step: int = SCAN_ROWS) -> Iterator[bytes]:
    """Yield the keys of a range, read a step at a time; values are not checked."""
    while start < stop:
        cells = image.binding.scan(image.view, start, stop, step)
        for key, _ in cells:
            yield key
        if len(cells) < step:
            return
        start = keys.successor(cells[-1][0])


def fill(batch: Any, commit: Commit, image: SlateImage) -> int:
    """Write a commit into a batch: all puts, and the deletes of rows without a put.

    Returns the sequence of the newest delta after the commit.
    """
    last_seq = image.last_seq
    dropped = dict.fromkeys(commit.deletes)
    for start, stop in commit.ranges:
        with reading(image):
            dropped.update(dict.fromkeys(walk(image, start, stop)))
    for key, value in commit.rows:
        dropped.pop(key, None)
        image.binding.put(batch, key, cell_of(key, value))
        if key.startswith(_DELTAS[0]):
            last_seq = max(last_seq, keys.number(key))
    for key in dropped:
        image.binding.delete(batch, key)
    return last_seq


@contextmanager
def reading(image: SlateImage) -> Iterator[None]:
    """Translate errors of SlateDB inside the block into errors of Millstream."""
    errors = image.binding.module.Error
    try:
        yield
    except (TimeoutError, errors) as error:
        raise read_error(error, errors, image.place) from error


def read_error(error: Any, errors: Any, place: str) -> MillstreamError:
    """Return the error for a failed read."""
    cause = getattr(error, "message", str(error)).partition(": <?xml")[0]  # without a server's page
    if isinstance(error, errors.Data):
        return CorruptionError(
            f"an object of {place} is damaged or missing: {cause}", what="object", where=place
        )
    return StoreError(f"{place} could not be read: {cause}; try again", cause=cause)


class Early(NamedTuple):
    """A large commit, split into payload blocks that are written early, and all other rows."""

    first: bytes
    last: bytes
    blocks: Iterator[tuple[bytes, bytes]]
    remainder: Commit


def early_part(commit: Commit, image: SlateImage) -> Early | None:
    """Split a large commit; None for a small commit, and for a commit that replaces blocks.

    No old block lies between new blocks, because message ids only grow. So one scan over their range
    is enough to see whether the commit replaces a block.
    """
    rows = commit.rows
    if not isinstance(rows, SpooledRows):
        return None
    blocks = [key for key in rows.all_keys() if key.startswith(_BLOCKS)]
    if not blocks:
        return None
    first, last = min(blocks), max(blocks)
    with reading(image):
        if image.binding.scan(image.view, first, keys.successor(last), 1):
            return None
    small = list(rows.of(key for key in rows.all_keys() if not key.startswith(_BLOCKS)))
    return Early(first, last, rows.of(blocks), Commit(small, commit.deletes, commit.ranges))


def early_batches(binding: Binding, early: Early) -> Iterator[Any]:
    """Yield batches with the early blocks, and with the mark in the first batch."""
    batch, size = binding.module.WriteBatch(), 0
    binding.put(batch, MARK, cell_of(MARK, early.first + early.last))
    for key, value in early.blocks:
        binding.put(batch, key, cell_of(key, value))
        size += len(value)
        if size >= EARLY_BYTES:
            yield batch
            batch, size = binding.module.WriteBatch(), 0
    if size:
        yield batch


def dropping_batch(binding: Binding, image: SlateImage) -> Any | None:
    """Return a batch that deletes the blocks of a commit that was never made; None without a mark."""
    early = image.early()
    if early is None:
        return None
    batch = binding.module.WriteBatch()
    with reading(image):
        for key in walk(image, early[0], keys.successor(early[1]), step=STEP_ROWS):
            binding.delete(batch, key)
    binding.delete(batch, MARK)
    return batch
