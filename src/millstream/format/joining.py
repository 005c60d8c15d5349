"""Joining: neighbouring single appends become blocks, as if they had been appended together.

The fold moves rows of single appends to their own place. Where it finds both the entries of
neighbouring records and their payloads, it writes one metadata block and one payload block instead.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

from millstream.format import block, entries, keys

JOINED_RECORDS_MAX = 1_024
"""Records in a block of single appends: a block is read whole."""

JOINED_BYTES_MAX = 256 * 1024
"""Of values and metadata in such a block."""

Row = tuple[bytes, bytes]


class _Lone(NamedTuple):
    """A record that was appended alone, with the rows in which it lies."""

    offset: int
    key: bytes
    value: bytes
    payload_key: bytes
    payload: bytes

    @property
    def size(self) -> int:
        """How many bytes of its log it counts for."""
        return len(self.payload) + len(self.value) - entries.SINGLE_HEAD_BYTES


def coalesce(rows: Iterable[Row]) -> list[Row]:
    """Join single entries of neighbouring offsets, with their payloads; other rows stay as they are."""
    found = dict(rows)
    logs: dict[int, list[tuple[int, bytes, bytes]]] = {}
    for key, value in found.items():
        if key[1] == keys.ENTRY and not block.is_block(value):
            log_id, offset = keys.pair(key)
            logs.setdefault(log_id, []).append((offset, key, value))
    for singles in logs.values():
        singles.sort()
        for run in _runs(singles, found):
            if len(run) > 1:
                for one in run:
                    del found[one.key], found[one.payload_key]
                found.update(_joined(run))
    return list(found.items())


def _runs(
    singles: list[tuple[int, bytes, bytes]], found: Mapping[bytes, bytes]
) -> Iterator[list[_Lone]]:
    """Neighbours whose payloads are among the rows, as many together as one block may hold."""
    run: list[_Lone] = []
    size = 0
    for offset, key, value in singles:
        payload_key = keys.payload(entries.single_id(value))
        payload = found.get(payload_key)
        if payload is None:  # it was too large to ride in a delta, and lies in its place already
            continue
        one = _Lone(offset, key, value, payload_key, payload)
        fits = len(run) < JOINED_RECORDS_MAX and size + one.size <= JOINED_BYTES_MAX
        if run and (offset != run[-1].offset + 1 or not fits):
            yield run
            run, size = [], 0
        run.append(one)
        size += one.size
    if run:
        yield run


def _joined(run: list[_Lone]) -> list[Row]:
    entry = entries.decode_singles([one.value for one in run])
    values = block.encode_values([one.payload for one in run])
    metadata = entries.encode(
        entry, payload_bytes=len(values), counted_bytes=sum(one.size for one in run)
    )
    first_id = entry.ids[0]
    payload = block.place_values(values, count=len(run), first_id=first_id)
    return [(run[-1].key, metadata), (keys.payload_block(first_id), payload)]
