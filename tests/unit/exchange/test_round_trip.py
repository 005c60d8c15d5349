"""An export and its import restore every record: key, headers, timestamp, and the bytes of its value."""

from __future__ import annotations

from io import BytesIO
from math import inf, nan

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

import millstream
from millstream import Item, Millstream, Record
from millstream.exchange.export import export
from millstream.exchange.formats import Format, reader_of, writer_of
from millstream.exchange.importing import ImportSummary, checked_file, import_file
from millstream.exchange.selection import ChosenRecords, ExportedLog, RecordSelection
from millstream.exchange.values import shown_cells, shown_values, text_or_base64
from millstream.format.header_cells import pack_headers
from millstream.limits import Limits
from tests.records import HEADERS, KEYS

FORMATS = [
    Format.JSONL,
    Format.CSV,
    pytest.param(Format.PARQUET, marks=pytest.mark.requires("arrow")),
]
JSON_TEXTS = st.sampled_from(
    [b"{}", b'{"a": 1}', b'"text"', b"null", b" 1", b"1\n", b"[1,\n2]", b"1,2", b"{", b"", b"1e999"]
)
VALUES = st.none() | st.binary(max_size=8) | st.text(max_size=6).map(str.encode) | JSON_TEXTS
ALL_HEADERS = (
    HEADERS
    | st.just({"content-type": "application/json"})
    | st.sampled_from([{"x": nan}, {"x": inf}, {"x": -inf}, {"x": 1.0}, {"x": 1}])
)
ROWS = st.lists(
    st.tuples(KEYS, ALL_HEADERS, VALUES, st.integers(0, 253_402_300_799_999)), max_size=6
)


def packed(headers: object) -> bytes:
    return pack_headers(headers, None, Limits())  # type: ignore[arg-type]


@pytest.mark.parametrize("format", FORMATS)
@given(rows=ROWS)
def test_every_record_comes_back_as_it_was(format: Format, rows: list[tuple[object, ...]]) -> None:
    keys = [key.encode() if isinstance(key, str) else key for key, *_ in rows]
    cells = [packed(headers) for _, headers, *_ in rows]
    values = [row[2] for row in rows]
    timestamps = [row[3] for row in rows]
    stream = BytesIO()
    writer = writer_of(format, stream)
    log = ExportedLog("orders-partition-3", 3, 8)
    if rows:
        writer.write(
            ChosenRecords(log, range(len(rows)), timestamps, keys, cells, values)  # type: ignore[arg-type]
        )
    writer.close()
    stream.seek(0)
    chunks = list(reader_of(format)(stream, needs_log=True))
    assert [chunk.bad for chunk in chunks if chunk.bad] == []
    records = [chunk.records for chunk in chunks]
    assert [log for part in records for log in part.logs] == ["orders-partition-3"] * len(rows)
    assert [count for part in records for count in part.partitions] == [8] * len(rows)
    assert [key for part in records for key in part.keys] == keys
    assert [value for part in records for value in part.values] == values
    assert [timestamp for part in records for timestamp in part.timestamps] == timestamps
    assert [cell for part in records for cell in part.headers] == cells


PLAIN = st.text(st.characters(codec="utf-8", exclude_characters="\n"), max_size=6).map(str.encode)
CELLS = (
    st.lists(PLAIN, max_size=6) | st.lists(JSON_TEXTS, max_size=6) | st.lists(VALUES, max_size=6)
)


@given(cells=CELLS)
def test_the_cells_of_a_block_are_shown_as_each_would_be(cells: list[bytes | None]) -> None:
    texts, encodings = shown_cells(cells)
    shown = [
        (msgspec.json.decode(text), encoding)
        for text, encoding in zip(texts, encodings, strict=True)
    ]
    assert shown == [text_or_base64(cell) for cell in cells]


@given(cells=CELLS, data=st.data())
def test_the_values_of_a_block_are_shown_as_each_would_be(
    cells: list[bytes | None], data: st.DataObject
) -> None:
    count = len(cells)
    flags = st.just([True] * count) | st.lists(st.booleans(), min_size=count, max_size=count)
    are_json = data.draw(flags)
    texts, encodings = shown_values(cells, are_json)
    shown = list(zip(texts, encodings, strict=True))
    assert shown == [_shown_alone(cell, flag) for cell, flag in zip(cells, are_json, strict=True)]


def _shown_alone(value: bytes | None, is_json: bool) -> tuple[str, str]:
    """The plain rule: JSON that fits into a line stays as it is, everything else is text."""
    is_line = value is not None and value == value.strip() and not {*b"\r\n"} & {*value}
    if is_json and value and is_line:
        try:
            msgspec.json.decode(value, type=msgspec.Raw)
            return value.decode(), "json"
        except (msgspec.DecodeError, UnicodeDecodeError):
            pass
    text, encoding = text_or_base64(value)
    return msgspec.json.encode(text).decode(), encoding


def shape(record: Record) -> tuple[object, ...]:
    return record.key, record.value, record.timestamp, record.headers.pairs()


def carried(
    source: Millstream, target: Millstream, *logs: str, **settings: object
) -> ImportSummary:
    stream = BytesIO()
    export(source, logs, stream, format=Format.JSONL, selection=RecordSelection())
    stream.seek(0)
    file = checked_file(stream, reader_of(Format.JSONL), needs_log=True, skip_bad=False)
    summary = ImportSummary()
    import_file(target, file, summary, **settings)  # type: ignore[arg-type]
    return summary


@pytest.fixture
def source() -> Millstream:
    return millstream.open(":memory:")


@pytest.fixture
def target() -> Millstream:
    return millstream.open(":memory:")


def test_several_logs_travel_in_one_file(source: Millstream, target: Millstream) -> None:
    source.log("a").append_many([Item({"n": n}, key=str(n), timestamp=n) for n in range(5)])
    source.log("b/1").append("text", headers={"kind": "sale"})
    source.log("b/2").append(None, key=b"\xff")
    summary = carried(source, target, "a", "b/*")
    assert summary.logs == {"a": 5, "b/1": 1, "b/2": 1}
    for name in summary.logs:
        assert list(map(shape, target.log(name))) == list(map(shape, source.log(name)))


def test_partitions_stay_what_they_were(source: Millstream, target: Millstream) -> None:
    log = source.log("clicks", partitions=4)
    log.append_many([Item(str(n), key=str(n)) for n in range(50)])
    log.append("without a key", partition=2)
    carried(source, target, "clicks")
    copy = target.partitioned_log("clicks")
    assert copy.partitions == 4
    for number in range(4):
        records = map(shape, copy.partition(number))
        assert list(records) == list(map(shape, log.partition(number)))


def test_another_number_of_partitions_spreads_by_key(
    source: Millstream, target: Millstream
) -> None:
    source.log("clicks", partitions=4).append_many([Item(str(n), key=str(n)) for n in range(50)])
    wide = target.log("clicks", partitions=7)
    wide.create()
    carried(source, target, "clicks")
    assert len(wide) == 50
    assert {r.key: r.partition for r in wide} == {
        str(n).encode(): wide.partition_for(str(n)) for n in range(50)
    }


def test_all_records_go_to_one_log_on_request(source: Millstream, target: Millstream) -> None:
    source.log("a").append(b"1")
    source.log("b").append(b"2")
    summary = carried(source, target, "a", "b", log="all")
    assert summary.logs == {"all": 2}
    assert [record.value for record in target.log("all")] == [b"1", b"2"]
