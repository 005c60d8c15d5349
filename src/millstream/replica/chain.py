"""The running hash of a log: copies of a log compare it to find out whether they are equal.

The hash is over pieces. A piece is a run of neighbouring records whose end is decided by the
records alone: a record closes the piece if the piece then holds 1,024 records, or values of 1 MiB.
So copies agree on every boundary, however their records were batched. A run is hashed column by
column, straight from the buffers of its blocks.

    run digest   SHA-256 of: how many records (u64), then the SHA-256 of each column, in this order
                 sizes of values (u32, 2^32 - 1 for null), values, timestamps (i64), times of the append (i64),
                 whether there is a key (u8), sizes of keys (u32), keys, sizes of headers (u32), headers
    h(0)         32 zero bytes; so is h(base) of a log that lost its first records before it had a chain
    h(n)         SHA-256 of: h at the last mark at or before n, that mark's offset (u64), the digest of
                 the run from the mark to n; h(n) is the mark's hash if no record lies between

All numbers are little-endian. A mark is an offset at which a piece ends, with its hash.
"""

from __future__ import annotations

import sys
from array import array
from bisect import bisect_left
from collections.abc import Sequence
from hashlib import sha256
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from millstream.errors import InvalidInput
from millstream.format import block as blocks
from millstream.log.model.block import RecordBlock
from millstream.log.model.names import check_integer

PIECE_RECORDS_MAX = 1_024
PIECE_BYTES_MAX = 1024 * 1024
"""The values of a piece. To compare within a piece, a peer reads at most this and one more record.
"""

DIGEST_BYTES = 32
ZERO = bytes(DIGEST_BYTES)

_COLUMNS = 9
_EMPTY_MAP = b"\x80"
_ONE = b"\x01\x00\x00\x00"
_NULL = 2**32 - 1
_SWAP = sys.byteorder == "big"


class Mark(Struct, frozen=True, array_like=True):
    """The hash of a log up to an offset."""

    offset: int
    digest: bytes

    def check(self) -> None:
        """Refuse a mark that no chain has."""
        check_integer("an offset", self.offset)
        if len(self.digest) != DIGEST_BYTES:
            raise InvalidInput(f"a hash of {len(self.digest)} bytes, not {DIGEST_BYTES}")


class Parsed(Struct, frozen=True):
    """The records [skip, skip + count) of a stored block, checked and ready to be hashed."""

    first_offset: int
    skip: int
    count: int
    metadata: blocks.Block
    payload: blocks.Block
    ends: array[int]
    """Where each value ends, counted from the start of the block's values; the first end is 0."""

    @property
    def stop(self) -> int:
        """The offset behind the last record."""
        return self.first_offset + self.count

    def cut(self, start: int, stop: int) -> Parsed:
        """Return the records [start, stop), counted from the first record."""
        return replace(
            self,
            first_offset=self.first_offset + start,
            skip=self.skip + start,
            count=stop - start,
        )


def parse(block: RecordBlock) -> Parsed:
    """Take a block apart, and check its checksums, columns and counts."""
    metadata = blocks.Block(block.metadata, kind=blocks.METADATA)
    payload = blocks.Block(block.payload, kind=blocks.PAYLOAD)
    values = payload.cells(blocks.VALUE)
    if values is None or not 0 <= block.skip <= block.skip + block.count <= metadata.count:
        raise InvalidInput("a block that does not hold the records that it is said to hold")
    if payload.count != metadata.count:
        raise InvalidInput(f"{metadata.count} records with {payload.count} values")
    return Parsed(block.first_offset, block.skip, block.count, metadata, payload, values.ends)


class Run:
    """The digest of neighbouring records, computed while they arrive."""

    __slots__ = ("_hashes", "count", "size")

    def __init__(self) -> None:
        self.count = 0
        self.size = 0
        """Bytes of the values."""
        self._hashes = [sha256() for _ in range(_COLUMNS)]

    def add(self, records: RecordBlock | Parsed) -> None:
        """Add the records of a block."""
        parsed = records if isinstance(records, Parsed) else parse(records)
        if not parsed.count:
            return
        first, count, metadata = parsed.skip, parsed.count, parsed.metadata
        values, numbers = self._hashes[:2], self._hashes[2:4]
        valid = metadata.valid(first, count)
        self.size += _add_cells(values, parsed.payload, blocks.VALUE, first, count, valid)
        times = (
            (metadata.timestamp_ms(), metadata.timestamps),
            (metadata.appended_ms(), metadata.appended),
        )
        for into, (constant, each) in zip(numbers, times, strict=True):
            if constant is None:
                into.update(_stored(array("q", each(first, count))))
            else:
                into.update(constant.to_bytes(8, "little", signed=True) * count)
        self._hashes[4].update(_presence(metadata, first, count))
        _add_cells(self._hashes[5:7], metadata, blocks.KEY, first, count)
        _add_cells(self._hashes[7:9], metadata, blocks.HEADERS, first, count)
        self.count += count

    def digest(self) -> bytes:
        """Return the digest of the added records."""
        digest = sha256(self.count.to_bytes(8, "little"))
        for column in self._hashes:
            digest.update(column.digest())
        return digest.digest()

    def copy(self) -> Run:
        """Return an independent copy."""
        made = Run.__new__(Run)
        made.count, made.size = self.count, self.size
        made._hashes = [column.copy() for column in self._hashes]
        return made


