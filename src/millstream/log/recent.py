"""Recent blocks: the parsed blocks that consumers are working through.

Messages are claimed a few at a time from blocks of many; a block is read, checked and parsed once,
not once per claim. Blocks never change and ids of logs are never reused, so nothing here goes stale.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from typing import NamedTuple

from millstream.format import block as blocks
from millstream.log.block import Block, headers_of
from millstream.log.reader import fetch_blocks
from millstream.record import Headers
from millstream.store.store import Store

BLOCKS_KEPT = 16
BYTES_KEPT_MAX = 16 * 1024 * 1024
_KEY = "recent blocks"

Row = tuple[int, bytes, int, bytes | None, Headers]
"""Offset, value, timestamp, key, headers."""


class Parsed(NamedTuple):
    """A block of records, ready to be cut."""

    first: int
    end: int
    metadata: blocks.Block
    payload: blocks.Block
    size: int

    def rows(self, start: int, stop: int) -> Iterator[Row]:
        """The records in [start, stop) of those it holds."""
        skip, count = start - self.first, stop - start
        metadata = self.metadata
        values = self.payload.column(blocks.VALUE, skip, count)
        assert values is not None
        return zip(
            range(start, stop),
            values,
            metadata.timestamps(skip, count),
            metadata.keys(skip, count),
            headers_of(metadata, skip, count),
            strict=True,
        )


class RecentBlocks:
    """A few parsed blocks, by log and first offset; the longest unused go first."""

    def __init__(self) -> None:
        self._found: OrderedDict[tuple[int, int], Parsed] = OrderedDict()

    def find(self, log_id: int, offset: int) -> Parsed | None:
        """The block that holds a record, if it is remembered."""
        for key, parsed in reversed(list(self._found.items())):
            if key[0] == log_id and parsed.first <= offset < parsed.end:
                return parsed
        return None

    def add(self, log_id: int, block: Block) -> Parsed:
        """Remember a block that was read."""
        metadata = blocks.Block(block.metadata, kind=blocks.METADATA)
        payload = blocks.Block(block.payload, kind=blocks.PAYLOAD)
        first = block.first_offset - block.skip
        size = len(block.metadata) + len(block.payload)
        parsed = Parsed(first, first + metadata.count, metadata, payload, size)
        self._found[log_id, first] = parsed
        while len(self._found) > BLOCKS_KEPT or self._bytes() > BYTES_KEPT_MAX:
            if len(self._found) == 1:
                break
            self._found.popitem(last=False)
        return parsed

    def _bytes(self) -> int:
        return sum(parsed.size for parsed in self._found.values())


def recent_rows(store: Store, log_id: int, name: str, *, start: int, stop: int) -> Iterator[Row]:
    """The records in [start, stop) of a log, also below its start while their bytes are there."""
    cache: RecentBlocks = store.scratch.setdefault(_KEY, RecentBlocks())
    while start < stop:
        parsed = cache.find(log_id, start)
        if parsed is None:
            block = fetch_blocks(store, log_id, name, start=start, stop=stop)[0]
            parsed = cache.add(log_id, block)
        end = min(stop, parsed.end)
        yield from parsed.rows(start, end)
        start = end
