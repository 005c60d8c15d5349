"""Copies of logs over plain HTTP: how they stand, their blocks as stored, and taking blocks over.

What `millstream sync` asks over the streaming socket, for peers that speak HTTP alone. A parcel is the
same bytes on both: MessagePack, as `docs/REPLICAS.md` describes it.
"""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta, Struct
from starlette.responses import Response

from millstream.errors import CorruptionError, InvalidInput, NotFound
from millstream.replica import commands as c
from millstream.replica.chain import DIGEST_BYTES, Mark
from millstream.replica.commands import AdoptParcel, Parcel, SendBlocks
from millstream.server.rest.ask import Ask
from millstream.server.rest.endpoint import Endpoints, Reply
from millstream.server.rest.forks import Name
from millstream.server.rest.logs import Page, checked_after
from millstream.server.rest.payload import Position

MSGPACK = "application/msgpack"

Hash = Annotated[
    str,
    Meta(
        pattern=f"^[0-9a-f]{{{2 * DIGEST_BYTES}}}$",
        description="A running hash: SHA-256, in hexadecimal digits.",
    ),
]
_parcel = msgspec.msgpack.Decoder(Parcel)
_encode = msgspec.msgpack.Encoder().encode


class CopyQuery(Page, forbid_unknown_fields=True, kw_only=True):
    """Which copies of a listing."""

    pattern: Annotated[str, Meta(min_length=1, max_length=255)] = "*"
    """A name, or a pattern with `*` and `?`."""


class Copy(Struct, kw_only=True):
    """How a copy of a log stands."""

    name: str
    start_offset: int
    end_offset: int
    base_offset: int
    """From here on the log can be compared and copied."""
    base_hash: Hash
    """The running hash there."""
    end_hash: Hash
    """The running hash at the end."""
    owner: str
    """The id of the store that may append."""
    epoch: int
    """How often the owner has changed."""
    metadata: str
    """A digest of the metadata's entries; empty if there are none."""


class CopyPage(Struct, kw_only=True):
    """Copies in the order of their names."""

    copies: list[Copy]
    """Those that one may copy."""
    after: str | None
    """Ask with this for the next page; null: there is none."""


class StartBody(Struct, forbid_unknown_fields=True, kw_only=True):
    """Where a copy begins, and whose it is."""

    base_offset: Position
    """Where the original can be read from."""
    base_hash: Hash
    """The original's running hash there."""
    owner: Name
    """The id of the store that may append."""
    epoch: Position = 0
    """How often the owner has changed."""


class HashQuery(Struct, forbid_unknown_fields=True, kw_only=True):
    """At which offset."""

    offset: Position
    """From the base to the end of the log."""


class HashAt(Struct, kw_only=True):
    """A running hash: the same in two copies if everything before it is."""

    offset: int
    hash: Hash
    """Of all records below the offset."""


class BlocksQuery(Struct, forbid_unknown_fields=True, kw_only=True):
    """Which records."""

    start: Position
    """The first offset, not below the base."""
    stop: Position
    """Before this offset."""
    compress: bool = False
    """Pack them by zstd."""


class AdoptQuery(Struct, forbid_unknown_fields=True, kw_only=True):
    """Where the blocks belong."""

    expect_end: Position
    """The end of this copy, where the parcel begins."""
    epoch: Position = 0
    """That of the copy which the parcel comes from."""


class AdoptedRecords(Struct, kw_only=True):
    """How far a copy has come."""

    end_offset: int


def _shown(found: c.Summary) -> Copy:
    return Copy(
        name=found.name,
        start_offset=found.start,
        end_offset=found.end,
        base_offset=found.base.offset,
        base_hash=found.base.digest.hex(),
        end_hash=found.digest.hex(),
        owner=found.owner,
        epoch=found.epoch,
        metadata=found.metadata.hex(),
    )


endpoint = Endpoints("replica")


@endpoint("GET /replica/logs")
async def list_copies(ask: Ask, query: CopyQuery) -> CopyPage:
    """How copies of logs stand, in the order of their names."""
    found = await ask.execute(
        c.SummarizeLogs(checked_after(query.after), query.limit, checked_after(query.pattern))
    )
    after = found[-1].name if len(found) == query.limit else None
    return CopyPage(copies=[_shown(one) for one in found], after=after)


@endpoint("GET /replica/logs/{log}", errors=(404,))
async def get_copy(ask: Ask, log: str) -> Copy:
    """How a copy of a log stands."""
    found = await ask.execute(c.SummarizeLog(log))
    if found is None:
        raise NotFound(f"there is no log {log!r}", name=log)
    return _shown(found)


@endpoint(
    "PUT /replica/logs/{log}",
    description="There is one that goes on from there",
    also={201: "It was made, or begins anew"},
    errors=(404, 409, 423),
)
async def start_copy(ask: Ask, log: str, body: StartBody) -> Reply[Copy]:
    """Make an empty copy of a log of another store.

    It begins where the other one can be read from. A copy that ends before begins anew there.
    """
    base = Mark(body.base_offset, bytes.fromhex(body.base_hash))
    made = await ask.execute(c.StartReplica(log, base, checked_after(body.owner), body.epoch))
    return Reply(await get_copy(ask, log), 201 if made else 200)


@endpoint("GET /replica/logs/{log}/hash", errors=(404, 410, 416))
async def get_hash(ask: Ask, log: str, query: HashQuery) -> HashAt:
    """The running hash at an offset."""
    found = await ask.execute(c.GetChain(log, query.offset))
    return HashAt(offset=query.offset, hash=found.hex())


@endpoint("GET /replica/logs/{log}/blocks", media_types=(MSGPACK,), errors=(404, 410, 416))
async def get_blocks(ask: Ask, log: str, query: BlocksQuery) -> Response:
    """Some records as they are stored, with the running hash behind them.

    The answer is a parcel of about 4 MiB; go on where it ends.
    """
    most = ask.limits.read_bytes_max
    parcel = await ask.execute(SendBlocks(log, query.start, query.stop, most, query.compress))
    return Response(_encode(parcel), media_type=MSGPACK)


@endpoint("POST /replica/logs/{log}/blocks", raw=(MSGPACK,), errors=(404, 409, 423))
async def adopt_blocks(ask: Ask, log: str, query: AdoptQuery) -> AdoptedRecords:
    """Take a parcel over, in one commit.

    Checksums, limits and the running hash are checked before anything is stored.
    """
    try:
        parcel = _parcel.decode(ask.data)
    except (msgspec.MsgspecError, ValueError) as error:
        raise InvalidInput(f"this is no parcel: {error}") from error
    try:
        end = await ask.execute(AdoptParcel(log, parcel, query.expect_end, query.epoch))
    except CorruptionError as error:  # of what was sent, not of what is stored
        raise InvalidInput(error.message, **error.data) from error
    return AdoptedRecords(end_offset=end)
