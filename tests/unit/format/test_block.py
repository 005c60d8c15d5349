"""Blocks: golden bytes, what each column costs, and what a damaged one says."""

from __future__ import annotations

import struct

import pytest

from millstream.errors import CorruptionError
from millstream.format import block
from millstream.format.block import METADATA, PAYLOAD, Block

GOLDEN_PAYLOAD = """
ff ff 01 01 03 00 00 00  02 01 00 00 00 00 00 00
00 00 00 00 00 00 00 00  00 00 00 00 00 00 00 00
01 00 00 00 18 00 00 00  00 00 00 00 00 00 00 00
9a e2 bc 64 63 5f 51 71
00 00 00 00 01 00 00 00  01 00 00 00 03 00 00 00
61 62 63 00 00 00 00 00
"""

GOLDEN_METADATA = """
ff ff 01 02 03 00 00 00  02 01 00 00 00 00 00 00
d0 07 00 00 00 00 00 00  e8 03 00 00 00 00 00 00
1e 00 00 00 50 00 00 00  18 00 00 00 00 00 00 00
38 5b 9c 31 9c 47 fd c0
01 00 00 00 00 00 00 00  02 00 00 00 00 00 00 00
ff ff ff ff ff ff ff ff
05 00 00 00 00 00 00 00
00 00 00 00 01 00 00 00  01 00 00 00 01 00 00 00
6b 00 00 00 00 00 00 00
00 00 00 00 00 00 00 00  04 00 00 00 04 00 00 00
81 a1 68 01 00 00 00 00
"""


def payload_block(values: list[bytes], first_id: int = 258) -> bytes:
    body = block.encode_values(values)
    return block.place(
        body,
        kind=PAYLOAD,
        count=len(values),
        first_id=first_id,
        columns=block.VALUE,
        body_crc=block.checksum(body),
    )


def metadata_block() -> bytes:
    columns, body = block.encode_metadata(
        timestamps=[1, 2, -1], keys=[b"k", None, b""], headers=[b"", b"\x81\xa1h\x01", b""]
    )
    return block.place(
        body,
        kind=METADATA,
        count=3,
        first_id=258,
        columns=columns,
        body_crc=block.checksum(body),
        appended_ms=2_000,
        timestamp_ms=1_000,
        payload_bytes=24,
    )


def changed(data: bytes, at: int, new: bytes, *, crc: bool = True) -> bytes:
    """A block with other bytes in its header; its checksum made to fit."""
    head = bytearray(data[: block.HEADER_BYTES])
    head[at : at + len(new)] = new
    if crc:
        head[52:56] = struct.pack("<I", block.checksum(bytes(head[:52])))
    return bytes(head) + data[block.HEADER_BYTES :]


def test_the_bytes_of_a_payload_block() -> None:
    data = payload_block([b"a", b"", b"bc"])

    assert data.hex() == bytes.fromhex(GOLDEN_PAYLOAD).hex()
    found = Block(bytes.fromhex(GOLDEN_PAYLOAD), kind=PAYLOAD)
    assert found.column(block.VALUE) == [b"a", b"", b"bc"]
    assert (found.count, found.header.first_id, found.header.body_bytes) == (3, 258, 24)


def test_the_bytes_of_a_metadata_block() -> None:
    data = metadata_block()

    assert data.hex() == bytes.fromhex(GOLDEN_METADATA).hex()
    found = Block(bytes.fromhex(GOLDEN_METADATA), kind=METADATA)
    assert list(found.timestamps()) == [1, 2, -1]
    assert list(found.appended()) == [2_000] * 3
    assert found.keys() == [b"k", None, b""]
    assert [found.keys(n, 1) for n in range(3)] == [[b"k"], [None], [b""]]
    assert found.column(block.HEADERS) == [b"", b"\x81\xa1h\x01", b""]
    assert found.header.payload_bytes == 24


def test_what_is_the_same_for_all_takes_no_column() -> None:
    columns, body = block.encode_metadata(timestamps=None, keys=None, headers=None)
    data = block.place(
        body,
        kind=METADATA,
        count=2,
        first_id=0,
        columns=columns,
        body_crc=block.checksum(body),
        appended_ms=5,
        timestamp_ms=7,
    )
    found = Block(data, kind=METADATA)

    assert (columns, len(data)) == (0, block.HEADER_BYTES)
    assert (list(found.timestamps()), list(found.appended())) == ([7, 7], [5, 5])
    assert (found.keys(), found.column(block.HEADERS)) == ([None, None], None)
    assert (found.validity(), found.cell(block.KEY, 0), found.buffers(block.KEY)) == (None,) * 3


def test_keys_without_a_gap_need_no_validity() -> None:
    columns, _ = block.encode_metadata(timestamps=None, keys=[b"a", b""], headers=None)

    assert columns == block.KEY


