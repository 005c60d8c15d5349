"""Parts of a frame are weighed as the decoder will find them, whatever they are."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from millstream.server.frame_parts import CONTAINER_WEIGHT, weigh

SCALARS = (
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats(allow_nan=False)
    | st.text(max_size=70)
    | st.binary(max_size=300)
    | st.builds(msgspec.msgpack.Ext, st.integers(0, 127), st.binary(max_size=40))
)
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=20) | st.dictionaries(st.text(), inner, max_size=20),
    max_leaves=60,
)


def weight_of(value: Any) -> int:
    if isinstance(value, list):
        return CONTAINER_WEIGHT + sum(map(weight_of, value))
    if isinstance(value, dict):
        return CONTAINER_WEIGHT + sum(1 + weight_of(one) for one in value.values())
    return 1


@given(VALUES)
def test_every_part_is_weighed_once(value: Any) -> None:
    assert weigh(msgspec.msgpack.encode(value)) == weight_of(value)


@pytest.mark.parametrize("size", [255, 256, 65_535, 65_536, 100_000])
def test_text_bytes_and_extensions_of_any_length_are_one_part(size: int) -> None:
    for value in (b"\x90" * size, "x" * size, msgspec.msgpack.Ext(3, b"\x90" * size)):
        assert weigh(msgspec.msgpack.encode([value, 1])) == CONTAINER_WEIGHT + 2


@pytest.mark.parametrize("count", [15, 16, 65_535, 65_536])
def test_long_arrays_and_maps_are_weighed_by_what_is_in_them(count: int) -> None:
    assert weigh(msgspec.msgpack.encode([0] * count)) == CONTAINER_WEIGHT + count
    assert weigh(msgspec.msgpack.encode({str(one): 0 for one in range(count)})) == (
        CONTAINER_WEIGHT + 2 * count
    )


def test_it_stops_weighing_where_it_is_too_much() -> None:
    assert weigh(b"\x90" * 10_000_000, most=100) == 110


@given(st.binary(max_size=200))
def test_whatever_comes_it_ends(data: bytes) -> None:
    assert weigh(data) <= CONTAINER_WEIGHT * len(data)
