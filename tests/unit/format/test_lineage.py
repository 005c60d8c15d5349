"""Rows of forks, former logs and marks, and entries that are cut."""

from __future__ import annotations

import pytest

from millstream.errors import CorruptionError
from millstream.format import block, entries
from millstream.format.lineage import (
    Fork,
    Former,
    decode_fork,
    decode_former,
    decode_marks,
    encode_fork,
    encode_former,
    encode_marks,
)


def test_a_fork_survives_its_encoding() -> None:
    for fork in (Fork(1, 0), Fork(2**63, 2**64 - 1, 7)):
        assert decode_fork(encode_fork(fork)) == fork


@pytest.mark.parametrize("wrong", [b"", bytes(23), bytes(25)])
def test_a_fork_of_another_size_is_refused(wrong: bytes) -> None:
    with pytest.raises(CorruptionError):
        decode_fork(wrong)


def test_a_former_log_survives_its_encoding() -> None:
    for former in (Former(0), Former(2**63, 2**64 - 1)):
        assert decode_former(encode_former(former)) == former


@pytest.mark.parametrize("wrong", [b"", bytes(15), bytes(17)])
def test_a_former_log_of_another_size_is_refused(wrong: bytes) -> None:
    with pytest.raises(CorruptionError):
        decode_former(wrong)


def test_marks_survive_their_encoding() -> None:
    marks = [(0, bytes(32)), (1_024, b"x" * 32), (2**63, b"y" * 32)]
    assert decode_marks(encode_marks(marks)) == marks


@pytest.mark.parametrize(
    "wrong",
    [
        b"",
        bytes(39),
        bytes(41),
        encode_marks([(5, bytes(32)), (5, bytes(32))]),
        encode_marks([(5, bytes(32)), (4, bytes(32))]),
    ],
)
def test_marks_that_cannot_be_are_refused(wrong: bytes) -> None:
    with pytest.raises(CorruptionError):
        decode_marks(wrong)


def joined(count: int) -> bytes:
    """An entry of records that were appended one by one."""
    rows = []
    for n in range(count):
        metadata = entries.encode_metadata(
            key=b"k%d" % n, timestamp_ms=n, headers=b"", appended_ms=n + 1
        )
        rows.append(entries.encode_single(10 + n * n, metadata))
    return entries.encode(entries.decode_singles(rows))


def batch(count: int) -> tuple[bytes, bytes]:
    """The entry of a batch, and its payload."""
    columns, body = block.encode_metadata(
        timestamps=range(count),
        keys=[None if n % 2 else b"k%d" % n for n in range(count)],
        headers=[b"\x81\xa1n%c" % n for n in range(count)],
    )
    values = block.encode_values([b"v" * n for n in range(count)])
    metadata = block.place(
        body,
        kind=block.METADATA,
        count=count,
        first_id=10,
        columns=columns,
        body_crc=block.checksum(body),
        appended_ms=99,
        payload_bytes=len(values),
    )
    payload = block.place(
        values,
        kind=block.PAYLOAD,
        count=count,
        first_id=10,
        columns=block.VALUE,
        body_crc=block.checksum(values),
    )
    return metadata, payload


def rows_of(value: bytes) -> list[tuple[object, ...]]:
    found = entries.decode(value)
    columns = (found.ids, found.keys, found.headers, found.timestamps, found.appended)
    return list(zip(*columns, strict=True))


@pytest.mark.parametrize("cut", [1, 3, 6])
@pytest.mark.parametrize("value", [joined(7), batch(7)[0]], ids=["singles", "batch"])
def test_an_entry_is_cut(value: bytes, cut: int) -> None:
    head = entries.head_of(value, cut)
    assert entries.count(head) == cut
    assert rows_of(head) == rows_of(value)[:cut]


@pytest.mark.parametrize("cut", [1, 3, 6])
def test_a_block_that_was_cut_gets_its_part_of_the_payload(cut: int) -> None:
    value, payload = batch(7)
    head = entries.head_of(value, cut)
    metadata, values = entries.with_payload(head, payload)
    found = block.Block(values, kind=block.PAYLOAD)
    header = block.decode_header(metadata, kind=block.METADATA)
    assert found.column(block.VALUE) == [b"v" * n for n in range(cut)]
    assert (found.header.first_id, header.first_id) == (10, 10)
    assert header.payload_bytes == found.header.body_bytes
    assert rows_of(metadata) == rows_of(head)
