"""Promises of the encodings and of the RFC's records, for any value and any bytes.

- What is encoded decodes to the same value, and any part of it alone is refused.
- Bytes that decode at all are the bytes that their value encodes to.
- TerminatedBytes sort as the raw bytes do, whatever follows them in a key.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from struct import Struct
from typing import Any, NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millstream.errors import CorruptionError
from millstream.format import encodings, ids, rfc
from millstream.format.encodings import Reader, encode_number

U8, U16, U32, U64 = (st.integers(0, (1 << bits) - 1) for bits in (8, 16, 32, 64))
I64 = st.integers(-(1 << 63), (1 << 63) - 1)
CLAIM_IDS = st.integers(0, ids.CLAIM_ID_END - 1)
BUCKET_IDS = CLAIM_IDS.map(ids.bucket_of)
NAMES = st.binary(max_size=20) | st.lists(st.sampled_from(b"\x00\x01\x02\xfe\xff")).map(bytes)
TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=30)


def lists(kind: Callable[..., Any], *fields: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.lists(st.builds(kind, *fields), max_size=5)


AVAILABLE = lists(rfc.AvailableMessage, U64, CLAIM_IDS, U16, NAMES)
IN_FLIGHT = lists(rfc.InFlightMessage, U64, CLAIM_IDS, I64, I64, U16, NAMES)


class Codec(NamedTuple):
    """How one thing is made, written and read."""

    values: st.SearchStrategy[Any]
    encode: Callable[[Any], bytes]
    decode: Callable[[bytes], Any]


def field(
    encode: Callable[[Any], bytes], read: Callable[[Reader], Any]
) -> Callable[[st.SearchStrategy[Any]], Codec]:
    def decode(data: bytes) -> Any:
        reader = Reader(data, "field")
        value = read(reader)
        reader.finish()
        return value

    return lambda values: Codec(values, encode, decode)


def number(layout: Struct) -> Callable[[st.SearchStrategy[Any]], Codec]:
    return field(partial(encode_number, layout), partial(Reader.number, layout=layout))


def spread(encode: Callable[..., bytes]) -> Callable[[Any], bytes]:
    return lambda fields: encode(*fields)


def seq_blocks() -> st.SearchStrategy[ids.SeqBlock]:
    return st.builds(ids.next_block, st.integers(0, 1 << 62), st.integers(1, 1 << 40))


CODECS: dict[str, Codec] = {
    "u64": number(encodings.U64)(U64),
    "i64": number(encodings.I64)(I64),
    "key_u64": number(encodings.KEY_U64)(U64),
    "TerminatedBytes": field(encodings.encode_terminated_bytes, Reader.terminated_bytes)(NAMES),
    "Utf8": field(encodings.encode_utf8, Reader.utf8)(TEXT),
    **{
        f"{record.name.lower()} key": Codec(
            st.tuples(NAMES, BUCKET_IDS),
            spread(partial(rfc.bucket_key, record)),
            partial(rfc.parse_key, record),
        )
        for record in (rfc.RecordType.ACTIVE, rfc.RecordType.DONE, rfc.RecordType.FAILED)
    },
    "attempts key": Codec(
        st.tuples(NAMES, U64),
        spread(rfc.attempts_key),
        partial(rfc.parse_key, rfc.RecordType.ATTEMPTS),
    ),
    "active": Codec(st.tuples(AVAILABLE, IN_FLIGHT), spread(rfc.encode_active), rfc.decode_active),
    "done or failed": Codec(
        lists(rfc.FinishedMessage, U64, CLAIM_IDS, I64, U16, NAMES),
        rfc.encode_finished,
        rfc.decode_finished,
    ),
    "attempts": Codec(lists(rfc.Attempt, I64, TEXT), rfc.encode_attempts, rfc.decode_attempts),
    "queue spec": Codec(
        st.builds(rfc.QueueSpecRecord, TEXT, U16, U32, st.integers(0, 4), TEXT),
        rfc.encode_queue_spec,
        rfc.decode_queue_spec,
    ),
    "SeqBlock": Codec(seq_blocks(), ids.encode_seq_block, ids.decode_seq_block),
}

each_codec = pytest.mark.parametrize("codec", CODECS.values(), ids=CODECS)


def assert_refused_or_canonical(codec: Codec, data: bytes) -> None:
    try:
        value = codec.decode(data)
    except CorruptionError as error:
        where: int = error.where
    else:
        assert codec.encode(value) == data
        return
    assert 0 <= where <= len(data)


@each_codec
@given(data=st.data())
def test_what_is_encoded_decodes_to_the_same(codec: Codec, data: st.DataObject) -> None:
    value = data.draw(codec.values)

    encoded = codec.encode(value)

    assert codec.decode(encoded) == value


@each_codec
@given(data=st.data())
def test_a_part_is_refused(codec: Codec, data: st.DataObject) -> None:
    encoded = codec.encode(data.draw(codec.values))
    part = encoded[: data.draw(st.integers(0, len(encoded) - 1))]

    with pytest.raises(CorruptionError):
        codec.decode(part)


@each_codec
@given(data=st.data())
def test_any_bytes_are_refused_or_canonical(codec: Codec, data: st.DataObject) -> None:
    assert_refused_or_canonical(codec, data.draw(st.binary(max_size=80)))


@each_codec
@given(data=st.data())
def test_a_changed_byte_is_refused_or_canonical(codec: Codec, data: st.DataObject) -> None:
    encoded = bytearray(codec.encode(data.draw(codec.values)))
    encoded[data.draw(st.integers(0, len(encoded) - 1))] = data.draw(U8)

    assert_refused_or_canonical(codec, bytes(encoded))


@given(one=NAMES, other=NAMES, after_one=NAMES, after_other=NAMES)
def test_terminated_bytes_sort_as_the_raw_bytes_do(
    one: bytes, other: bytes, after_one: bytes, after_other: bytes
) -> None:
    key = encodings.encode_terminated_bytes(one) + after_one
    other_key = encodings.encode_terminated_bytes(other) + after_other

    if one == other:
        assert (key < other_key) == (after_one < after_other)
    else:
        assert (key < other_key) == (one < other)


@given(one=U64, other=U64)
def test_unsigned_numbers_in_keys_sort_as_numbers(one: int, other: int) -> None:
    encode = partial(encode_number, encodings.KEY_U64)
    assert (encode(one) < encode(other)) == (one < other)


@given(claim_id=CLAIM_IDS)
def test_a_bucket_holds_its_claim_ids(claim_id: int) -> None:
    exponent, number = ids.split_id(claim_id)
    bucket_exponent, start = ids.split_id(ids.bucket_of(claim_id))

    assert ids.make_claim_id(exponent, number) == claim_id
    assert bucket_exponent == exponent
    assert start <= number < start + ids.capacity_of(exponent)


@given(next_id=st.integers(0, 1 << 62), count=st.integers(1, 1 << 40))
def test_a_block_covers_its_ids_with_less_than_one_step_to_spare(next_id: int, count: int) -> None:
    block = ids.next_block(next_id, count)

    assert block.base == next_id
    assert 0 <= block.end - (next_id + count) < ids.BLOCK_IDS
