"""Records that were packed elsewhere are stored only if they could have been packed here."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from millstream.errors import InvalidInput, TooLarge
from millstream.format import block
from millstream.format.packing import Batch, Single, pack_batch, pack_single
from millstream.format.record_checks import check_packed
from millstream.limits import Limits

LIMITS = Limits(
    value_bytes_max=1_000,
    key_bytes_max=100,
    headers_bytes_max=100,
    batch_records_max=50,
    batch_bytes_max=5_000,
)
GENEROUS = Limits()


def batch(values: list[Any], **columns: Any) -> Batch:
    given = {"keys": None, "headers": None, "timestamps": None} | columns
    return pack_batch(values, limits=GENEROUS, **given)


def with_metadata(found: Batch, **columns: Any) -> Batch:
    given = {"timestamps": None, "keys": None, "headers": None} | columns
    bits, metadata = block.encode_metadata(**given)
    return replace(found, columns=bits, metadata=metadata, metadata_crc=block.checksum(metadata))


@pytest.mark.parametrize(
    "columns",
    [
        {},
        {"keys": ["a", None]},
        {"keys": ["a", "b"], "timestamps": [1, 2]},
        {"headers": [{"a": 1, "b": None}, None]},
        {"headers": [None, {"t": "x", "f": 0.5, "y": True}], "timestamps": 7},
        {"headers": [[("a", 1), ("a", 2)], {"b": b"\xff"}]},
    ],
)
def test_what_is_packed_here_passes(columns: dict[str, Any]) -> None:
    check_packed(batch(["x", "y"], **columns), LIMITS)


def test_null_values_pass_if_they_are_empty() -> None:
    found = batch([None, b"x", None])
    check_packed(found, LIMITS)
    with pytest.raises(InvalidInput, match="null"):
        check_packed(with_metadata(found, valid=[True, False, True]), LIMITS)
    check_packed(with_metadata(found, valid=[True, True, True]), LIMITS)
    check_packed(Single(None, None, b"", None), LIMITS)


def test_a_single_record_passes() -> None:
    given: dict[str, Any] = {"key": "k", "headers": {"a": 1}, "timestamp": 5}
    check_packed(pack_single("x", limits=LIMITS, **given), LIMITS)
    check_packed(Single(b"", None, b"", None), LIMITS)


GOOD = batch(["x", "yy"], keys=["a", None], headers=[{"a": 1}, {"b": "c"}], timestamps=[1, 2])
WRONG = {
    "a payload's checksum": replace(GOOD, payload_crc=GOOD.payload_crc ^ 1),
    "a metadata's checksum": replace(GOOD, metadata_crc=GOOD.metadata_crc ^ 1),
    "a checksum of more than 32 bits": replace(GOOD, payload_crc=2**32),
    "a negative checksum": replace(GOOD, metadata_crc=-1),
    "no records": replace(GOOD, count=0),
    "a negative count": replace(GOOD, count=-5),
    "one record too few": replace(GOOD, count=1),
    "one record too many": replace(GOOD, count=3),
    "an unknown column": replace(GOOD, columns=GOOD.columns | 64),
    "the column that is the store's": replace(GOOD, columns=GOOD.columns | block.APPENDED),
    "a column less": replace(GOOD, columns=GOOD.columns & ~block.HEADERS),
    "validity without keys": replace(GOOD, columns=block.KEY_VALIDITY),
    "negative columns": replace(GOOD, columns=-1),
    "a time before 1970": with_metadata(GOOD, timestamps=[5, -1]),
    "a time after 9999": with_metadata(GOOD, timestamps=[2**60, 1]),
    "a constant time before 1970": replace(GOOD, timestamp_ms=-1),
    "headers that are no map": with_metadata(GOOD, headers=[b"\x01", b""]),
    "headers of a wrong type": with_metadata(
        GOOD, headers=[msgspec.msgpack.encode({"a": [1]}), b""]
    ),
    "a header of 65 bits": with_metadata(
        GOOD, headers=[msgspec.msgpack.encode({"a": 2**64 - 1}), b""]
    ),
    "headers cut in two": with_metadata(GOOD, headers=[b"\x81\xa1a", b"\x01"]),
    "headers over the border": with_metadata(GOOD, headers=[b"\x81\xa1a\x01\x81", b"\xa1b\x02"]),
    "a single's headers": Single(b"x", None, b"\x81", None),
    "a single's time": Single(b"x", None, b"", -1),
}


@pytest.mark.parametrize("records", WRONG.values(), ids=WRONG.keys())
def test_what_a_reader_would_stumble_over_is_refused(records: Single | Batch) -> None:
    check_packed(GOOD, LIMITS)
    with pytest.raises(InvalidInput):
        check_packed(records, LIMITS)


LARGE = {
    "a value": Single(bytes(1_001), None, b"", None),
    "a key": Single(b"", bytes(101), b"", None),
    "headers": Single(b"", None, msgspec.msgpack.encode({"a": "x" * 200}), None),
    "a value among others": batch([b"x", bytes(1_001)]),
    "a key among others": batch(["x", "y"], keys=["k", "k" * 101]),
    "headers among others": batch(["x", "y"], headers=[None, {"a": "x" * 200}]),
    "too many records": batch([b""] * 51),
    "too many bytes": batch([bytes(900)] * 6),
}


@pytest.mark.parametrize("records", LARGE.values(), ids=LARGE.keys())
def test_what_is_over_a_limit_is_refused_with_the_limit(records: Single | Batch) -> None:
    with pytest.raises(TooLarge) as refused:
        check_packed(records, LIMITS)
    assert refused.value.size > refused.value.limit


def test_many_small_items_may_together_be_larger_than_one_may_be() -> None:
    check_packed(batch([bytes(60)] * 40, keys=["k" * 10] * 40), LIMITS)
