"""The RFC's records: golden bytes written down by hand from its tables, and what is refused."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from millstream.errors import CorruptionError, InvalidInput, TooLarge
from millstream.format import entries, rfc
from millstream.format.ids import make_bucket_id, make_claim_id
from millstream.format.rfc import RecordType

FORMAT_MD = Path(__file__).parents[3] / "docs" / "FORMAT.md"

BUCKET = make_bucket_id(2, 300)
AVAILABLE = rfc.AvailableMessage(258, make_claim_id(2, 301), 1, b"m")
IN_FLIGHT = rfc.InFlightMessage(259, make_claim_id(2, 302), 1_000, 31_000, 2, b"mm")
DONE = rfc.FinishedMessage(259, make_claim_id(2, 302), 2_000, 2, b"m")
FAILED = rfc.FinishedMessage(259, make_claim_id(2, 302), -1, 3, b"mm")
SPEC = rfc.QueueSpecRecord("a = 1", 5, 604_800, 3, "é")

KEYS: dict[str, tuple[bytes, Callable[[bytes], Any], Any, str]] = {
    "active": (
        rfc.bucket_key(RecordType.ACTIVE, b"mail", BUCKET),
        partial(rfc.parse_key, RecordType.ACTIVE),
        (b"mail", BUCKET),
        "01 02 6d 61 69 6c 00 20 00 00 00 00 00 01 2c",
    ),
    "done": (
        rfc.bucket_key(RecordType.DONE, b"mail", BUCKET),
        partial(rfc.parse_key, RecordType.DONE),
        (b"mail", BUCKET),
        "01 03 6d 61 69 6c 00 20 00 00 00 00 00 01 2c",
    ),
    "failed": (
        rfc.bucket_key(RecordType.FAILED, b"mail", BUCKET),
        partial(rfc.parse_key, RecordType.FAILED),
        (b"mail", BUCKET),
        "01 04 6d 61 69 6c 00 20 00 00 00 00 00 01 2c",
    ),
    "attempts": (
        rfc.attempts_key(b"mail", 258),
        partial(rfc.parse_key, RecordType.ATTEMPTS),
        (b"mail", 258),
        "01 05 6d 61 69 6c 00 00 00 00 00 00 00 01 02",
    ),
}

VALUES: dict[str, tuple[bytes, Callable[[bytes], Any], Any, str]] = {
    "active": (
        rfc.encode_active([AVAILABLE], [IN_FLIGHT]),
        rfc.decode_active,
        ([AVAILABLE], [IN_FLIGHT]),
        """
        01 00
        02 01 00 00 00 00 00 00
        2d 01 00 00 00 00 00 20
        01 00
        01 00 00 00 6d
        01 00
        03 01 00 00 00 00 00 00
        2e 01 00 00 00 00 00 20
        e8 03 00 00 00 00 00 00
        18 79 00 00 00 00 00 00
        02 00
        02 00 00 00 6d 6d
        """,
    ),
    "done": (
        rfc.encode_finished([DONE]),
        rfc.decode_finished,
        [DONE],
        """
        01 00
        03 01 00 00 00 00 00 00
        2e 01 00 00 00 00 00 20
        d0 07 00 00 00 00 00 00
        02 00
        01 00 00 00 6d
        """,
    ),
    "failed": (
        rfc.encode_finished([FAILED]),
        rfc.decode_finished,
        [FAILED],
        """
        01 00
        03 01 00 00 00 00 00 00
        2e 01 00 00 00 00 00 20
        ff ff ff ff ff ff ff ff
        03 00
        02 00 00 00 6d 6d
        """,
    ),
    "attempts": (
        rfc.encode_attempts([rfc.Attempt(1_000, "w1")]),
        rfc.decode_attempts,
        [rfc.Attempt(1_000, "w1")],
        """
        01 00
        e8 03 00 00 00 00 00 00
        02 00 77 31
        """,
    ),
    "queue spec": (
        rfc.encode_queue_spec(SPEC),
        rfc.decode_queue_spec,
        SPEC,
        """
        05 00 61 20 3d 20 31
        05 00
        80 3a 09 00
        03
        02 00 c3 a9
        """,
    ),
    "metadata": (
        entries.encode_single(258, b"mm"),
        entries.metadata_of,
        [(258, b"mm")],
        """
        01 00
        02 01 00 00 00 00 00 00
        02 00 00 00 6d 6d
        """,
    ),
}


@pytest.mark.parametrize("name", KEYS)
def test_each_key_has_its_pinned_bytes(name: str) -> None:
    encoded, parse, parsed, golden = KEYS[name]

    assert encoded.hex(" ") == golden
    assert parse(bytes.fromhex(golden)) == parsed
    assert f"`{golden}`" in FORMAT_MD.read_text()


@pytest.mark.parametrize("name", VALUES)
def test_each_value_has_its_pinned_bytes(name: str) -> None:
    encoded, decode, value, golden = VALUES[name]

    assert encoded == bytes.fromhex(golden)
    assert decode(bytes.fromhex(golden)) == value


@pytest.mark.parametrize("name", VALUES)
def test_the_format_document_shows_the_same_values(name: str) -> None:
    shown = [line.split("  ")[0].strip() for line in FORMAT_MD.read_text().splitlines()]
    lines = [line.strip() for line in VALUES[name][3].strip().splitlines()]

    assert any(shown[at : at + len(lines)] == lines for at in range(len(shown)))


def test_the_key_of_a_spec_ends_with_the_queue() -> None:
    golden = "01 06 6d 61 69 6c"

    assert rfc.queue_spec_key(b"mail").hex(" ") == golden
    assert f"`{golden}`" in FORMAT_MD.read_text()


def test_empty_arrays_are_their_counts() -> None:
    assert rfc.encode_active([], []) == bytes(4)
    assert rfc.decode_active(bytes(4)) == ([], [])
    assert rfc.decode_finished(rfc.encode_finished([])) == []


@pytest.mark.parametrize("name", KEYS)
def test_a_key_of_another_version_or_type_is_refused(name: str) -> None:
    key, parse, _, _ = KEYS[name]

    for version in (0, 2, 255):
        with pytest.raises(CorruptionError, match="unknown version"):
            parse(bytes((version,)) + key[1:])
    for kind in set(range(256)) - {key[1]}:
        with pytest.raises(CorruptionError, match="instead of"):
            parse(bytes((1, kind)) + key[2:])


@pytest.mark.parametrize("name", KEYS)
def test_a_key_cut_short_or_continued_is_refused(name: str) -> None:
    key, parse, _, _ = KEYS[name]

    for broken in (key[:-1], key + b"\x00"):
        with pytest.raises(CorruptionError):
            parse(broken)


@pytest.mark.parametrize("name", VALUES)
def test_a_value_cut_anywhere_or_continued_is_refused(name: str) -> None:
    value, decode, _, _ = VALUES[name]

    for broken in (*(value[:size] for size in range(len(value))), value + b"\x00"):
        with pytest.raises(CorruptionError):
            decode(broken)


def test_the_prefix_of_a_queue_starts_its_keys_and_no_others() -> None:
    prefix = rfc.queue_prefix(RecordType.ACTIVE, b"mail")

    assert rfc.bucket_key(RecordType.ACTIVE, b"mail", 0).startswith(prefix)
    assert not rfc.bucket_key(RecordType.ACTIVE, b"mail2", 0).startswith(prefix)
    assert not rfc.bucket_key(RecordType.ACTIVE, b"mail\x00", 0).startswith(prefix)
    for record in (RecordType.PAYLOAD, RecordType.QUEUE_SPEC):
        with pytest.raises(InvalidInput):
            rfc.queue_prefix(record, b"mail")


@pytest.mark.parametrize("bucket", [-1, 5 << 60, 1 << 64, make_claim_id(2, 301)])
def test_a_key_needs_the_id_of_a_bucket(bucket: int) -> None:
    for record in (RecordType.ACTIVE, RecordType.DONE, RecordType.FAILED):
        with pytest.raises(InvalidInput):
            rfc.bucket_key(record, b"mail", bucket)


@pytest.mark.parametrize("bucket", ["50 00 00 00 00 00 00 00", "20 00 00 00 00 00 01 2d"])
def test_a_key_with_something_else_than_a_bucket_is_corrupt(bucket: str) -> None:
    with pytest.raises(CorruptionError, match="not the id of a bucket") as error:
        rfc.parse_key(RecordType.ACTIVE, bytes.fromhex("01 02 6d 00" + bucket))

    assert error.value.where == 4


def test_a_claim_id_of_too_large_a_capacity_is_refused_both_ways() -> None:
    with pytest.raises(InvalidInput):
        rfc.encode_active([rfc.AvailableMessage(1, 5 << 60, 0, b"")], [])

    largest = rfc.encode_active([rfc.AvailableMessage(1, (5 << 60) - 1, 0, b"")], [])
    assert largest[17] == 0x4F
    with pytest.raises(CorruptionError, match="not a claim id") as error:
        rfc.decode_active(largest[:17] + b"\x50" + largest[18:])
    assert error.value.where == 10


@pytest.mark.parametrize(
    "message",
    [
        rfc.AvailableMessage(-1, 0, 0, b""),
        rfc.AvailableMessage(1 << 64, 0, 0, b""),
        rfc.AvailableMessage(0, -1, 0, b""),
        rfc.AvailableMessage(0, 0, 1 << 16, b""),
    ],
)
def test_a_field_out_of_range_is_refused(message: rfc.AvailableMessage) -> None:
    with pytest.raises(InvalidInput):
        rfc.encode_active([message], [])


def test_a_bucket_with_more_than_its_count_can_say_is_refused() -> None:
    with pytest.raises(TooLarge):
        rfc.encode_finished([DONE] * 65_536)


def test_a_full_bucket_of_the_largest_capacity_round_trips() -> None:
    available = [
        rfc.AvailableMessage(n, make_claim_id(4, n), 0, b"m" * (n % 7)) for n in range(5_000)
    ]
    in_flight = [
        rfc.InFlightMessage(n, make_claim_id(4, n), n, -n, 1, b"") for n in range(5_000, 10_000)
    ]

    assert rfc.decode_active(rfc.encode_active(available, in_flight)) == (available, in_flight)


def test_a_consumer_id_has_at_most_128_bytes() -> None:
    longest = [rfc.Attempt(0, "é" * 64)]
    assert rfc.decode_attempts(rfc.encode_attempts(longest)) == longest

    with pytest.raises(TooLarge) as error:
        rfc.encode_attempts([rfc.Attempt(0, "a" * 129)])
    assert (error.value.limit, error.value.size) == (128, 129)
    with pytest.raises(CorruptionError, match="at most 128"):
        rfc.decode_attempts(b"\x01\x00" + bytes(8) + b"\x81\x00" + b"a" * 129)


@pytest.mark.parametrize(
    "spec",
    [
        rfc.QueueSpecRecord("", 1 << 16, 0, 0, ""),
        rfc.QueueSpecRecord("", 0, 1 << 32, 0, ""),
        rfc.QueueSpecRecord("", 0, -1, 0, ""),
        rfc.QueueSpecRecord("", 0, 0, 5, ""),
    ],
)
def test_a_spec_with_a_field_out_of_range_is_refused(spec: rfc.QueueSpecRecord) -> None:
    with pytest.raises(InvalidInput):
        rfc.encode_queue_spec(spec)


def test_a_stored_spec_with_too_large_a_capacity_is_corrupt() -> None:
    value = rfc.encode_queue_spec(rfc.QueueSpecRecord("", 0, 0, 4, ""))

    with pytest.raises(CorruptionError, match="capacity exponent 5") as error:
        rfc.decode_queue_spec(value[:8] + b"\x05" + value[9:])
    assert error.value.where == 8
