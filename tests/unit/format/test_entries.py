"""Entries: the metadata of one append, alone or as a block, and how the fold joins them."""

from __future__ import annotations

import pytest

from millstream.errors import CorruptionError
from millstream.format import block, entries, keys

HEADERS = b"\x81\xa1h\x01"


def single(message_id: int, *, key: bytes | None = None, appended_ms: int = 5) -> bytes:
    metadata = entries.encode_metadata(
        key=key, timestamp_ms=5, headers=b"", appended_ms=appended_ms
    )
    return entries.encode_single(message_id, metadata)


def metadata_block(count: int, *, first_id: int = 7) -> bytes:
    columns, body = block.encode_metadata(timestamps=None, keys=None, headers=None)
    return block.place(
        body,
        kind=block.METADATA,
        count=count,
        first_id=first_id,
        columns=columns,
        body_crc=block.checksum(body),
        appended_ms=3,
        timestamp_ms=4,
    )


@pytest.mark.parametrize(
    ("key", "headers", "appended_ms", "golden"),
    [
        (None, b"", 1_000, "93 c0 cd 03 e8 80"),
        (b"k", HEADERS, 1_000, "93 c4 01 6b cd 03 e8 81 a1 68 01"),
        (b"", b"", 1_001, "94 c4 00 cd 03 e8 80 cd 03 e9"),
    ],
)
def test_the_metadata_of_one_message(
    key: bytes | None, headers: bytes, appended_ms: int, golden: str
) -> None:
    data = entries.encode_metadata(
        key=key, timestamp_ms=1_000, headers=headers, appended_ms=appended_ms
    )

    assert data.hex(" ") == golden
    assert entries.decode_metadata(data) == (key, 1_000, headers, appended_ms)


def test_an_append_of_one_is_an_rfc_array_of_one() -> None:
    value = entries.encode_single(258, b"mm")

    assert value.hex(" ") == "01 00 02 01 00 00 00 00 00 00 02 00 00 00 6d 6d"
    assert entries.count(value) == 1


def test_a_single_entry_is_read() -> None:
    found = entries.decode(single(258, key=b"k", appended_ms=6))

    assert (len(found), list(found.ids), list(found.keys)) == (1, [258], [b"k"])
    assert (list(found.timestamps), list(found.appended)) == ([5], [6])
    assert (list(found.headers), found.packed) == ([b""], False)


def test_a_block_entry_is_read() -> None:
    found = entries.decode(metadata_block(3))

    assert (len(found), list(found.ids)) == (3, [7, 8, 9])
    assert (list(found.timestamps), list(found.appended)) == ([4, 4, 4], [3, 3, 3])
    assert (list(found.keys), list(found.headers)) == ([None] * 3, [b""] * 3)
    assert found.packed
    assert entries.count(metadata_block(3)) == 3


@pytest.mark.parametrize("value", [b"", b"\x01", b"\x01\x00", single(1)[:-1], single(1) + b"\x00"])
def test_a_cut_or_longer_entry_is_refused(value: bytes) -> None:
    with pytest.raises(CorruptionError):
        entries.decode(value)


@pytest.mark.parametrize(
    "metadata",
    [
        b"",
        b"\x92\xc0\x05",
        b"\x95\xc0\x05\x80\x05\x05",
        b"\x93\xa1k\x05\x80",
        b"\x93\xc0\xa1x\x80",
        b"\x93\xc0\x05",
        b"\xc1",
    ],
)
def test_metadata_that_makes_no_sense_is_refused(metadata: bytes) -> None:
    with pytest.raises(CorruptionError):
        entries.decode_metadata(metadata)


def rows(*offsets: int, log: int = 1) -> list[tuple[bytes, bytes]]:
    return [(keys.entry(log, n), single(100 + n)) for n in offsets]


def covered(row: tuple[bytes, bytes]) -> tuple[int, int, list[int]]:
    first, _ = entries.extent(*row)
    return keys.pair(row[0])[0], first, list(entries.decode(row[1]).ids)


def test_neighbouring_singles_are_joined() -> None:
    (joined,) = entries.coalesce(rows(4, 5, 6))

    assert covered(joined) == (1, 4, [104, 105, 106])
    assert joined[1] == b"\x03\x00" + b"".join(value[2:] for _, value in rows(4, 5, 6))


