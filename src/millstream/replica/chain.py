"""The running hash of a log: by it, copies of a log find out whether they are the same.

The hash is over pieces. A piece is a run of neighbouring records whose end is decided by the records
alone: it closes with the record by which it holds 1,024 of them, or values of 1 MiB. So copies agree
on every boundary, however their records were batched. A run is hashed column by column, straight from
the buffers of its blocks.

    run digest   SHA-256 of: how many records (u64), then the SHA-256 of each column, in this order
                 sizes of values (u32, 2^32 - 1 for null), values, timestamps (i64), times of the append (i64),
                 whether there is a key (u8), sizes of keys (u32), keys, sizes of headers (u32), headers
    h(0)         32 zero bytes; so is h(base) of a log whose first records went before it had a chain
    h(n)         SHA-256 of: h at the last mark at or before n, that mark's offset (u64), the digest of
                 the run from there to n; h(n) is the mark's own if no record lies between

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
"""Of values: what a peer reads at most, and one record more, to compare within a piece."""

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
    """Records of one stored block, checked and ready to be hashed: those at [skip, skip + count)."""

    first_offset: int
    skip: int
    count: int
    metadata: blocks.Block
    payload: blocks.Block
    ends: array[int]
    """Where the values end, from the start of the stored block's values; the first is 0."""

    @property
    def stop(self) -> int:
        """The offset behind the last record."""
        return self.first_offset + self.count

    def cut(self, start: int, stop: int) -> Parsed:
        """The records [start, stop) of these, counted from the first."""
        return replace(
            self,
            first_offset=self.first_offset + start,
            skip=self.skip + start,
            count=stop - start,
        )


def parse(block: RecordBlock) -> Parsed:
    """Take a block that was read apart: checksums, columns and counts are checked."""
    metadata = blocks.Block(block.metadata, kind=blocks.METADATA)
    payload = blocks.Block(block.payload, kind=blocks.PAYLOAD)
    values = payload.cells(blocks.VALUE)
    if values is None or not 0 <= block.skip <= block.skip + block.count <= metadata.count:
        raise InvalidInput("a block that does not hold the records that it is said to hold")
    if payload.count != metadata.count:
        raise InvalidInput(f"{metadata.count} records with {payload.count} values")
    return Parsed(block.first_offset, block.skip, block.count, metadata, payload, values.ends)


class Run:
    """The digest of neighbouring records, as they come."""

    __slots__ = ("_hashes", "count", "size")

    def __init__(self) -> None:
        self.count = 0
        self.size = 0
        """Of the values."""
        self._hashes = [sha256() for _ in range(_COLUMNS)]

    def add(self, records: RecordBlock | Parsed) -> None:
        """Go on with the records of a block."""
        found = records if isinstance(records, Parsed) else parse(records)
        if not found.count:
            return
        first, count, metadata = found.skip, found.count, found.metadata
        values, numbers = self._hashes[:2], self._hashes[2:4]
        valid = metadata.valid(first, count)
        self.size += _add_cells(values, found.payload, blocks.VALUE, first, count, valid)
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
        """The digest of what was added."""
        whole = sha256(self.count.to_bytes(8, "little"))
        for column in self._hashes:
            whole.update(column.digest())
        return whole.digest()

    def copy(self) -> Run:
        """One that goes on by itself."""
        made = Run.__new__(Run)
        made.count, made.size = self.count, self.size
        made._hashes = [one.copy() for one in self._hashes]
        return made


def link(before: bytes, first: int, run: bytes) -> bytes:
    """The hash behind a run that starts at `first`, where the hash is `before`."""
    return sha256(before + first.to_bytes(8, "little") + run).digest()


class Chain:
    """The running hash of a log from some mark on."""

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
        """Go on with a block that begins at the end; the marks of the pieces that it closes."""
        found = records if isinstance(records, Parsed) else parse(records)
        if found.first_offset != self.end:
            raise InvalidInput(
                f"the chain stands at {self.end}: it cannot go on at {found.first_offset}"
            )
        marks = []
        done = 0
        while done < found.count:
            stop = self._closes(found, done)
            self._run.add(found.cut(done, stop))
            done = stop
            if self._run.count >= PIECE_RECORDS_MAX or self._run.size >= PIECE_BYTES_MAX:
                self.last = Mark(self.end, self.digest())
                self._run = Run()
                marks.append(self.last)
        return marks

    def digest(self) -> bytes:
        """The hash at the end."""
        if not self._run.count:
            return self.last.digest
        return link(self.last.digest, self.last.offset, self._run.digest())

    def copy(self) -> Chain:
        """One that goes on by itself."""
        made = Chain(self.last)
        made._run = self._run.copy()
        return made

    def _closes(self, found: Parsed, done: int) -> int:
        """How many of the records belong to the piece that is open."""
        most = min(found.count, done + PIECE_RECORDS_MAX - self._run.count)
        first = found.skip + done
        full = found.ends[first] + PIECE_BYTES_MAX - self._run.size
        at = bisect_left(found.ends, full, first + 1, found.skip + most + 1)
        return min(most, at - found.skip)


def _add_cells(
    into: list[Any],
    block: blocks.Block,
    column: int,
    first: int,
    count: int,
    valid: Sequence[bool] | None = None,
) -> int:
    """Sizes and bytes of some rows of a column; answers how many bytes."""
    into_sizes, into_bytes = into
    found = block.cells(column)
    if found is None:
        into_sizes.update(bytes(4 * count))
        return 0
    sizes, data = _stored(found.sizes()[first : first + count]), found.joined(first, count)
    size = len(data)
    if valid is not None:
        told = found.sizes()[first : first + count]
        sizes = _stored(
            array("I", [n if yes else _NULL for n, yes in zip(told, valid, strict=True)])
        )
    if column == blocks.HEADERS and _ONE in sizes:
        sizes, data = _without_empty_maps(found.cut(first, count))
    into_sizes.update(sizes)
    into_bytes.update(data)
    return size


def _without_empty_maps(cells: list[bytes]) -> tuple[bytes, bytes]:
    """Headers that are an empty map count as none: the two are not told apart when stored singly."""
    cells = [b"" if cell == _EMPTY_MAP else cell for cell in cells]
    return _stored(array("I", map(len, cells))), b"".join(cells)


def _presence(metadata: blocks.Block, first: int, count: int) -> bytes:
    """Of each record, whether it has a key."""
    columns = metadata.header.columns
    if not columns & blocks.KEY:
        return bytes(count)
    validity = metadata.validity()
    return b"\x01" * count if validity is None else bytes(validity[first : first + count])


def _stored(numbers: array[int]) -> bytes:
    if _SWAP:
        numbers.byteswap()
    return numbers.tobytes()
