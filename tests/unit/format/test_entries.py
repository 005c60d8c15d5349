"""Entries: the metadata of one append, alone or as a block."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from millstream.errors import CorruptionError
from millstream.format import block, entries

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
    ("key", "headers", "appended_ms", "is_null", "golden"),
    [
        (None, b"", 1_000, False, "93 c0 cd 03 e8 80"),
        (b"k", HEADERS, 1_000, False, "93 c4 01 6b cd 03 e8 81 a1 68 01"),
        (b"", b"", 1_001, False, "94 c4 00 cd 03 e8 80 cd 03 e9"),
        (b"k", b"", 1_000, True, "95 c4 01 6b cd 03 e8 80 cd 03 e8 c3"),
    ],
)
def test_the_metadata_of_one_message(
    key: bytes | None, headers: bytes, appended_ms: int, is_null: bool, golden: str
) -> None:
    data = entries.encode_metadata(
        key=key, timestamp_ms=1_000, headers=headers, appended_ms=appended_ms, is_null=is_null
    )

    assert data.hex(" ") == golden
    assert entries.decode_metadata(data) == (key, 1_000, headers, appended_ms, is_null)


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


def test_an_array_of_several_elements_is_refused() -> None:
    value = b"\x02" + single(1)[1:]

    with pytest.raises(CorruptionError, match="an array of 2 elements"):
        entries.decode(value)


def test_single_entries_are_read_as_one() -> None:
    found = entries.decode_singles([single(1, key=b"k"), single(2, appended_ms=6), single(9)])

    assert (list(found.ids), found.keys, found.packed) == ([1, 2, 9], [b"k", None, None], False)
    assert (found.timestamps, found.appended) == ([5, 5, 5], [5, 6, 5])
    assert entries.decode_singles([single(1), single(2)]).ids == range(1, 3)


@pytest.mark.parametrize("ids", [range(7, 10), [7, 9, 12]])
@pytest.mark.parametrize("appended", [[3, 3, 3], [3, 4, 5]])
@pytest.mark.parametrize("timestamps", [[3, 3, 3], [3, 4, 5], [8, 8, 8], [9, 8, 7]])
@pytest.mark.parametrize("own_keys", [[None] * 3, [b"k", None, b""]])
def test_an_entry_becomes_a_block_and_back(
    ids: Sequence[int], appended: list[int], timestamps: list[int], own_keys: list[bytes | None]
) -> None:
    entry = entries.Entry(
        ids=ids,
        keys=own_keys,
        headers=[HEADERS, b"", HEADERS],
        timestamps=timestamps,
        appended=appended,
        packed=True,
    )

    value = entries.encode(entry)

    assert _lists(entries.decode(value)) == _lists(entry)
    assert _lists(entries.decode(entries.head_of(value, 2))) == _lists(entry.first(2))
    assert list(entries.decode_places(value).ids) == list(ids)


def _lists(entry: entries.Entry) -> list[list[object]]:
    columns = entry.ids, entry.keys, entry.headers, entry.timestamps, entry.appended
    return [list[object](column) for column in columns]


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


def test_metadata_of_a_single_entry_is_taken_as_it_is() -> None:
    value = single(1, key=b"k", appended_ms=6)

    ((message_id, metadata),) = entries.metadata_of(value)

    assert message_id == 1
    assert entries.decode_metadata(metadata) == (b"k", 5, b"", 6, False)
    with pytest.raises(CorruptionError):
        entries.metadata_of(value[:-1])


def test_null_values_stay_null_when_entries_are_joined_cut_and_taken_apart() -> None:
    singles = [
        entries.encode_single(
            7 + at,
            entries.encode_metadata(
                key=b"k", timestamp_ms=5, headers=b"", appended_ms=5, is_null=at % 2 == 1
            ),
        )
        for at in range(12)
    ]
    entry = entries.decode_singles(singles)
    whole = entries.encode(entry)
    assert entries.decode(whole).valid == [at % 2 == 0 for at in range(12)]
    assert entries.decode(entries.head_of(whole, 9)).valid == [at % 2 == 0 for at in range(9)]
    assert entries.decode(entries.head_of(whole, 1)).valid is None
    assert entries.decode(whole, 1, 3).valid == [False, True]
    assert [metadata for _, metadata in entries.metadata_of(whole)] == [
        single[entries.SINGLE_HEAD_BYTES :] for single in singles
    ]
