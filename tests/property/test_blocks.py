"""Promises of blocks and entries, for any records and any damage.

- What is packed is unpacked to the same, whole or record by record.
- A block that is cut, longer, or has one bit flipped is refused, whichever bit it is.
- Joining entries loses no record and changes none.
"""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from millstream.errors import CorruptionError
from millstream.format import block, entries, keys
from millstream.format.block import METADATA, PAYLOAD, Block
from millstream.log.block import pack

I64 = st.integers(-(2**63), 2**63 - 1)
BYTES = st.binary(max_size=12)
VALUES = st.lists(BYTES, min_size=1, max_size=20)
Found = tuple[entries.Entry, list[bytes]]
HEADERS = st.just(b"") | st.just(b"\x81\xa1h\x01")


@st.composite
def columns(draw: st.DrawFn) -> Found:
    count = draw(st.integers(1, 20))

    def column(values: st.SearchStrategy) -> list:  # type: ignore[type-arg]
        return draw(st.lists(values, min_size=count, max_size=count))

    entry = entries.Entry(
        ids=range(count),
        keys=column(st.none() | BYTES),
        headers=column(HEADERS),
        timestamps=column(I64),
        appended=column(I64),
        packed=False,
    )
    return entry, column(BYTES)


@given(found=columns(), first_offset=st.integers(0, 2**62))
def test_records_come_back(found: Found, first_offset: int) -> None:
    packed = pack("log", first_offset, *found)
    records = packed.records()
    entry, values = found

    assert [r.offset - first_offset for r in records] == [*range(len(values))]
    assert [r.value for r in records] == packed.values() == values
    assert [r.key for r in records] == packed.keys() == entry.keys
    assert [r.timestamp for r in records] == packed.timestamps() == entry.timestamps
    assert [r.appended for r in records] == entry.appended
    assert [dict(r.headers) for r in records] == [{"h": 1} if h else {} for h in entry.headers]
    assert pack("log", first_offset, entry, None).bare_records() == [
        replace(r, value=b"") for r in records
    ]


@given(found=columns(), data=st.data())
def test_any_part_of_the_records_comes_back(found: Found, data: st.DataObject) -> None:
    whole = pack("log", 0, *found)
    skip = data.draw(st.integers(0, len(whole) - 1))
    count = data.draw(st.integers(1, len(whole) - skip))
    part = type(whole)("log", skip, skip, count, whole.metadata, whole.payload)

    assert part.records() == whole.records()[skip : skip + count]


@given(values=VALUES)
def test_each_value_is_found_alone(values: list[bytes]) -> None:
    body = block.encode_values(values)
    data = block.place(
        body,
        kind=PAYLOAD,
        count=len(values),
        first_id=0,
        columns=block.VALUE,
        body_crc=block.checksum(body),
    )
    found = Block(data, kind=PAYLOAD)

    assert [found.cell(block.VALUE, n) for n in range(len(values))] == values
    assert len(data) % 8 == 0


@given(found=columns(), data=st.data())
def test_a_part_of_the_bytes_is_refused(found: Found, data: st.DataObject) -> None:
    whole = pack("log", 0, *found)
    for value, kind in ((whole.metadata, METADATA), (whole.payload, PAYLOAD)):
        size = data.draw(st.integers(0, len(value) - 1))
        for wrong in (value[:size], value + b"\x00" * (size + 1), value[size + 1 :]):
            with pytest.raises(CorruptionError):
                Block(wrong, kind=kind)


@given(found=columns(), data=st.data())
def test_a_flipped_bit_is_refused(found: Found, data: st.DataObject) -> None:
    whole = pack("log", 0, *found)
    for value, kind in ((whole.metadata, METADATA), (whole.payload, PAYLOAD)):
        bit = data.draw(st.integers(0, 8 * len(value) - 1))
        wrong = bytearray(value)
        wrong[bit // 8] ^= 1 << bit % 8
        with pytest.raises(CorruptionError):
            Block(bytes(wrong), kind=kind)


@given(data=st.binary(max_size=200))
def test_any_bytes_are_refused(data: bytes) -> None:
    for kind in (METADATA, PAYLOAD):
        with pytest.raises(CorruptionError):
            Block(data, kind=kind)


@given(data=st.binary(max_size=100))
def test_any_bytes_are_an_entry_or_refused(data: bytes) -> None:
    try:
        found = entries.decode(data)
    except CorruptionError:
        return
    assert len(found) == entries.count(data)


@given(
    key=st.none() | BYTES,
    timestamp_ms=I64,
    headers=HEADERS,
    appended_ms=I64,
    message_id=st.integers(0, 2**63 - 1),
)
def test_a_single_entry_comes_back(
    key: bytes | None, timestamp_ms: int, headers: bytes, appended_ms: int, message_id: int
) -> None:
    metadata = entries.encode_metadata(
        key=key, timestamp_ms=timestamp_ms, headers=headers, appended_ms=appended_ms
    )
    found = entries.decode(entries.encode_single(message_id, metadata))

    assert (list(found.ids), list(found.keys)) == ([message_id], [key])
    assert (list(found.timestamps), list(found.appended)) == ([timestamp_ms], [appended_ms])
    assert list(found.headers) == [headers]


@given(offsets=st.lists(st.tuples(st.integers(1, 3), st.integers(0, 30)), unique=True))
def test_joining_loses_nothing(offsets: list[tuple[int, int]]) -> None:
    metadata = entries.encode_metadata(key=None, timestamp_ms=1, headers=b"", appended_ms=1)
    rows = [
        (keys.entry(log, offset), entries.encode_single(100 * log + offset, metadata))
        for log, offset in offsets
    ]
    found = []
    for key, value in entries.coalesce(rows):
        log, (first, _) = keys.pair(key)[0], entries.extent(key, value)
        for n, message_id in enumerate(entries.decode(value).ids):
            assert message_id == 100 * log + first + n
            found.append((log, first + n))

    assert sorted(found) == sorted(offsets)
