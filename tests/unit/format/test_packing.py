"""Packing: what users hand in becomes bytes, checked; the common case is a short cut, not a rule."""

from __future__ import annotations

import struct
from pathlib import Path
from types import MappingProxyType
from typing import Any

import msgspec
import pytest

from millstream.errors import InvalidInput, TooLarge
from millstream.format import block
from millstream.format.header_cells import CONTENT_TYPE, pack_headers
from millstream.format.packing import (
    JSON,
    TEXT,
    TIMESTAMP_MS_MAX,
    Batch,
    Single,
    check_json,
    check_timestamp,
    pack_batch,
    pack_key,
    pack_single,
    pack_value,
)
from millstream.format.record_checks import check_packed
from millstream.limits import Limits

FORMAT_MD = Path(__file__).parents[3] / "docs" / "FORMAT.md"

LIMITS = Limits()


def single(value: Any, **fields: Any) -> Single:
    given = {"key": None, "headers": None, "timestamp": None} | fields
    return pack_single(value, limits=LIMITS, **given)


def batch(values: list[Any], limits: Limits = LIMITS, **columns: Any) -> Batch:
    given = {"keys": None, "headers": None, "timestamps": None} | columns
    return pack_batch(values, limits=limits, **given)


def unpacked(found: Batch) -> block.Block:
    data = block.place(
        found.metadata,
        kind=block.METADATA,
        count=found.count,
        first_id=0,
        columns=found.columns,
        body_crc=found.metadata_crc,
    )
    return block.Block(data, kind=block.METADATA)


@pytest.mark.parametrize(
    ("value", "data", "kind"),
    [
        (b"\x00", b"\x00", None),
        (bytearray(b"a"), b"a", None),
        (memoryview(b"abc")[1:], b"bc", None),
        ("é", b"\xc3\xa9", TEXT),
        ("", b"", TEXT),
        ({"a": [1, None]}, b'{"a":[1,null]}', JSON),
        (1.5, b"1.5", JSON),
        ((1, 2), b"[1,2]", JSON),
    ],
)
def test_values(value: Any, data: bytes, kind: str | None) -> None:
    assert pack_value(value) == (data, kind)
    headers = {} if kind is None else {CONTENT_TYPE: kind}
    packed = single(value)
    assert packed.value == data
    assert (msgspec.msgpack.decode(packed.headers) if packed.headers else {}) == headers


class Reading(msgspec.Struct):
    celsius: float
    note: str | None = None


NAN, INFINITY = float("nan"), float("inf")


@pytest.mark.parametrize(
    ("value", "place"),
    [
        (NAN, "$"),
        ([1, None, INFINITY], "$[2]"),
        ({"a": {"b": [1, (-INFINITY,)]}}, "$.a.b[1][0]"),
        (Reading(NAN), "$.celsius"),
        ({"day": [Reading(1.0), Reading(INFINITY)]}, "$.day[1].celsius"),
        (struct.unpack(">d", bytes.fromhex("fff0000000000001"))[0], "$"),
    ],
)
def test_what_json_cannot_say_is_refused_and_not_null(value: Any, place: str) -> None:
    for pack in (pack_value, check_json):
        with pytest.raises(InvalidInput, match="no NaN and no infinity") as refused:
            pack(value)
        assert refused.value.where == place


def test_null_is_a_value_like_any_other() -> None:
    deep: Any = None
    for _ in range(200):
        deep = [deep, 1.5]
    for value in (None, [None, 1.0], {"a": None, "text": "null"}, Reading(1.5), deep):
        assert b"null" in pack_value(value)[0]
        check_json(value)


def test_a_value_that_refers_to_itself_is_refused() -> None:
    loop: list[Any] = []
    loop.append(loop)
    with pytest.raises(InvalidInput):
        pack_value(loop)


def test_headers_that_are_nested_without_end_are_refused() -> None:
    deep: Any = 1
    for _ in range(100_000):
        deep = [deep]
    with pytest.raises(InvalidInput, match="a header has text as its name"):
        single(b"", headers={"a": deep})
    with pytest.raises(InvalidInput, match="a header has text as its name"):
        batch([b"", b""], headers=[{"a": deep}, {"a": 1}])


def test_a_mapping_of_any_kind_is_headers() -> None:
    assert pack_headers(MappingProxyType({"a": 1}), None, LIMITS) == b"\x81\xa1a\x01"
    assert pack_headers(MappingProxyType({"a": 1}), "t", LIMITS) == pack_headers(
        {"a": 1, CONTENT_TYPE: "t"}, None, LIMITS
    )
    assert pack_headers([("a", 1)], None, LIMITS) == b"\x81\xa1a\x01"
    assert pack_headers([("a", 1), ("a", 2)], None, LIMITS) == b"\x92\x92\xa1a\x01\x92\xa1a\x02"
    assert pack_headers({"a": b"x"}, None, LIMITS) == b"\x81\xa1a\xc4\x01x"
    assert pack_headers([("a", 1), ("a", 2)], "t", LIMITS) == pack_headers(
        (("a", 1), ("a", 2), (CONTENT_TYPE, "t")), None, LIMITS
    )


