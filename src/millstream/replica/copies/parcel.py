"""Parcels: some blocks of a log on their way to another copy, as they are stored, or packed by zstd.

A parcel says where it ends and what the running hash is there: the other side checks that before it
takes anything over. What a packed one claims to hold is compared with the limits before any of it is
unpacked.
"""

from __future__ import annotations

from importlib.util import find_spec
from itertools import accumulate
from typing import Any

import msgspec

from millstream.errors import CorruptionError, InvalidInput, TooLarge
from millstream.format import block as blocks
from millstream.format import entries
from millstream.limits import Limits
from millstream.log.model.block import RecordBlock, pack
from millstream.log.model.names import check_integer
from millstream.replica.commands import GetChain, Parcel, SendBlocks, weight
from millstream.replica.copies import copying
from millstream.store.store import Store

LEVEL = 3
"""Of zstd: its own default; faster than any network that one would compress for."""

BLOCK_BYTES_MAX = 32 * 1024 * 1024
"""A larger stored block is sent in parts: a frame of 64 MiB must hold it."""

BLOCKS_MAX = 10_000
"""Blocks in one parcel, well within what the other side takes in one commit."""

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(list[RecordBlock]).decode


def send_blocks(store: Store, query: SendBlocks) -> Parcel:
    """Read blocks for another copy."""
    if query.compress:
        _zstd()
    found = copying.transfer_blocks(store, query)
    if not found:
        return Parcel(query.start, b"")
    found = _fitting(found)
    end = found[-1].offsets.stop
    digest = copying.get_chain(store, GetChain(query.log, end))
    if not query.compress:
        return Parcel(end, digest, found)
    data = _encode(found)
    packed: bytes = _zstd().ZstdCompressor(level=LEVEL).compress(data)
    return Parcel(end, digest, [], packed, len(data))


def _fitting(found: list[RecordBlock]) -> list[RecordBlock]:
    """The first of some blocks that one frame, and one commit of the other side, can hold."""
    if weight(found[0]) > BLOCK_BYTES_MAX:
        return [_first_of(found[0])]
    sizes = accumulate(map(weight, found))
    return found[: min(BLOCKS_MAX, sum(size <= BLOCK_BYTES_MAX for size in sizes))]


def _first_of(block: RecordBlock) -> RecordBlock:
    """As many of a large block's first records as fit well into a frame; at least one."""
    payload = blocks.Block(block.payload, kind=blocks.PAYLOAD)
    values = payload.column(blocks.VALUE, block.skip, block.count) or []
    entry = entries.decode(block.metadata, block.skip, block.skip + block.count)
    columns = zip(values, entry.headers, entry.keys, strict=True)
    sizes = accumulate(len(value) + len(maps) + len(key or b"") for value, maps, key in columns)
    count = max(1, sum(size <= BLOCK_BYTES_MAX // 2 for size in sizes))
    return pack(block.log, block.first_offset, entry, values[:count])


def unpacked(parcel: Parcel, limits: Limits) -> list[RecordBlock]:
    """The blocks of a parcel; one that claims or holds too much is refused before it is unpacked."""
    if not parcel.packed:
        return parcel.blocks
    check_integer("a parcel's size", parcel.size)
    zstd = _zstd()
    try:
        claimed = zstd.frame_content_size(parcel.packed)
    except zstd.ZstdError as error:
        raise CorruptionError(f"a parcel: {error}", what="parcel", where=0) from error
    # what is read in one step, and one stored batch beyond
    most = limits.read_bytes_max + 2 * limits.batch_bytes_max
    for size in (parcel.size, claimed):
        if size > most:
            raise TooLarge(
                f"a parcel claims {size:,} bytes; the limit is {most:,}", size=size, limit=most
            )
    if parcel.blocks or claimed != parcel.size:
        raise InvalidInput(
            f"a parcel of {parcel.size:,} bytes claims {claimed:,} in its own header"
        )
    try:
        return _decode(zstd.ZstdDecompressor().decompress(parcel.packed, most))
    except (zstd.ZstdError, msgspec.MsgspecError, MemoryError) as error:
        raise CorruptionError(f"a parcel: {error}", what="parcel", where=0) from error


def _zstd() -> Any:
    if find_spec("zstandard") is None:
        raise InvalidInput(
            "compression needs the package `zstandard` on both sides: "
            "pip install 'millstream[zstd]'; or sync without it"
        )
    import zstandard

    return zstandard
