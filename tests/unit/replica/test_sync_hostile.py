"""A peer that lies: whatever it sends, it is refused, and nothing is changed here."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import pytest
import zstandard
from msgspec.structs import replace

from millstream import Limits, Millstream
from millstream.errors import CorruptionError, InvalidInput, MillstreamError, TooLarge
from millstream.format import block as blocks
from millstream.log.model.block import RecordBlock
from millstream.log.model.metadata import Meta, Stamp
from millstream.replica.chain import Mark
from millstream.replica.commands import (
    AdoptParcel,
    GetStampedMetadata,
    GetStoreId,
    Parcel,
    SendBlocks,
    SummarizeLogs,
    Summary,
)
from millstream.replica.copies.parcel import unpacked
from tests.unit.replica.copies import records, seen, through

Tamper = Callable[[Parcel], Parcel]
GIANT = 10 * 1024**3


def on_parcels(change: Tamper) -> Callable[[Any, Any], Any]:
    return lambda command, answer: change(answer) if isinstance(command, SendBlocks) else answer


def on_block(change: Callable[[RecordBlock], RecordBlock]) -> Callable[[Any, Any], Any]:
    return on_parcels(lambda p: replace(p, blocks=[change(p.blocks[0]), *p.blocks[1:]]))


def flipped(data: bytes, at: int) -> bytes:
    return data[:at] + bytes((data[at] ^ 1,)) + data[at + 1 :]


def with_value(block: RecordBlock, value: bytes) -> RecordBlock:
    """A block whose first value is another one, with all its checksums right."""
    found = block.values()
    body = blocks.encode_values([value, *found[1:]])
    payload = blocks.place(
        body,
        kind=blocks.PAYLOAD,
        count=len(found),
        first_id=0,
        columns=blocks.VALUE,
        body_crc=blocks.checksum(body),
    )
    return replace(block, payload=payload)


def claiming(block: RecordBlock, count: int) -> RecordBlock:
    """A block whose header says that it holds more, with its own checksum right."""
    head = bytearray(block.payload[:52])
    head[4:8] = count.to_bytes(4, "little")
    head += blocks.checksum(bytes(head)).to_bytes(4, "little")
    return replace(block, payload=bytes(head) + block.payload[56:])


def long_body(block: RecordBlock) -> RecordBlock:
    head = bytearray(block.payload[:52])
    head[36:40] = (2**31 - 1).to_bytes(4, "little")
    head += blocks.checksum(bytes(head)).to_bytes(4, "little")
    return replace(block, payload=bytes(head) + block.payload[56:])


TAMPERED: dict[str, Callable[[Any, Any], Any]] = {
    "a flipped bit in a value": on_block(lambda b: replace(b, payload=flipped(b.payload, 80))),
    "a flipped bit in a header": on_block(lambda b: replace(b, payload=flipped(b.payload, 5))),
    "a flipped bit in metadata": on_block(lambda b: replace(b, metadata=flipped(b.metadata, 20))),
    "garbage": on_block(lambda b: replace(b, payload=b"garbage" * 100, metadata=b"\xff" * 60)),
    "nothing at all": on_block(lambda b: replace(b, payload=b"", metadata=b"")),
    "a block that is cut": on_block(lambda b: replace(b, payload=b.payload[:-3])),
    "another value": on_block(lambda b: with_value(b, b"forged")),
    "another offset": on_block(lambda b: replace(b, first_offset=b.first_offset + 1)),
    "a negative offset": on_block(lambda b: replace(b, first_offset=-1)),
    "more records than there are": on_block(lambda b: replace(b, count=b.count + 1)),
    "fewer records": on_block(lambda b: replace(b, count=b.count - 1)),
    "no records": on_block(lambda b: replace(b, count=0)),
    "a negative count": on_block(lambda b: replace(b, count=-5)),
    "a skip past the end": on_block(lambda b: replace(b, skip=10**12)),
    "a negative skip": on_block(lambda b: replace(b, skip=-1)),
    "four billion values": on_block(lambda b: claiming(b, 2**32 - 1)),
    "a body of 2 GiB that is not there": on_block(long_body),
    "blocks swapped": on_parcels(lambda p: replace(p, blocks=p.blocks[::-1])),
    "a block twice": on_parcels(lambda p: replace(p, blocks=[p.blocks[0], *p.blocks])),
    "a block left out": on_parcels(lambda p: replace(p, blocks=p.blocks[1:])),
    "no blocks": on_parcels(lambda p: replace(p, blocks=[])),
    "a wrong hash": on_parcels(lambda p: replace(p, digest=bytes(32))),
    "a short hash": on_parcels(lambda p: replace(p, digest=b"x")),
    "an end before the start": on_parcels(lambda p: replace(p, end=0)),
    "an end beyond what it said": on_parcels(lambda p: replace(p, end=p.end + 1)),
    "a parcel that says less": on_parcels(lambda p: replace(p, end=p.end - 1)),
    "zstd garbage": on_parcels(lambda p: replace(p, blocks=[], packed=b"junk" * 9, size=100)),
    "zstd of garbage": on_parcels(
        lambda p: replace(
            p, blocks=[], packed=zstandard.ZstdCompressor().compress(b"x" * 100), size=100
        )
    ),
    "10 GB claimed": on_parcels(
        lambda p: replace(
            p, blocks=[], packed=zstandard.ZstdCompressor().compress(b"x" * 100), size=GIANT
        )
    ),
    "another size than packed": on_parcels(
        lambda p: replace(
            p, blocks=[], packed=zstandard.ZstdCompressor().compress(b"x" * 100), size=99
        )
    ),
}


@pytest.mark.parametrize("what", TAMPERED)
def test_a_parcel_that_is_not_right_is_refused(a: Millstream, b: Millstream, what: str) -> None:
    for n in range(3):
        a.log("x").append_many([b"%d" % n] * 10)
    b.sync(a)
    for n in range(3, 6):
        a.log("x").append_many([b"%d" % n] * 10)
    before = seen(b)
    peer, line = through(a)
    line.tampers = TAMPERED[what]
    with pytest.raises((CorruptionError, InvalidInput)):
        b.sync(peer)
    assert seen(b) == before
    line.tampers = lambda command, answer: answer
    b.sync(peer)
    assert records(a, "x") == records(b, "x")


def on_summaries(change: Callable[[Summary], Summary]) -> Callable[[Any, Any], Any]:
    def tamper(command: Any, answer: Any) -> Any:
        return [change(one) for one in answer] if isinstance(command, SummarizeLogs) else answer

    return tamper


LIES: dict[str, Callable[[Any, Any], Any]] = {
    "records that do not exist": on_summaries(lambda s: replace(s, end=10**15)),
    "an end that cannot be": on_summaries(lambda s: replace(s, end=2**63)),
    "another hash": on_summaries(lambda s: replace(s, digest=bytes(32))),
    "no hash": on_summaries(lambda s: replace(s, digest=b"")),
    "a base beyond the end": on_summaries(lambda s: replace(s, base=Mark(10**15, bytes(32)))),
    "a start below nothing": on_summaries(lambda s: replace(s, start=-5, base=Mark(-5, b""))),
    "a name that cannot be": on_summaries(lambda s: replace(s, name="\x00", end=s.end + 1)),
    "an owner without a name": on_summaries(lambda s: replace(s, owner="", epoch=5)),
    "an epoch that cannot be": on_summaries(lambda s: replace(s, epoch=2**63)),
    "names out of order": lambda command, answer: (
        [*answer, *answer] if isinstance(command, SummarizeLogs) else answer
    ),
    "metadata without end": lambda command, answer: (
        {f"k{n}": Meta(Stamp(n, 0, "w"), True, n) for n in range(5_000)}
        if isinstance(command, GetStampedMetadata)
        else answer
    ),
    "a stamp beyond all clocks": lambda command, answer: (
        {"k": Meta(Stamp(2**62, 2**62, "w"), True, 1)}
        if isinstance(command, GetStampedMetadata)
        else answer
    ),
}


RIGHT_RECORDS = {"records that do not exist", "metadata without end", "a stamp beyond all clocks"}
"""Lies by which records come that are right all the same; they stay."""


@pytest.mark.parametrize("what", LIES)
def test_a_peer_that_lies_about_its_logs_is_refused(
    a: Millstream, b: Millstream, what: str
) -> None:
    a.log("x").append_many([b"1", b"2"])
    b.sync(a)
    a.log("x").append(b"3")
    a.log("x").metadata["k"] = 1
    before = seen(b)
    peer, line = through(a)
    line.tampers = LIES[what]
    with pytest.raises(MillstreamError):
        b.sync(peer, direction="pull")
    if what in RIGHT_RECORDS:
        assert records(b, "x") == records(a, "x")
        assert seen(b)["x"][3:] == before["x"][3:]
    else:
        assert seen(b) == before
    line.tampers = lambda command, answer: answer
    b.sync(peer)
    assert seen(b)["x"] == seen(a)["x"]


def test_a_peer_that_says_it_is_this_store_is_refused(a: Millstream, b: Millstream) -> None:
    b.log("x").append(b"1")
    own = b.session.execute(GetStoreId())
    peer, line = through(a)
    line.tampers = lambda command, answer: own if isinstance(command, GetStoreId) else answer
    with pytest.raises(InvalidInput, match="itself"):
        b.sync(peer)


def test_a_bomb_is_not_unpacked() -> None:
    """100 KB that would become 1 GB: it says so in its header, and is refused by that."""
    packer = zstandard.ZstdCompressor(level=1)
    data = packer.compress(bytes(300 * 1024 * 1024))
    assert len(data) < 100_000
    for size in (100, 300 * 1024 * 1024):
        with pytest.raises((TooLarge, InvalidInput)):
            unpacked(Parcel(1, bytes(32), [], data, size), Limits())


def test_a_stream_that_does_not_say_its_size_is_refused() -> None:
    """Without a size in its header nobody knows how much to allocate."""
    packer = zstandard.ZstdCompressor().compressobj()
    data = packer.compress(b"x" * 1_000) + packer.flush()
    for size in (0, 1_000, GIANT):
        with pytest.raises((InvalidInput, CorruptionError)):
            unpacked(Parcel(1, bytes(32), [], data, size), Limits())


def test_values_beyond_the_limits_of_this_store_are_refused(
    a: Millstream, make: Callable[[], Millstream]
) -> None:
    from millstream.testing import memory_store

    a.log("x").append_many([b"v" * 100, b"w" * 5_000])
    with memory_store(limits=Limits(value_bytes_max=1_000)) as small:
        with pytest.raises(TooLarge):
            small.sync(a)
        assert small.log("x").end_offset() == 0


def test_an_adoption_at_another_end_changes_nothing(a: Millstream, b: Millstream) -> None:
    a.log("x").append_many([b"1", b"2"])
    parcel = a.session.execute(SendBlocks("x", 0, 2, 1_000))
    b.sync(a)
    before = seen(b)
    for expect_end in (0, 1, 2, 3):
        with pytest.raises(MillstreamError):
            b.session.execute(AdoptParcel("x", parcel, expect_end, 0))
    assert seen(b) == before


def test_a_parcel_survives_its_encoding(a: Millstream) -> None:
    a.log("x").append_many([b"1", b"2"])
    for compress in (False, True):
        parcel = a.session.execute(SendBlocks("x", 0, 2, 1_000, compress))
        again = msgspec.msgpack.decode(msgspec.msgpack.encode(parcel), type=Parcel)
        assert again == parcel
        assert unpacked(again, Limits()) == unpacked(parcel, Limits())
