"""Joining: single appends become blocks, as if their records had been appended together.

The fold moves rows of single appends to their base tables. For neighbouring records with entry and
payload in the same fold, it writes one metadata block and one payload block instead.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from millstream.format import block, entries, keys

JOINED_RECORDS_MAX = 1_024
"""Maximum of records in a joined block: a block is always read completely."""

JOINED_BYTES_MAX = 256 * 1024
"""Maximum of bytes of values and metadata in a joined block."""

Row = tuple[bytes, bytes]


def coalesce(rows: Iterable[Row]) -> list[Row]:
    """Join single entries of neighbouring offsets with their payloads; leave further rows unchanged."""
    by_key = dict(rows)
    logs: dict[bytes, list[bytes]] = {}
    for key, value in by_key.items():
        if key[1] == keys.ENTRY and not block.is_block(value):
            logs.setdefault(keys.without_last_number(key), []).append(key)
    for names in logs.values():
        names.sort()
        for run in list(_runs(names, by_key)):
            _join(run, by_key)
    return list(by_key.items())


def _runs(names: list[bytes], by_key: Mapping[bytes, bytes]) -> Iterator[list[bytes]]:
    """Yield the keys of neighbouring entries with payloads, up to the limits of a block."""
    run: list[bytes] = []
    size = end = 0
    for key in names:
        offset, value = keys.last_number(key), by_key[key]
        payload = by_key.get(entries.payload_key(value))
        if payload is None:  # a large payload is not in a delta: the commit wrote its base row
            continue
        added_bytes = len(payload) + len(value)
        if run and (
            offset != end or len(run) == JOINED_RECORDS_MAX or size + added_bytes > JOINED_BYTES_MAX
        ):
            yield run
            run, size = [], 0
        run.append(key)
        size += added_bytes
        end = offset + 1
    yield run


def _join(run: list[bytes], by_key: dict[bytes, bytes]) -> None:
    """Replace single entries by a metadata block, and their payloads by a payload block."""
    if len(run) < 2:
        return
    singles = [by_key.pop(key) for key in run]
    values = [by_key.pop(entries.payload_key(value)) for value in singles]
    entry = entries.decode_singles(singles)
    body = block.encode_values(values)
    counted = sum(map(len, values)) + sum(map(len, singles))
    counted -= entries.SINGLE_HEAD_BYTES * len(run)
    first_id = entry.ids[0]
    by_key[run[-1]] = entries.encode(entry, payload_bytes=len(body), counted_bytes=counted)
    by_key[keys.payload_block(first_id)] = block.place_values(
        body, count=len(run), first_id=first_id
    )