def link(before: bytes, first: int, run: bytes) -> bytes:
    """Return the hash behind a run that starts at `first`, where the hash is `before`."""
    return sha256(before + first.to_bytes(8, "little") + run).digest()


class Chain:
    """The running hash of a log, from a mark on."""

    __slots__ = ("_run", "last")

    def __init__(self, anchor: Mark) -> None:
        self.last = anchor
        """The last mark."""
        self._run = Run()

    @property
    def end(self) -> int:
        """The offset behind the last record that was added."""
        return self.last.offset + self._run.count

    def extend(self, records: RecordBlock | Parsed) -> list[Mark]:
        """Add a block that begins at the end, and return the marks of completed pieces."""
        parsed = records if isinstance(records, Parsed) else parse(records)
        if parsed.first_offset != self.end:
            raise InvalidInput(
                f"the chain stands at {self.end}: it cannot go on at {parsed.first_offset}"
            )
        marks = []
        done = 0
        while done < parsed.count:
            stop = self._closes(parsed, done)
            self._run.add(parsed.cut(done, stop))
            done = stop
            if self._run.count >= PIECE_RECORDS_MAX or self._run.size >= PIECE_BYTES_MAX:
                self.last = Mark(self.end, self.digest())
                self._run = Run()
                marks.append(self.last)
        return marks

    def digest(self) -> bytes:
        """Return the hash at the end."""
        if not self._run.count:
            return self.last.digest
        return link(self.last.digest, self.last.offset, self._run.digest())

    def copy(self) -> Chain:
        """Return an independent copy."""
        made = Chain(self.last)
        made._run = self._run.copy()
        return made

    def _closes(self, parsed: Parsed, done: int) -> int:
        """Return the index of the first record that no longer belongs to the open piece."""
        count_max = min(parsed.count, done + PIECE_RECORDS_MAX - self._run.count)
        first = parsed.skip + done
        full = parsed.ends[first] + PIECE_BYTES_MAX - self._run.size
        at = bisect_left(parsed.ends, full, first + 1, parsed.skip + count_max + 1)
        return min(count_max, at - parsed.skip)


def _add_cells(
    into: list[Any],
    block: blocks.Block,
    column: int,
    first: int,
    count: int,
    valid: Sequence[bool] | None = None,
) -> int:
    """Hash the sizes and bytes of a column's rows, and return the number of bytes."""
    into_sizes, into_bytes = into
    cells = block.cells(column)
    if cells is None:
        into_sizes.update(bytes(4 * count))
        return 0
    sizes, data = _stored(cells.sizes()[first : first + count]), cells.joined(first, count)
    size = len(data)
    if valid is not None:
        lengths = cells.sizes()[first : first + count]
        sizes = _stored(
            array("I", [n if yes else _NULL for n, yes in zip(lengths, valid, strict=True)])
        )
    if column == blocks.HEADERS and _ONE in sizes:
        sizes, data = _without_empty_maps(cells.cut(first, count))
    into_sizes.update(sizes)
    into_bytes.update(data)
    return size


def _without_empty_maps(cells: list[bytes]) -> tuple[bytes, bytes]:
    """Hash an empty map of headers as no headers: single records store both alike."""
    cells = [b"" if cell == _EMPTY_MAP else cell for cell in cells]
    return _stored(array("I", map(len, cells))), b"".join(cells)


def _presence(metadata: blocks.Block, first: int, count: int) -> bytes:
    """Return a byte for every record: whether the record has a key."""
    columns = metadata.header.columns
    if not columns & blocks.KEY:
        return bytes(count)
    validity = metadata.validity()
    return b"\x01" * count if validity is None else bytes(validity[first : first + count])


def _stored(numbers: array[int]) -> bytes:
    if _SWAP:
        numbers.byteswap()
    return numbers.tobytes()
