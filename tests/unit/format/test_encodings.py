"""The common encodings: golden bytes, and how each reader refuses what was never written."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from millstream.errors import CorruptionError, InvalidInput, TooLarge
from millstream.format import encodings
from millstream.format.encodings import I64, KEY_U64, U8, U64, Reader, encode_number

FORMAT_MD = Path(__file__).parents[3] / "docs" / "FORMAT.md"

GOLDEN: list[tuple[Callable[..., bytes], object, Callable[[Reader], object], str]] = [
    (
        partial(encode_number, U64),
        258,
        partial(Reader.number, layout=U64),
        "02 01 00 00 00 00 00 00",
    ),
    (
        partial(encode_number, I64),
        -2,
        partial(Reader.number, layout=I64),
        "fe ff ff ff ff ff ff ff",
    ),
    (
        partial(encode_number, KEY_U64),
        258,
        partial(Reader.number, layout=KEY_U64),
        "00 00 00 00 00 00 01 02",
    ),
    (
        encodings.encode_terminated_bytes,
        b"a\x00\x01\xff",
        Reader.terminated_bytes,
        "61 01 01 01 02 ff 00",
    ),
    (encodings.encode_terminated_bytes, b"", Reader.terminated_bytes, "00"),
    (encodings.encode_utf8, "é", Reader.utf8, "02 00 c3 a9"),
]


@pytest.mark.parametrize(("encode", "value", "read", "golden"), GOLDEN)
def test_each_encoding_has_its_pinned_bytes(
    encode: Callable[..., bytes], value: object, read: Callable[[Reader], object], golden: str
) -> None:
    assert encode(value).hex(" ") == golden

    reader = Reader(bytes.fromhex(golden), "golden")
    assert read(reader) == value
    reader.finish()


@pytest.mark.parametrize("golden", [row[3] for row in GOLDEN if len(row[3]) > 2])
def test_the_format_document_shows_the_same_bytes(golden: str) -> None:
    assert f"`{golden}`" in FORMAT_MD.read_text()


def test_an_array_is_a_count_and_its_elements() -> None:
    elements = [encodings.encode_utf8(text) for text in ("a", "bc")]
    golden = "02 00 01 00 61 02 00 62 63"

    assert encodings.encode_array(elements).hex(" ") == golden

    reader = Reader(bytes.fromhex(golden), "array")
    count = reader.array_count(element_bytes_min=2)
    assert [reader.utf8() for _ in range(count)] == ["a", "bc"]
    reader.finish()
    assert f"`{golden}`" in FORMAT_MD.read_text()


@pytest.mark.parametrize(
    ("encode", "value"),
    [
        (encodings.encode_u64, 1 << 64),
        (encodings.encode_u64, -1),
        (partial(encode_number, I64), 1 << 63),
        (partial(encode_number, KEY_U64), -1),
    ],
)
def test_a_number_out_of_range_is_refused(encode: Callable[[int], bytes], value: int) -> None:
    with pytest.raises(InvalidInput):
        encode(value)


def test_text_and_arrays_over_their_limit_are_refused() -> None:
    with pytest.raises(TooLarge) as text:
        encodings.encode_utf8("é" * 32_768)
    assert (text.value.limit, text.value.size) == (65_535, 65_536)

    with pytest.raises(TooLarge) as array:
        encodings.encode_array([b""] * 65_536)
    assert (array.value.limit, array.value.size) == (65_535, 65_536)

    assert len(encodings.encode_utf8("a" * 65_535)) == 65_537
    assert encodings.encode_array([b""] * 65_535) == b"\xff\xff"


def test_half_a_surrogate_pair_is_refused() -> None:
    with pytest.raises(InvalidInput):
        encodings.encode_utf8("\ud800")


@pytest.mark.parametrize("raw", ["61", "61 01 03 00", "61 01 00", "01 01 01 00", "01 01 01 03 00"])
def test_terminated_bytes_without_end_or_with_unknown_escapes_are_refused(raw: str) -> None:
    with pytest.raises(CorruptionError):
        Reader(bytes.fromhex(raw), "queue").terminated_bytes()


def test_terminated_bytes_leave_the_reader_behind_the_terminator() -> None:
    reader = Reader(b"a\x00b\x00", "two names")

    assert [reader.terminated_bytes(), reader.terminated_bytes()] == [b"a", b"b"]
    assert reader.remaining == 0


def test_an_error_says_what_was_read_and_where() -> None:
    reader = Reader(b"\x01\x00\x00", "spec")
    reader.number(U8)

    with pytest.raises(CorruptionError, match="spec: 8 bytes expected, 2 left at byte 1") as error:
        reader.number(U64)

    assert (error.value.what, error.value.where) == ("spec", 1)


def test_text_that_is_not_utf8_is_reported_at_its_first_bad_byte() -> None:
    with pytest.raises(CorruptionError) as error:
        Reader(b"\x03\x00ab\xff", "text").utf8()

    assert error.value.where == 4


def test_text_over_the_limit_of_its_field_is_refused() -> None:
    value = encodings.encode_utf8("abc")

    assert Reader(value, "text").utf8(bytes_max=3) == "abc"
    with pytest.raises(CorruptionError, match="at most 2"):
        Reader(value, "text").utf8(bytes_max=2)


def test_bytes_after_the_end_are_refused() -> None:
    reader = Reader(b"\x01\x02", "byte")
    reader.number(U8)

    with pytest.raises(CorruptionError, match="1 bytes too many at byte 1"):
        reader.finish()


def test_a_claimed_length_allocates_nothing() -> None:
    tracemalloc.start()
    try:
        reader = Reader(b"\xff\xff\x00", "array")
        with pytest.raises(CorruptionError, match="array of 65535 elements in 1 bytes at byte 0"):
            reader.array_count(element_bytes_min=1)
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()

    assert peak_bytes < 1_000_000


@pytest.mark.parametrize(("key", "where"), [("02 06", 0), ("00 06", 0), ("01 07", 1), ("01", 1)])
def test_an_unknown_version_or_another_type_is_refused(key: str, where: int) -> None:
    with pytest.raises(CorruptionError) as error:
        Reader(bytes.fromhex(key), "key").key_prefix(0x06)

    assert error.value.where == where
