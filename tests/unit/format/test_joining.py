"""Joining: neighbouring single appends become blocks; whatever else a fold carries stays as it is."""

from __future__ import annotations

import pytest

from millstream.format import block, entries, keys
from millstream.format import block_join as joining
from millstream.format.block_join import Row, coalesce


def rows(*offsets: int, log: int = 1, ids: int = 100, size: int = 3) -> list[Row]:
    found = []
    for offset in offsets:
        metadata = entries.encode_metadata(
            key=b"k", timestamp_ms=5, headers=b"", appended_ms=5 + offset
        )
        found.append((keys.payload(ids + offset), bytes([offset % 256]) * size))
        found.append((keys.entry(log, offset), entries.encode_single(ids + offset, metadata)))
    return found


def covered(found: list[Row]) -> list[tuple[int, int, list[int], list[bytes]]]:
    """Of each entry: its log, its first offset, and the ids and values of its records."""
    by_key = dict(found)
    result = []
    for key, value in sorted(found):
        if key[1] != keys.ENTRY:
            continue
        entry = entries.decode(value)
        if entry.packed:
            payload = block.Block(by_key[keys.payload_block(entry.ids[0])], kind=block.PAYLOAD)
            values = payload.column(block.VALUE) or []
        else:
            values = [by_key[keys.payload(entry.ids[0])]]
        result.append((keys.pair(key)[0], entries.extent(key, value)[0], list(entry.ids), values))
    return result


def test_neighbouring_singles_become_one_block_with_their_payloads() -> None:
    found = coalesce(rows(4, 5, 6))

    assert [key for key, _ in found] == [keys.entry(1, 6), keys.payload_block(104)]
    assert covered(found) == [
        (1, 4, [104, 105, 106], [b"\x04\x04\x04", b"\x05\x05\x05", b"\x06\x06\x06"])
    ]
    entry = entries.decode(found[0][1])
    assert (list(entry.appended), list(entry.timestamps)) == ([9, 10, 11], [5, 5, 5])


def test_a_joined_block_counts_for_as_many_bytes_as_its_singles() -> None:
    singles = rows(4, 5, 6)
    sizes = [len(value) for key, value in singles if key[1] == keys.PAYLOAD]
    sizes += [len(value) - 14 for key, value in singles if key[1] == keys.ENTRY]

    header = block.decode_header(coalesce(singles)[0][1], kind=block.METADATA)

    assert header.log_bytes == sum(sizes)


def test_a_single_without_a_neighbour_stays_as_it_is() -> None:
    assert coalesce(rows(4)) == rows(4)


def test_a_gap_begins_another_block() -> None:
    assert [one[1:3] for one in covered(coalesce(rows(4, 5, 7, 8)))] == [
        (4, [104, 105]),
        (7, [107, 108]),
    ]


def test_logs_are_joined_apart_though_they_alternate() -> None:
    mixed = [row for n in (0, 1, 2) for log in (1, 2) for row in rows(n, log=log, ids=10 * log + n)]

    found = coalesce(mixed)

    assert [one[:3] for one in covered(found)] == [(1, 0, [10, 12, 14]), (2, 0, [20, 22, 24])]
    assert block.decode_header(found[0][1], kind=block.METADATA).columns & block.IDS


def test_singles_that_came_in_another_order_are_joined() -> None:
    assert [one[1:3] for one in covered(coalesce(rows(6, 4, 5)))] == [(4, [104, 105, 106])]


def test_a_single_whose_payload_lies_elsewhere_stays_alone() -> None:
    found = coalesce([row for row in rows(0, 1, 2, 3, 4) if row[0] != keys.payload(102)])

    assert sorted(entries.extent(*row) for row in found if row[0][1] == keys.ENTRY) == [
        (0, 2),
        (2, 3),
        (3, 5),
    ]


def test_blocks_and_other_rows_stay_as_they_are() -> None:
    joined = coalesce(rows(1, 2))
    stays = [(keys.payload(9), b"\x01\x00payload"), *joined]

    found = coalesce([*rows(0), *stays, *rows(3)])

    assert sorted(found) == sorted([*rows(0), *stays, *rows(3)])


def test_a_joined_block_has_a_limited_number_of_records() -> None:
    most = joining.JOINED_RECORDS_MAX
    found = coalesce(rows(*range(2 * most + 1)))

    assert [len(one[2]) for one in covered(found)] == [most, most, 1]


@pytest.mark.parametrize("size", [60_000, 100_000])
def test_a_joined_block_has_a_limited_size(size: int) -> None:
    together = joining.JOINED_BYTES_MAX // size

    found = coalesce(rows(*range(2 * together), size=size))

    assert [len(one[2]) for one in covered(found)] == [together, together]
