"""Keys of our own records: golden bytes, order, and what is refused."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from millstream.errors import CorruptionError
from millstream.format import keys


@pytest.mark.parametrize(
    ("key", "golden"),
    [
        (keys.payload(258), "01 01 00 00 00 00 00 00 01 02"),
        (keys.payload_block(258), "01 07 00 00 00 00 00 00 01 02"),
        (keys.entry(3, 258), "01 08 00 00 00 00 00 00 00 03 00 00 00 00 00 00 01 02"),
        (keys.log_name("é/a"), "01 09 c3 a9 2f 61"),
        (keys.head(3), "01 0a 00 00 00 00 00 00 00 03"),
        (keys.metadata(3), "01 0b 00 00 00 00 00 00 00 03"),
        (keys.cursor(3, "c"), "01 0c 00 00 00 00 00 00 00 03 63"),
        (keys.producer(3, "p"), "01 0d 00 00 00 00 00 00 00 03 70"),
        (keys.delta(258), "01 0e 00 00 00 00 00 00 01 02"),
        (keys.ID_BLOCK_KEY, "01 0f"),
        (keys.STORE_KEY, "01 10"),
    ],
)
def test_golden_bytes(key: bytes, golden: str) -> None:
    assert key.hex(" ") == golden


@pytest.mark.parametrize("make", [keys.payload, keys.payload_block, keys.delta, keys.head])
def test_numbers_sort_and_come_back(make: Callable[[int], bytes]) -> None:
    numbers = [0, 1, 255, 256, 2**32, 2**63 - 1]

    assert sorted(map(make, numbers)) == [make(n) for n in numbers]
    assert [keys.number(make(n)) for n in numbers] == numbers


def test_entries_sort_by_log_and_then_by_offset() -> None:
    positions = [(1, 0), (1, 1), (1, 256), (1, 2**63), (2, 0), (256, 0)]

    assert sorted(keys.entry(*p) for p in positions) == [keys.entry(*p) for p in positions]
    assert [keys.pair(keys.entry(*p)) for p in positions] == positions


@pytest.mark.parametrize("name", ["c", "a" * 255, "日本", "é"])
def test_a_trailing_name_comes_back(name: str) -> None:
    assert keys.trailing_name(keys.cursor(9, name)) == name
    assert keys.trailing_name(keys.producer(9, name)) == name


def test_a_range_holds_exactly_what_has_the_prefix() -> None:
    start, stop = keys.range_of(keys.cursor(255, ""))
    inside = [keys.cursor(255, ""), keys.cursor(255, "a"), keys.cursor(255, "\U0010ffff" * 10)]
    outside = [keys.cursor(254, "z"), keys.cursor(256, ""), keys.producer(255, "a")]

    assert all(start <= key < stop for key in inside)
    assert not any(start <= key < stop for key in outside)


def test_the_key_behind_a_prefix_of_ff() -> None:
    assert keys.after(b"\x01\x02") == b"\x01\x03"
    assert keys.after(b"\x01\xff") == b"\x02"
    assert keys.after(b"\x01\x07\xff\xff") == b"\x01\x08"


def test_types_do_not_collide() -> None:
    kinds = [
        value
        for name, value in vars(keys).items()
        if name.isupper() and isinstance(value, int) and name != "VERSION"
    ]

    assert len(kinds) == len(set(kinds))
    assert not {0x02, 0x03, 0x04, 0x05, 0x06} & {*kinds}


def test_the_kind_of_a_key() -> None:
    assert keys.kind_of(keys.head(1)) == keys.HEAD
    for wrong in (b"", b"\x01", b"\x02\x0a"):
        with pytest.raises(CorruptionError):
            keys.kind_of(wrong)


@pytest.mark.parametrize("wrong", [b"", b"\x01\x0a", keys.entry(1, 2), keys.head(1) + b"\x00"])
def test_a_number_of_another_length_is_refused(wrong: bytes) -> None:
    with pytest.raises(CorruptionError):
        keys.number(wrong)


@pytest.mark.parametrize("wrong", [b"", keys.head(1), keys.entry(1, 2) + b"\x00"])
def test_a_pair_of_another_length_is_refused(wrong: bytes) -> None:
    with pytest.raises(CorruptionError):
        keys.pair(wrong)
