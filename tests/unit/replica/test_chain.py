"""The running hash: the same for the same records, however they were batched or stored."""

from __future__ import annotations

from hashlib import sha256

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millstream.errors import CorruptionError, InvalidInput
from millstream.format import block as blocks
from millstream.format.entries import Entry
from millstream.log.model.block import RecordBlock, pack
from millstream.replica.chain import (
    PIECE_BYTES_MAX,
    PIECE_RECORDS_MAX,
    ZERO,
    Chain,
    Mark,
    Run,
    link,
    parse,
)

Rows = list[tuple[bytes | None, bytes | None, bytes, int, int]]
HEADERS = (b"", b"\x92\x92\xa1n\x01\x92\xa1n\x02", b"\x81\xa1n\x01", b"\x82\xa1a\xc0\xa1b\xc3")

rows_of = st.lists(
    st.tuples(
        st.one_of(st.none(), st.binary(max_size=20)),
        st.one_of(st.none(), st.binary(max_size=5)),
        st.sampled_from(HEADERS),
        st.integers(0, 2**40),
        st.integers(0, 2**40),
    ),
    min_size=1,
    max_size=40,
)


def packed(rows: Rows, first: int = 0) -> RecordBlock:
    values, keys, headers, timestamps, appended = map(list, zip(*rows, strict=True))
    entry = Entry(
        ids=range(len(rows)),
        appended=appended,
        packed=False,
        keys=keys,
        headers=headers,
        timestamps=timestamps,
        valid=[value is not None for value in values],
    )
    return pack("a", first, entry, [value or b"" for value in values])


def plain(count: int, size: int = 1) -> Rows:
    return [(b"%d" % (n % 10) * size, None, b"", 1, 1) for n in range(count)]


def chained(rows: Rows, cuts: list[int]) -> tuple[list[Mark], bytes]:
    chain, marks, start = Chain(Mark(0, ZERO)), [], 0
    for stop in [*sorted({cut for cut in cuts if 0 < cut < len(rows)}), len(rows)]:
        marks += chain.extend(packed(rows[start:stop], start))
        start = stop
    assert chain.end == len(rows)
    return marks, chain.digest()


def by_hand(rows: Rows) -> bytes:
    """A run's digest, as the document says it."""
    columns = [
        b"".join(
            (2**32 - 1 if value is None else len(value)).to_bytes(4, "little") for value, *_ in rows
        ),
        b"".join(value or b"" for value, *_ in rows),
        b"".join(row[3].to_bytes(8, "little") for row in rows),
        b"".join(row[4].to_bytes(8, "little") for row in rows),
        bytes(row[1] is not None for row in rows),
        b"".join(len(row[1] or b"").to_bytes(4, "little") for row in rows),
        b"".join(row[1] or b"" for row in rows),
        b"".join(len(row[2]).to_bytes(4, "little") for row in rows),
        b"".join(row[2] for row in rows),
    ]
    whole = len(rows).to_bytes(8, "little") + b"".join(sha256(one).digest() for one in columns)
    return sha256(whole).digest()


@given(rows_of)
@settings(max_examples=50)
def test_a_run_is_hashed_column_by_column(rows: Rows) -> None:
    run = Run()
    run.add(packed(rows))
    assert run.digest() == by_hand(rows)
    assert (run.count, run.size) == (len(rows), sum(len(value or b"") for value, *_ in rows))


@given(rows_of, st.lists(st.integers(0, 40)))
@settings(max_examples=50)
def test_batches_do_not_matter(rows: Rows, cuts: list[int]) -> None:
    assert chained(rows, cuts) == chained(rows, [])
    assert chained(rows, [])[1] == link(ZERO, 0, by_hand(rows))


@given(rows_of, st.integers(0, 39), st.integers(0, 4))
@settings(max_examples=50)
def test_whatever_differs_shows(rows: Rows, at: int, field: int) -> None:
    at %= len(rows)
    changed = list(rows[at])
    others = (b"other" * 5, b"other" * 5, b"\x81\xa1z\x05", 2**41, 2**41)
    changed[field] = others[field]
    other = [*rows[:at], tuple(changed), *rows[at + 1 :]]
    assert chained(other, [])[1] != chained(rows, [])[1]  # type: ignore[arg-type]


def test_no_key_and_an_empty_key_are_two_things() -> None:
    none, empty = ([(b"v", key, b"", 1, 1)] for key in (None, b""))
    assert chained(none, [])[1] != chained(empty, [])[1]


def test_no_headers_and_an_empty_map_are_one() -> None:
    none, empty = ([(b"v", None, headers, 1, 1), (b"w", None, b"\x81\xa1n\x01", 1, 1)]
                   for headers in (b"", b"\x80"))  # fmt: skip
    assert chained(none, [])[1] == chained(empty, [])[1]