@pytest.mark.parametrize(
    "headers", [{"a": 1}, {"a": b"\xff"}, [("a", 1), ("b", None), ("a", "2")]], ids=repr
)
def test_headers_are_packed_as_the_format_says(headers: Any) -> None:
    packed = pack_headers(headers, None, LIMITS)
    assert f"| `{packed.hex(' ')}` |" in FORMAT_MD.read_text()
    check_packed(Single(b"", None, packed, None), LIMITS)


def test_headers_have_one_form_only() -> None:
    pairs = msgspec.msgpack.encode([("a", 1), ("b", 2)])
    with pytest.raises(InvalidInput, match="no name is repeated"):
        check_packed(Single(b"", None, pairs, None), LIMITS)


class Strange:
    """A value that no header can have; its name is the same in every process."""

    def __repr__(self) -> str:
        return "Strange()"


WRONG_HEADERS: list[Any] = [
    {"a": 2**63},
    {"a": -(2**63) - 1},
    {"a": 2**64},
    {"a": []},
    {"a": {}},
    {"a": Strange()},
    {1: 1},
    {None: 1},
    {"a": "\ud800"},
    {"\ud800": 1},
    [("a", 1), ("a", [])],
    [("a", 2**63), ("a", 1)],
    [(1, 1)],
    [("a", 1), (None, 1)],
    ["ab"],
    [("a",)],
    "ab",
    b"ab",
    7,
]


@pytest.mark.parametrize("headers", WRONG_HEADERS, ids=repr)
@pytest.mark.parametrize("beside", [{"ok": 1}, {}, None])
def test_wrong_headers_are_refused_on_every_road(headers: Any, beside: Any) -> None:
    with pytest.raises(InvalidInput):
        single(b"", headers=headers)
    with pytest.raises(InvalidInput):
        batch([b"", b""], headers=[beside, headers])
    with pytest.raises(InvalidInput):
        batch(["text", b""], headers=[headers, beside])


RIGHT_HEADERS: list[dict[str, Any] | None] = [
    {"a": 2**63 - 1, "b": -(2**63), "c": 1.5, "d": True, "e": None, "f": "\xcf"},
    {},
    None,
    {"x": 207},
]


def test_the_short_cut_packs_as_one_by_one_does() -> None:
    together = unpacked(batch([b""] * 4, headers=RIGHT_HEADERS)).column(block.HEADERS)

    assert together == [single(b"", headers=headers).headers for headers in RIGHT_HEADERS]


def test_columns_that_say_nothing_are_left_out() -> None:
    assert batch([b"a", b"b"]).columns == 0
    assert batch([b"a", b"b"], keys=[None, None]).columns == 0
    assert batch([b"a", b"b"], timestamps=5).columns == 0
    assert batch([b"a", b"b"], timestamps=5).timestamp_ms == 5
    assert batch([b"a", b"b"], timestamps=[5, 6]).columns == block.TIMESTAMP


def test_a_batch_carries_its_checksums() -> None:
    found = batch([b"a", "b"], keys=["k", None])

    assert found.payload_crc == block.checksum(found.payload)
    assert found.metadata_crc == block.checksum(found.metadata)
    assert found.count == 2


@pytest.mark.parametrize("key", ["k", b"k", "é"])
def test_keys(key: str | bytes) -> None:
    data = key if isinstance(key, bytes) else key.encode()
    assert pack_key(key, LIMITS) == data
    assert unpacked(batch([b"", b""], keys=[key, None])).keys() == [data, None]


@pytest.mark.parametrize("key", [1, bytearray(b"k"), ["k"]])
def test_wrong_keys_are_refused(key: Any) -> None:
    with pytest.raises(InvalidInput):
        single(b"", key=key)
    with pytest.raises(InvalidInput):
        batch([b"", b""], keys=[b"k", key])


@pytest.mark.parametrize("timestamp", [0, 1, TIMESTAMP_MS_MAX])
def test_timestamps(timestamp: int) -> None:
    assert check_timestamp(timestamp) == timestamp


@pytest.mark.parametrize("timestamp", [-1, TIMESTAMP_MS_MAX + 1, 1.0, True, "1", None])
def test_wrong_timestamps_are_refused(timestamp: Any) -> None:
    with pytest.raises(InvalidInput):
        check_timestamp(timestamp)


@pytest.mark.parametrize(
    ("limits", "values", "columns"),
    [
        (Limits(value_bytes_max=2), [b"", b"123"], {}),
        (Limits(value_bytes_max=2), [b"", "123"], {}),
        (Limits(key_bytes_max=2), [b"", b""], {"keys": [b"1", b"123"]}),
        (Limits(key_bytes_max=2), [b"", b""], {"keys": [None, "123"]}),
        (Limits(headers_bytes_max=4), [b"", b""], {"headers": [{}, {"a": "123"}]}),
        (Limits(batch_records_max=1), [b"", b""], {}),
        (Limits(batch_bytes_max=15), [b"", b""], {}),
    ],
)
def test_limits(limits: Limits, values: list[Any], columns: dict[str, Any]) -> None:
    with pytest.raises(TooLarge) as refused:
        batch(values, limits, **columns)

    assert refused.value.size > refused.value.limit
