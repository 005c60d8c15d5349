"""Promise: records become Arrow columns and rows become blocks without a change, slices included."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import millstream
from millstream import Item
from millstream.errors import InvalidInput
from millstream.format.packing import Batch, Single, pack_batch, pack_single
from millstream.format.record_checks import check_packed
from millstream.header import as_plain
from millstream.limits import Limits
from millstream.log.commands import ReadBlocks
from tests.records import HEADERS

pytestmark = pytest.mark.requires("spark")

LIMITS = Limits()
rows = st.lists(
    st.tuples(
        st.none() | st.binary(max_size=20),
        st.none() | st.binary(max_size=5),
        st.none() | HEADERS,
        st.integers(0, 10**13),
    ),
    min_size=1,
    max_size=40,
)
Rows = list[tuple[bytes | None, bytes | None, Any, int]]


def table(found: Rows) -> Any:
    """Rows as Spark hands them over, with typed headers."""
    import pyarrow as pa

    from millstream.spark.source.columns import header_column

    binary = [("x", pa.binary()), ("p", pa.binary())]
    scalar = pa.struct(
        [("s", pa.string()), ("i", pa.int64()), ("d", pa.float64()), ("b", pa.bool_()), *binary]
    )
    columns = {
        "value": pa.array([row[0] for row in found], pa.binary()),
        "key": pa.array([row[1] for row in found], pa.binary()),
        "headers": header_column(
            [as_plain(row[2] or {}) for row in found], pa.map_(pa.string(), scalar)
        ),
        "timestamp": pa.array([row[3] * 1000 for row in found], pa.int64()).cast(
            pa.timestamp("us", tz="UTC")
        ),
    }
    return pa.RecordBatch.from_pydict(columns)


@given(rows, st.integers(0, 5))
@settings(max_examples=150)
def test_rows_are_packed_as_records_that_are_appended_one_by_one_would_be(
    found: Rows, skip: int
) -> None:
    from millstream.spark.sink.rows import blocks_of

    batch = table(found).slice(skip)
    left = found[skip:]
    packed = list(blocks_of(batch, LIMITS))
    assert len(packed) == (1 if left else 0)
    if not left:
        return
    check_packed(packed[0], LIMITS)
    values, keys, headers, times = (list(column) for column in zip(*left, strict=True))
    if len(left) == 1:
        single = pack_single(
            values[0], key=keys[0], headers=headers[0] or None, timestamp=times[0], limits=LIMITS
        )
        assert isinstance(packed[0], Single)
        assert (packed[0].value, packed[0].key, packed[0].timestamp_ms) == (
            single.value,
            single.key,
            single.timestamp_ms,
        )
        return
    expected = pack_batch(values, keys=keys, headers=headers, timestamps=times, limits=LIMITS)
    assert isinstance(packed[0], Batch)
    assert packed[0].payload == expected.payload
    assert _columns(packed[0]) == _columns(expected)


def _columns(batch: Batch) -> list[Any]:
    from millstream.format import block
    from millstream.log.model.block import headers_of

    placed = block.place(
        batch.metadata,
        kind=block.METADATA,
        count=batch.count,
        first_id=0,
        columns=batch.columns,
        body_crc=batch.metadata_crc,
    )
    found = block.Block(placed, kind=block.METADATA)
    headers = [one.pairs() for one in headers_of(found, 0, batch.count)]
    return [found.keys(), list(found.timestamps()), headers, found.valid()]


def test_blocks_become_the_same_columns_whatever_part_is_read(tmp_path: Path) -> None:
    import pyarrow as pa

    from millstream.spark.source.columns import _TIME, batches, header_column

    scalar = pa.struct(
        [("s", pa.string()), ("i", pa.int64()), ("d", pa.float64()), ("b", pa.bool_())]
    )
    schema = pa.schema(
        [
            ("topic", pa.string()),
            ("offset", pa.int64()),
            ("value", pa.binary()),
            ("key", pa.binary()),
            ("timestamp", _TIME),
            ("appendTimestamp", _TIME),
            ("headers", pa.map_(pa.string(), scalar)),
        ]
    )
    with millstream.open(tmp_path / "s.db") as ms:
        log = ms.log("a")
        log.append_many([b"plain"] * 70)
        log.append_many(
            [
                Item(b"%d" % i, key=f"k{i}" if i % 3 else None, headers={"n": i}, timestamp=i)
                for i in range(50)
            ]
        )
        for _ in range(5):
            log.append(b"single", key="s")
        records = list(log.read())
        for start, stop in ((0, 125), (1, 124), (69, 71), (77, 78), (119, 122), (70, 120)):
            blocks = ms.session.execute(ReadBlocks("a", start, stop, 2**20))
            found = list(batches(blocks, schema))
            assert len(found) == 1
            got = found[0].to_pydict()
            wanted = records[start:stop]
            assert got["offset"] == [record.offset for record in wanted]
            assert got["value"] == [record.value for record in wanted]
            assert got["key"] == [record.key for record in wanted]
            assert set(got["topic"]) == {"a"}
            for name, attribute in (("timestamp", "timestamp"), ("appendTimestamp", "appended")):
                numbers = found[0].column(name).cast(pa.int64()).to_pylist()
                assert numbers == [1000 * getattr(record, attribute) for record in wanted]
            plain = [record.headers.plain() for record in wanted]
            headers = header_column(plain, schema.field(6).type)
            assert found[0].column("headers").equals(headers)


def test_rows_of_very_different_sizes_fit() -> None:
    import pyarrow as pa

    from millstream.spark.sink.rows import blocks_of

    limits = Limits(batch_bytes_max=40_000)
    values = [b"x"] * 500 + [b"y" * 10_000] * 8 + [b"z"] * 500
    found = list(blocks_of(pa.RecordBatch.from_pydict({"value": pa.array(values)}), limits))
    for one in found:
        check_packed(one, limits)
    assert sum(one.count if isinstance(one, Batch) else 1 for one in found) == len(values)
    assert len(found) > 2


@pytest.mark.parametrize(
    ("column", "message"),
    [
        ([1, 2], "binary or string"),
    ],
)
def test_values_that_are_none_are_refused(column: list[Any], message: str) -> None:
    import pyarrow as pa

    from millstream.spark.sink.rows import blocks_of

    with pytest.raises(InvalidInput, match=message):
        list(blocks_of(pa.RecordBatch.from_pydict({"value": pa.array(column)}), LIMITS))
