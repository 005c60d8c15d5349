"""A header added to packed records: nothing else of them changes."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from millstream.format import block
from millstream.format.headers import add_header
from millstream.format.packing import Batch, Single, pack_batch, pack_single
from millstream.format.record_checks import check_packed
from millstream.limits import Limits

HEADERS = st.none() | st.dictionaries(st.sampled_from(["a", "t", "z"]), st.integers(0, 9))
ROWS = st.lists(
    st.tuples(st.binary(max_size=5), st.none() | st.binary(max_size=3), HEADERS), min_size=1
)


def decoded(cell: bytes) -> Any:
    return msgspec.msgpack.decode(cell) if cell else {}


def columns_of(batch: Batch) -> tuple[Any, Any, Any]:
    whole = block.place(
        batch.metadata,
        kind=block.METADATA,
        count=batch.count,
        first_id=0,
        columns=batch.columns,
        body_crc=batch.metadata_crc,
    )
    found = block.Block(whole, kind=block.METADATA)
    cells = found.column(block.HEADERS) or [b""] * batch.count
    return found.keys(), list(found.timestamps()), [decoded(cell) for cell in cells]


@given(ROWS, st.booleans())
def test_each_record_of_a_batch_has_it_and_stays_what_it_was(rows: Any, timed: bool) -> None:
    values, keys, headers = zip(*rows, strict=True)
    times = list(range(len(rows))) if timed else None
    packed = pack_batch(
        list(values), keys=list(keys), headers=list(headers), timestamps=times, limits=Limits()
    )
    found = add_header(packed, "t", "new", Limits())
    assert isinstance(found, Batch)
    check_packed(found, Limits())
    assert (found.count, found.payload, found.payload_crc) == (
        packed.count,
        packed.payload,
        packed.payload_crc,
    )
    assert columns_of(found)[:2] == columns_of(packed)[:2]
    assert columns_of(found)[2] == [{"t": "new", **(one or {})} for one in headers]


@pytest.mark.parametrize("headers", [None, {"a": 1}, {"t": "own"}])
def test_a_single_record_has_it(headers: Any) -> None:
    packed = pack_single(b"v", key=b"k", headers=headers, timestamp=7, limits=Limits())
    found = add_header(packed, "t", "new", Limits())
    assert isinstance(found, Single)
    check_packed(found, Limits())
    assert (found.value, found.key, found.timestamp_ms) == (b"v", b"k", 7)
    assert decoded(found.headers) == {"t": "new", **(headers or {})}


def test_what_would_grow_too_large_stays_as_it_is() -> None:
    limits = Limits(headers_bytes_max=12)
    single = pack_single(b"v", key=None, headers={"a": "12345"}, timestamp=None, limits=limits)
    assert add_header(single, "t", "new", limits) == single
    batch = pack_batch(
        [b"v", b"w"], keys=None, headers=[{"a": 1}, None], timestamps=None, limits=Limits()
    )
    assert add_header(batch, "t", "new", Limits(batch_bytes_max=60)) == batch