def test_a_gap_begins_another_entry() -> None:
    assert [covered(row) for row in entries.coalesce(rows(4, 5, 7, 8))] == [
        (1, 4, [104, 105]),
        (1, 7, [107, 108]),
    ]


def test_logs_are_joined_apart_though_they_alternate() -> None:
    mixed = [row for n in (0, 1) for log in (1, 2) for row in rows(n, log=log)]

    assert [covered(row) for row in entries.coalesce(mixed)] == [
        (1, 0, [100, 101]),
        (2, 0, [100, 101]),
    ]


def test_blocks_and_other_rows_stay_as_they_are() -> None:
    stays = [(keys.payload(9), b"\x01\x00payload"), (keys.entry(1, 2), metadata_block(2))]
    found = entries.coalesce([*rows(0), *stays, *rows(3)])

    assert stays[0] in found
    assert stays[1] in found
    assert sorted(key for key, _ in found) == sorted(
        [keys.entry(1, 0), keys.entry(1, 2), keys.entry(1, 3), keys.payload(9)]
    )


def test_a_joined_entry_has_a_limited_number_of_records() -> None:
    total = entries.ARRAY_RECORDS_MAX * 2 + 1
    found = entries.coalesce(rows(*range(total)))

    assert [entries.count(value) for _, value in found] == [500, 500, 1]


def test_a_joined_entry_has_a_limited_size() -> None:
    metadata = entries.encode_metadata(
        key=b"k" * 30_000, timestamp_ms=1, headers=b"", appended_ms=1
    )
    large = [(keys.entry(1, n), entries.encode_single(n, metadata)) for n in range(5)]
    found = entries.coalesce(large)

    assert [entries.count(value) for _, value in found] == [2, 2, 1]
    assert max(len(value) for _, value in found) <= entries.ARRAY_BYTES_MAX


def test_joined_entries_can_be_joined_again() -> None:
    once = entries.coalesce(rows(0, 1)) + entries.coalesce(rows(2, 3))

    assert [covered(row) for row in entries.coalesce(once)] == [(1, 0, [100, 101, 102, 103])]


@pytest.mark.parametrize("own_timestamps", [None, [4, 5, 6]])
@pytest.mark.parametrize("own_keys", [None, [b"k", None, b""]])
@pytest.mark.parametrize("own_headers", [None, [HEADERS, b"", HEADERS]])
@pytest.mark.parametrize("appended_ms", [3, 4])
def test_metadata_of_a_block_is_that_of_its_records(
    own_timestamps: list[int] | None,
    own_keys: list[bytes | None] | None,
    own_headers: list[bytes] | None,
    appended_ms: int,
) -> None:
    columns, body = block.encode_metadata(
        timestamps=own_timestamps, keys=own_keys, headers=own_headers
    )
    value = block.place(
        body,
        kind=block.METADATA,
        count=3,
        first_id=7,
        columns=columns,
        body_crc=block.checksum(body),
        appended_ms=appended_ms,
        timestamp_ms=4,
    )

    found = entries.metadata_of(value)

    entry = entries.decode(value)
    assert found == [
        (
            7 + n,
            entries.encode_metadata(
                key=entry.keys[n],
                timestamp_ms=entry.timestamps[n],
                headers=entry.headers[n],
                appended_ms=entry.appended[n],
            ),
        )
        for n in range(3)
    ]


def test_metadata_of_an_array_is_taken_as_it_is() -> None:
    ((_, value),) = entries.coalesce(
        [
            (keys.entry(1, 0), single(1, key=b"k")),
            (keys.entry(1, 1), single(2, appended_ms=6)),
        ]
    )

    found = entries.metadata_of(value)

    assert [message_id for message_id, _ in found] == [1, 2]
    assert [entries.decode_metadata(metadata)[0] for _, metadata in found] == [b"k", None]
    assert [entries.decode_metadata(metadata)[3] for _, metadata in found] == [5, 6]
    with pytest.raises(CorruptionError):
        entries.metadata_of(value[:-1])
