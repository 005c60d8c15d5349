"""Joining: neighbouring single appends become blocks, as if they had been appended together.

The fold moves rows of single appends to their own place. Where it finds both the entries of
neighbouring records and their payloads, it writes one metadata block and one payload block instead.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from millstream.format import block, entries, keys

JOINED_RECORDS_MAX = 1_024
"""Records in a block of single appends: a block is read whole."""

JOINED_BYTES_MAX = 256 * 1024
"""Of values and metadata in such a block."""

Row = tuple[bytes, bytes]


def coalesce(rows: Iterable[Row]) -> list[Row]:
    """Join single entries of neighbouring offsets, with their payloads; other rows stay as they are."""
    found = dict(rows)
    logs: dict[bytes, list[bytes]] = {}
    for key, value in found.items():
        if key[1] == keys.ENTRY and not block.is_block(value):
            logs.setdefault(keys.without_last_number(key), []).append(key)
    for names in logs.values():
        names.sort()
        for run in list(_runs(names, found)):
            _join(run, found)
    return list(found.items())


def _runs(names: list[bytes], found: Mapping[bytes, bytes]) -> Iterator[list[bytes]]:
    """The keys of neighbours whose payloads are among the rows, as many as one block may hold."""
    run: list[bytes] = []
    size = end = 0
    for key in names:
        offset, value = keys.last_number(key), found[key]
        payload = found.get(entries.payload_key(value))
        if payload is None:  # it was too large to ride in a delta, and lies in its place already
            continue
        more = len(payload) + len(value)
        if run and (
            offset != end or len(run) == JOINED_RECORDS_MAX or size + more > JOINED_BYTES_MAX
        ):
            yield run
            run, size = [], 0
        run.append(key)
        size += more
        end = offset + 1
    yield run


def _join(run: list[bytes], found: dict[bytes, bytes]) -> None:
    """Put a block in the place of single entries, and one in that of their payloads."""
    if len(run) < 2:
        return
    singles = [found.pop(key) for key in run]
    values = [found.pop(entries.payload_key(value)) for value in singles]
    entry = entries.decode_singles(singles)
    body = block.encode_values(values)
    counted = sum(map(len, values)) + sum(map(len, singles))
    counted -= entries.SINGLE_HEAD_BYTES * len(run)
    first_id = entry.ids[0]
    found[run[-1]] = entries.encode(entry, payload_bytes=len(body), counted_bytes=counted)
    found[keys.payload_block(first_id)] = block.place_values(
        body, count=len(run), first_id=first_id
    )
