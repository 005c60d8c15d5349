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
from millstream.server.rest.endpoint import Answer, Endpoint, Reply
from millstream.server.rest.forks import Name
from millstream.server.rest.logs import PAGE_MAX, checked_after
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


class CopyQuery(Struct, forbid_unknown_fields=True, kw_only=True):
    """Which copies of a listing."""

    after: Annotated[str, Meta(max_length=255)] = ""
    limit: Annotated[int, Meta(ge=1, le=PAGE_MAX)] = 100
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


class Adopted(Struct, kw_only=True):
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


async def list_copies(ask: Ask) -> CopyPage:
    """A page of copies."""
    page: CopyQuery = ask.query
    found = await ask.execute(
        c.SummarizeLogs(checked_after(page.after), page.limit, checked_after(page.pattern))
    )
    after = found[-1].name if len(found) == page.limit else None
    return CopyPage(copies=[_shown(one) for one in found], after=after)


async def get_copy(ask: Ask) -> Copy:
    """How one copy stands."""
    name = ask.name("log")
    found = await ask.execute(c.SummarizeLog(name))
    if found is None:
        raise NotFound(f"there is no log {name!r}", name=name)
    return _shown(found)


async def start_copy(ask: Ask) -> Reply:
    """Make an empty copy, unless there is a log."""
    body: StartBody = ask.body
    base = Mark(body.base_offset, bytes.fromhex(body.base_hash))
    made = await ask.execute(
        c.StartReplica(ask.name("log"), base, checked_after(body.owner), body.epoch)
    )
    return Reply(await get_copy(ask), 201 if made else 200)


async def get_hash(ask: Ask) -> HashAt:
    """The running hash at an offset."""
    offset: int = ask.query.offset
    found = await ask.execute(c.GetChain(ask.name("log"), offset))
    return HashAt(offset=offset, hash=found.hex())


async def get_blocks(ask: Ask) -> Response:
    """Some of the records, as they are stored."""
    query: BlocksQuery = ask.query
    most = ask.session.limits.read_bytes_max
    parcel = await ask.execute(
        SendBlocks(ask.name("log"), query.start, query.stop, most, query.compress)
    )
    return Response(_encode(parcel), media_type=MSGPACK)


async def adopt_blocks(ask: Ask) -> Adopted:
    """Take records over."""
    query: AdoptQuery = ask.query
    assert ask.raw is not None
    try:
        parcel = _parcel.decode(ask.raw)
    except (msgspec.MsgspecError, ValueError) as error:
        raise InvalidInput(f"this is no parcel: {error}") from error
    try:
        end = await ask.execute(AdoptParcel(ask.name("log"), parcel, query.expect_end, query.epoch))
    except CorruptionError as error:  # of what was sent, not of what is stored
        raise InvalidInput(error.message, **error.data) from error
    return Adopted(end_offset=end)


ENDPOINTS = (
    Endpoint(
        method="GET",
        path="/replica/logs",
        name="listCopies",
        summary="How copies of logs stand, in the order of their names",
        run=list_copies,
        tag="replica",
        query=CopyQuery,
        answers=(Answer(CopyPage),),
    ),
    Endpoint(
        method="GET",
        path="/replica/logs/{log}",
        name="getCopy",
        summary="How a copy of a log stands",
        run=get_copy,
        tag="replica",
        answers=(Answer(Copy),),
        errors=(404,),
    ),
    Endpoint(
        method="PUT",
        path="/replica/logs/{log}",
        name="startCopy",
        summary="Make an empty copy of a log of another store",
        detail="It begins where the other one can be read from. A copy that ends before begins anew "
        "there.",
        run=start_copy,
        tag="replica",
        body=StartBody,
        answers=(
            Answer(Copy, "There is one that goes on from there"),
            Answer(Copy, "It was made, or begins anew", status=201),
        ),
        errors=(404, 409, 423),
    ),
    Endpoint(
        method="GET",
        path="/replica/logs/{log}/hash",
        name="getHash",
        summary="The running hash at an offset",
        run=get_hash,
        tag="replica",
        query=HashQuery,
        answers=(Answer(HashAt),),
        errors=(404, 410, 416),
    ),
    Endpoint(
        method="GET",
        path="/replica/logs/{log}/blocks",
        name="getBlocks",
        summary="Some records as they are stored, with the running hash behind them",
        detail="The answer is a parcel of about 4 MiB; go on where it ends.",
        run=get_blocks,
        tag="replica",
        query=BlocksQuery,
        answers=(Answer(None, media_types=(MSGPACK,)),),
        errors=(404, 410, 416),
    ),
    Endpoint(
        method="POST",
        path="/replica/logs/{log}/blocks",
        name="adoptBlocks",
        summary="Take a parcel over, in one commit",
        detail="Checksums, limits and the running hash are checked before anything is stored.",
        run=adopt_blocks,
        tag="replica",
        query=AdoptQuery,
        raw=(MSGPACK,),
        answers=(Answer(Adopted),),
        errors=(404, 409, 423),
    ),
)
