"""Parcels: blocks of a log on their way to another copy, as they are stored, or compressed by zstd.

A parcel names its end and the running hash there: the taker checks the hash before it appends
anything. The size that a compressed parcel claims is compared with the limits before any of it is
decompressed.
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
from millstream.replica.copies import giver
from millstream.store.store import Store

LEVEL = 3
"""The default of zstd; faster than any network for which a user would compress."""

BLOCK_BYTES_MAX = 32 * 1024 * 1024
"""A larger stored block is sent in several parcels: a frame of 64 MiB must hold it."""

BLOCKS_MAX = 10_000
"""Blocks in one parcel, well within the limit of the taker's commit."""

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(list[RecordBlock]).decode


def send_blocks(store: Store, query: SendBlocks) -> Parcel:
    """Read a parcel for another copy."""
    if query.compress:
        _zstd()
    stored = giver.transfer_blocks(store, query)
    if not stored:
        return Parcel(query.start, b"")
    stored = _fitting(stored)
    end = stored[-1].offsets.stop
    digest = giver.get_chain(store, GetChain(query.log, end))
    if not query.compress:
        return Parcel(end, digest, stored)
    data = _encode(stored)
    packed: bytes = _zstd().ZstdCompressor(level=LEVEL).compress(data)
    return Parcel(end, digest, [], packed, len(data))


def _fitting(stored: list[RecordBlock]) -> list[RecordBlock]:
    """Return the first blocks that fit into one frame, and into one commit of the taker."""
    if weight(stored[0]) > BLOCK_BYTES_MAX:
        return [_first_of(stored[0])]
    sizes = accumulate(map(weight, stored))
    return stored[: min(BLOCKS_MAX, sum(size <= BLOCK_BYTES_MAX for size in sizes))]


def _first_of(block: RecordBlock) -> RecordBlock:
    """Return as many of a large block's first records as fit well into a frame; at least one."""
    payload = blocks.Block(block.payload, kind=blocks.PAYLOAD)
    values = payload.column(blocks.VALUE, block.skip, block.count) or []
    entry = entries.decode(block.metadata, block.skip, block.skip + block.count)
    columns = zip(values, entry.headers, entry.keys, strict=True)
    sizes = accumulate(len(value) + len(maps) + len(key or b"") for value, maps, key in columns)
    count = max(1, sum(size <= BLOCK_BYTES_MAX // 2 for size in sizes))
    return pack(block.log, block.first_offset, entry, values[:count])


def unpacked(parcel: Parcel, limits: Limits) -> list[RecordBlock]:
    """Return the blocks of a parcel. Raises `TooLarge` before decompressing a large parcel."""
    if not parcel.packed:
        return parcel.blocks
    check_integer("a parcel's size", parcel.size)
    zstd = _zstd()
    try:
        claimed = zstd.frame_content_size(parcel.packed)
    except zstd.ZstdError as error:
        raise CorruptionError(f"a parcel: {error}", what="parcel", where=0) from error
    # a single read, and a stored batch beyond its end
    bytes_max = limits.read_bytes_max + 2 * limits.batch_bytes_max
    for size in (parcel.size, claimed):
        if size > bytes_max:
            raise TooLarge(
                f"a parcel claims {size:,} bytes; the limit is {bytes_max:,}",
                size=size,
                limit=bytes_max,
            )
    if parcel.blocks or claimed != parcel.size:
        raise InvalidInput(
            f"a parcel of {parcel.size:,} bytes claims {claimed:,} in its own header"
        )
    try:
        return _decode(zstd.ZstdDecompressor().decompress(parcel.packed, bytes_max))
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