def test_times_of_appends_that_differ_are_a_column() -> None:
    columns, body = block.encode_metadata(
        timestamps=None, keys=None, headers=None, appended=[1, 2, 3]
    )
    data = block.place(
        body, kind=METADATA, count=3, first_id=0, columns=columns, body_crc=block.checksum(body)
    )

    assert list(Block(data, kind=METADATA).appended()) == [1, 2, 3]


@pytest.mark.parametrize("count", [1, 2, 7, 8, 9, 15, 16, 17, 100])
def test_validity_of_any_length(count: int) -> None:
    keys = [None if n % 3 == 0 else bytes([n]) for n in range(count)]
    columns, body = block.encode_metadata(timestamps=None, keys=keys, headers=None)
    data = block.place(
        body, kind=METADATA, count=count, first_id=0, columns=columns, body_crc=block.checksum(body)
    )

    found = Block(data, kind=METADATA)
    assert found.keys() == keys
    for first in range(count):
        assert found.keys(first, 1) == keys[first : first + 1]
        assert found.keys(first) == keys[first:]


def test_some_records_are_found_without_the_others() -> None:
    values = [bytes([n]) * n for n in range(20)]
    found = Block(payload_block(values), kind=PAYLOAD)

    assert found.column(block.VALUE) == values
    assert found.column(block.VALUE, 7) == values[7:]
    assert found.column(block.VALUE, 7, 5) == values[7:12]
    assert found.column(block.VALUE, 7, 0) == []
    assert found.column(block.HEADERS, 7, 5) is None


def test_one_record_is_found_without_the_others() -> None:
    values = [bytes([n]) * n for n in range(20)]
    found = Block(payload_block(values), kind=PAYLOAD)

    assert [found.cell(block.VALUE, n) for n in range(20)] == values
    for outside in (-1, 20):
        with pytest.raises(IndexError):
            found.cell(block.VALUE, outside)


def test_buffers_are_as_arrow_wants_them() -> None:
    data = payload_block([b"ab", b"", b"c"])
    buffers = Block(data, kind=PAYLOAD).buffers(block.VALUE)

    assert buffers is not None
    offsets, values = buffers
    assert offsets.cast("I").tolist() == [0, 2, 2, 3]
    assert bytes(values) == b"abc"
    assert offsets.obj is data
    assert (block.HEADER_BYTES % 8, len(data) % 8) == (0, 0)


def test_a_block_never_looks_like_an_rfc_array() -> None:
    assert block.is_block(payload_block([b"a"]))
    assert not block.is_block(b"\x01\x00" + bytes(60))
    assert not block.is_block(b"")


@pytest.mark.parametrize("size", [0, 1, 55, 56, 57, 79])
def test_a_cut_block_is_refused(size: int) -> None:
    with pytest.raises(CorruptionError):
        Block(payload_block([b"a", b"", b"bc"])[:size], kind=PAYLOAD)


def test_bytes_after_the_end_are_refused() -> None:
    with pytest.raises(CorruptionError):
        Block(payload_block([b"a"]) + b"\x00", kind=PAYLOAD)


@pytest.mark.parametrize(
    ("at", "new", "says"),
    [
        (0, b"\xfe", "version"),
        (2, b"\x02", "version"),
        (3, b"\x02", "kind"),
        (4, b"\x09", "cut|do not"),
        (32, b"\x03", "do not"),
        (32, b"\x41", "do not"),
        (36, b"\x20", "body"),
        (48, b"\x00", "body"),
    ],
)
def test_a_header_that_says_something_else_is_refused(at: int, new: bytes, says: str) -> None:
    with pytest.raises(CorruptionError, match=says):
        Block(changed(payload_block([b"a", b"", b"bc"]), at, new), kind=PAYLOAD)


def test_a_damaged_header_is_refused_before_it_is_believed() -> None:
    with pytest.raises(CorruptionError, match="header"):
        Block(changed(payload_block([b"a"]), 8, b"\x07", crc=False), kind=PAYLOAD)


@pytest.mark.parametrize(
    "offsets", [(1, 1, 1, 3), (0, 2, 1, 3), (0, 1, 1, 9), (0, 1, 1, 2**32 - 1)]
)
def test_offsets_that_make_no_sense_are_refused(offsets: tuple[int, ...]) -> None:
    body = struct.pack("<4I", *offsets) + b"abc".ljust(8, b"\x00")
    data = block.place(
        body, kind=PAYLOAD, count=3, first_id=0, columns=1, body_crc=block.checksum(body)
    )
    with pytest.raises(CorruptionError):
        Block(data, kind=PAYLOAD)


def test_a_count_larger_than_the_block_is_refused() -> None:
    data = changed(payload_block([b"a"]), 4, struct.pack("<I", 2**32 - 1))
    with pytest.raises(CorruptionError):
        Block(data, kind=PAYLOAD)