def test_a_piece_closes_by_its_records() -> None:
    rows = plain(2 * PIECE_RECORDS_MAX + 10)
    marks, _ = chained(rows, [7, 1_000, 1_025])
    assert [mark.offset for mark in marks] == [PIECE_RECORDS_MAX, 2 * PIECE_RECORDS_MAX]
    first = link(ZERO, 0, by_hand(rows[:PIECE_RECORDS_MAX]))
    second = link(first, PIECE_RECORDS_MAX, by_hand(rows[PIECE_RECORDS_MAX:][:PIECE_RECORDS_MAX]))
    assert [mark.digest for mark in marks] == [first, second]


@pytest.mark.parametrize("cuts", [[], [1], [3, 4], [1, 2, 3, 4, 5, 6, 7, 8, 9]])
def test_a_piece_closes_by_its_bytes_with_the_record_that_crosses(cuts: list[int]) -> None:
    rows = plain(10, PIECE_BYTES_MAX // 4 + 1)
    marks, _ = chained(rows, cuts)
    assert [mark.offset for mark in marks] == [4, 8]
    exact = plain(10, PIECE_BYTES_MAX // 4)
    assert [mark.offset for mark in chained(exact, cuts)[0]] == [4, 8]


def test_a_record_larger_than_a_piece_is_one() -> None:
    rows = [*plain(1), (b"x" * (PIECE_BYTES_MAX + 5), None, b"", 1, 1), *plain(1)]
    assert [mark.offset for mark in chained(rows, [])[0]] == [2]
    assert [mark.offset for mark in chained(rows, [1, 2])[0]] == [2]


def test_a_chain_goes_on_from_any_mark() -> None:
    rows = plain(3_000)
    marks, digest = chained(rows, [])
    chain = Chain(marks[0])
    assert chain.extend(packed(rows[marks[0].offset :], marks[0].offset)) == marks[1:]
    assert chain.digest() == digest
    assert Chain(marks[1]).digest() == marks[1].digest


def test_a_copy_of_a_chain_goes_on_by_itself() -> None:
    rows = plain(10)
    chain = Chain(Mark(0, ZERO))
    chain.extend(packed(rows[:5]))
    before, copy = chain.digest(), chain.copy()
    copy.extend(packed(rows[5:], 5))
    assert chain.digest() == before
    assert copy.digest() == chained(rows, [])[1]


def test_part_of_a_block() -> None:
    rows = plain(10)
    whole = packed(rows)
    part = RecordBlock("a", 3, 3, 4, whole.metadata, whole.payload)
    run = Run()
    run.add(part)
    assert run.digest() == by_hand(rows[3:7])


def test_a_chain_has_no_gaps() -> None:
    chain = Chain(Mark(5, ZERO))
    with pytest.raises(InvalidInput):
        chain.extend(packed(plain(3), 4))
    with pytest.raises(InvalidInput):
        chain.extend(packed(plain(3), 6))
    assert chain.end == 5


def test_blocks_that_do_not_hold_what_they_say_are_refused() -> None:
    good, other = packed(plain(5)), packed(plain(4))
    with pytest.raises(InvalidInput):
        parse(RecordBlock("a", 0, 3, 3, good.metadata, good.payload))
    with pytest.raises(InvalidInput):
        parse(RecordBlock("a", 0, 0, 4, good.metadata, other.payload))
    flipped = bytearray(good.payload)
    flipped[-1] ^= 1
    with pytest.raises(CorruptionError):
        parse(RecordBlock("a", 0, 0, 5, good.metadata, bytes(flipped)))
    with pytest.raises(CorruptionError):
        parse(RecordBlock("a", 0, 0, 5, good.payload, good.metadata))


def test_constant_columns_count_as_if_they_were_written_out() -> None:
    """A batch says its timestamps once; read back from single records they are a column."""
    values = [b"a", b"b"]
    body = blocks.encode_values(values)
    payload = blocks.place(
        body,
        kind=blocks.PAYLOAD,
        count=2,
        first_id=9,
        columns=blocks.VALUE,
        body_crc=blocks.checksum(body),
    )
    metadata = blocks.place(
        b"",
        kind=blocks.METADATA,
        count=2,
        first_id=9,
        columns=0,
        body_crc=blocks.checksum(b""),
        appended_ms=7,
        timestamp_ms=6,
    )
    run = Run()
    run.add(RecordBlock("a", 0, 0, 2, metadata, payload))
    assert run.digest() == by_hand([(value, None, b"", 6, 7) for value in values])
