"""Message ids never repeat; claim ids and bucket ids hold a capacity and a number."""

from __future__ import annotations

from pathlib import Path

import pytest

from millstream.errors import CorruptionError, InvalidInput, Overloaded
from millstream.format.ids import (
    SeqBlock,
    bucket_of,
    capacity_of,
    decode_seq_block,
    encode_seq_block,
    make_bucket_id,
    make_claim_id,
    next_block,
    split_id,
)

FORMAT_MD = Path(__file__).parents[3] / "docs" / "FORMAT.md"


def test_a_seq_block_is_two_big_endian_numbers() -> None:
    block = SeqBlock(base=258, size=8192)
    golden = "00 00 00 00 00 00 01 02 00 00 00 00 00 00 20 00"

    assert encode_seq_block(block).hex(" ") == golden
    assert decode_seq_block(bytes.fromhex(golden)) == block
    assert block.end == 8450
    assert f"`{golden}`" in FORMAT_MD.read_text()


@pytest.mark.parametrize(
    ("next_id", "count", "size"),
    [(0, 1, 4096), (5, 4095, 4096), (5, 4096, 4096), (5, 4097, 8192), (0, 100_000, 102_400)],
)
def test_the_next_block_is_the_smallest_that_covers_the_ids(
    next_id: int, count: int, size: int
) -> None:
    assert next_block(next_id, count) == SeqBlock(base=next_id, size=size)


def test_the_last_block_ends_with_the_largest_id() -> None:
    last = next_block((1 << 63) - 4096, 4096)

    assert last.end == 1 << 63
    assert decode_seq_block(encode_seq_block(last)) == last


@pytest.mark.parametrize(("next_id", "count"), [((1 << 63) - 4095, 1), (1, 1 << 63), (1 << 64, 1)])
def test_ids_past_the_largest_are_refused(next_id: int, count: int) -> None:
    with pytest.raises(Overloaded):
        next_block(next_id, count)


@pytest.mark.parametrize(
    "value",
    [
        "",
        "00" * 15,
        "00" * 17,
        "00" * 16,
        "00" * 14 + "1001",
        "7fffffffffffffff" + "0000000000001000",
        "0000000000000000" + "fffffffffffff000",
    ],
)
def test_a_seq_block_that_was_never_written_is_refused(value: str) -> None:
    with pytest.raises(CorruptionError):
        decode_seq_block(bytes.fromhex(value))


def test_capacities_are_powers_of_ten() -> None:
    assert [capacity_of(exponent) for exponent in range(5)] == [1, 10, 100, 1_000, 10_000]


@pytest.mark.parametrize("exponent", [-1, 5, 15, 16])
def test_a_capacity_that_an_array_cannot_count_is_refused(exponent: int) -> None:
    for make in (make_claim_id, make_bucket_id):
        with pytest.raises(InvalidInput):
            make(exponent, 0)


def test_a_claim_id_holds_exponent_and_number() -> None:
    claim_id = make_claim_id(2, 301)

    assert claim_id == 0x2000_0000_0000_012D
    assert split_id(claim_id) == (2, 301)
    assert f"`{claim_id:#018x}`" in FORMAT_MD.read_text()


def test_a_claim_id_leads_to_its_bucket() -> None:
    assert bucket_of(make_claim_id(2, 301)) == make_bucket_id(2, 300) == 0x2000_0000_0000_012C
    assert bucket_of(make_claim_id(0, 301)) == make_bucket_id(0, 301)
    assert bucket_of(make_claim_id(4, 9_999)) == make_bucket_id(4, 0)
    assert bucket_of(make_claim_id(4, 10_000)) == make_bucket_id(4, 10_000)


@pytest.mark.parametrize("number", [-1, 1 << 60])
def test_a_number_past_60_bits_is_refused(number: int) -> None:
    assert split_id(make_claim_id(4, (1 << 60) - 1)) == (4, (1 << 60) - 1)
    with pytest.raises(InvalidInput):
        make_claim_id(0, number)


def test_a_bucket_starts_at_a_multiple_of_its_capacity() -> None:
    with pytest.raises(InvalidInput):
        make_bucket_id(2, 301)


@pytest.mark.parametrize("packed", [-1, 5 << 60, 1 << 64])
def test_a_number_that_is_no_claim_id_has_no_bucket(packed: int) -> None:
    for read in (split_id, bucket_of):
        with pytest.raises(InvalidInput):
            read(packed)
