"""Promises of blocks and entries, for any records and any damage.

- What is packed is unpacked to the same, whole or record by record.
- A block that is cut, longer, or has one bit flipped is refused, whichever bit it is.
- Joining single appends loses no record and changes none, and they count for as many bytes.
"""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from millstream.errors import CorruptionError
from millstream.format import block, entries, keys
from millstream.format.block import METADATA, PAYLOAD, Block
from millstream.format.block_join import coalesce
from millstream.log.model.block import pack

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


LONE = st.tuples(BYTES, st.none() | BYTES, I64, HEADERS, I64, st.booleans())
"""A record: value, key, timestamp, headers, when it was appended; and whether its payload is large."""


@given(
    st.dictionaries(st.tuples(st.integers(1, 3), st.integers(0, 30)), LONE, max_size=40),
    st.randoms(use_true_random=False),
)
def test_joining_loses_nothing(
    records: dict[tuple[int, int], tuple[bytes, bytes | None, int, bytes, int, bool]],
    source: random.Random,
) -> None:
    ids = dict(zip(records, source.sample(range(100), len(records)), strict=True))
    rows, home, size = [], {}, 0
    for place, (value, key, timestamp_ms, headers, appended_ms, is_large) in records.items():
        metadata = entries.encode_metadata(
            key=key, timestamp_ms=timestamp_ms, headers=headers, appended_ms=appended_ms
        )
        rows.append((keys.entry(*place), entries.encode_single(ids[place], metadata)))
        payload = keys.payload(ids[place]), value
        if is_large:
            home[payload[0]] = value
        else:
            rows.append(payload)
            size += len(value)
        size += len(metadata)
    source.shuffle(rows)

    joined = dict(coalesce(rows))

    found = {}
    for row_key, row in joined.items():
        if row_key[1] != keys.ENTRY:
            continue
        log, (first, stop) = keys.pair(row_key)[0], entries.extent(row_key, row)
        entry = entries.decode(row)
        if entry.packed:
            header = block.decode_header(row, kind=METADATA)
            payloads = Block(joined[keys.payload_block(header.first_id)], kind=PAYLOAD).column(
                block.VALUE
            )
            size -= header.log_bytes
        else:
            payload_key = keys.payload(entry.ids[0])
            payloads = [home[payload_key] if payload_key in home else joined[payload_key]]
            size -= len(row) - entries.SINGLE_HEAD_BYTES
            size -= len(joined.get(payload_key, b""))
        columns = entry.keys, entry.timestamps, entry.headers, entry.appended, entry.ids
        for offset, value, *rest in zip(range(first, stop), payloads or [], *columns, strict=True):
            found[log, offset] = (value, *rest)
    assert found == {place: (*record[:5], ids[place]) for place, record in records.items()}
    assert size == 0
