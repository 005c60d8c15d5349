"""Cells: byte strings of any size in one column, and damage to their offsets."""

from __future__ import annotations

from itertools import accumulate

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millstream.errors import CorruptionError
from millstream.format.cells import Cells, encode_cells

items = st.lists(st.binary(max_size=300), max_size=60) | st.integers(0, 300).flatmap(
    lambda size: st.lists(st.binary(min_size=size, max_size=size), max_size=60)
)


def column(values: list[bytes], before: bytes = b"") -> Cells:
    return Cells(before + b"".join(encode_cells(values)), len(before), len(values))


def with_offsets(offsets: list[int], data: bytes) -> bytes:
    packed = b"".join(offset.to_bytes(4, "little") for offset in offsets)
    return packed + bytes(-len(packed) % 8) + data


@given(items, st.data())
def test_cells_come_back_as_they_were(values: list[bytes], data: st.DataObject) -> None:
    found = column(values, before=b"8 bytes.")
    first = data.draw(st.integers(0, len(values)))
    count = data.draw(st.integers(0, len(values) - first))
    some = values[first : first + count]

    assert found.cut(0, len(values)) == [found.cell(n) for n in range(len(values))] == values
    assert found.cut(first, count) == some
    assert found.pick(range(first, first + count)) == some
    assert found.pick(range(0, len(values), 3)) == values[::3]
    assert found.joined(first, count) == b"".join(some)
    assert found.any_is_empty(first, count) == (b"" in some)
    assert found.is_full() == (b"" not in values)
    assert list(found.sizes()) == list(map(len, values))
    assert list(found.ends) == list(accumulate(map(len, values), initial=0))
    assert found.stop == 8 + len(b"".join(encode_cells(values)))


@pytest.mark.parametrize("size", [255, 256, 257, 65_536])
def test_a_size_whose_lowest_byte_is_zero_is_not_empty(size: int) -> None:
    found = column([bytes(size), b"a"])

    assert found.is_full()
    assert not found.any_is_empty(0, 2)


@pytest.mark.parametrize(
    "offsets",
    [
        [1, 2, 3],
        [0, 3, 2],
        [0, 2, 1, 4],
        [0, 4, 0],
        [0, 2**32 - 1, 4],
        [0, 10, 2**31 + 5, 3],
        [0, 2**31, 2**32 - 1],
        [2**32 - 1, 0, 4],
        [4, 4, 4],
    ],
)
def test_offsets_that_do_not_ascend_from_zero_are_damage(offsets: list[int]) -> None:
    with pytest.raises(CorruptionError, match="ascend"):
        Cells(with_offsets(offsets, b"data"), 0, len(offsets) - 1)


def test_a_column_that_is_cut_is_damage() -> None:
    whole = b"".join(encode_cells([b"abc", b"d"]))
    with pytest.raises(CorruptionError, match="cut"):
        Cells(whole[:8], 0, 2)


@pytest.mark.parametrize("outside", [-1, 2])
def test_there_is_no_cell_outside(outside: int) -> None:
    with pytest.raises(IndexError):
        column([b"a", b"b"]).cell(outside)
