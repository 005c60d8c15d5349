"""Copies of logs over plain HTTP: their state, their stored blocks, and the adoption of blocks.

`millstream sync` does the same over the streaming socket; these endpoints serve peers that speak
HTTP only. A parcel has the same bytes on both: MessagePack, as `docs/REPLICAS.md` describes it.
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
    """Which part of the list of copies."""

    pattern: Annotated[str, Meta(min_length=1, max_length=255)] = "*"
    """A name, or a pattern with `*` and `?`."""


class Copy(Struct, kw_only=True):
    """A copy of a log."""

    name: str
    start_offset: int
    end_offset: int
    base_offset: int
    """The first offset from which the log can be compared and copied."""
    base_hash: Hash
    """The running hash at `base_offset`."""
    end_hash: Hash
    """The running hash at the end."""
    owner: str
    """The id of the store that may append."""
    is_own: bool
    """Whether this store is the owner: the log is an original, not a copy."""
    epoch: int
    """How often the owner has changed."""
    metadata: str
    """A digest of the metadata; empty without metadata."""


class CopyPage(Struct, kw_only=True):
    """Copies in the order of their names."""

    copies: list[Copy]
    """The copies that you may read."""
    after: str | None
    """Pass this as `after` for the next page; null: this is the last page."""


class StartBody(Struct, forbid_unknown_fields=True, kw_only=True):
    """The start and the owner of a new copy."""

    base_offset: Position
    """The first offset at which the original can be read."""
    base_hash: Hash
    """The original's running hash at `base_offset`."""
    owner: Name
    """The id of the store that may append."""
    epoch: Position = 0
    """How often the owner has changed."""


class HashQuery(Struct, forbid_unknown_fields=True, kw_only=True):
    """The offset of a running hash."""

    offset: Position
    """An offset between the base and the end of the log."""


class HashAt(Struct, kw_only=True):
    """A running hash. Two copies with the same hash have the same records before the offset."""

    offset: int
    hash: Hash
    """The hash of all records below the offset."""


class BlocksQuery(Struct, forbid_unknown_fields=True, kw_only=True):
    """The range of records to send."""

    start: Position
    """The first offset, not below the base."""
    stop: Position
    """Send up to this offset, exclusive."""
    compress: bool = False
    """Whether to compress the blocks with zstd."""


class AdoptQuery(Struct, forbid_unknown_fields=True, kw_only=True):
    """The expected state of the copy."""

    expect_end: Position
    """The end of this copy, where the parcel starts."""
    epoch: Position = 0
    """The owner epoch of the copy that sent the parcel."""


class AdoptedRecords(Struct, kw_only=True):
    """The new end of the copy."""

    end_offset: int


def _shown(summary: c.Summary, store_id: str) -> Copy:
    return Copy(
        name=summary.name,
        start_offset=summary.start,
        end_offset=summary.end,
        base_offset=summary.base.offset,
        base_hash=summary.base.digest.hex(),
        end_hash=summary.digest.hex(),
        owner=summary.owner,
        is_own=summary.owner == store_id,
        epoch=summary.epoch,
        metadata=summary.metadata.hex(),
    )


endpoint = Endpoints("replica")


@endpoint("GET /replica/logs")
async def list_copies(ask: Ask, query: CopyQuery) -> CopyPage:
    """List copies of logs in the order of their names."""
    summaries = await ask.execute(
        c.SummarizeLogs(checked_after(query.after), query.limit, checked_after(query.pattern))
    )
    after = summaries[-1].name if len(summaries) == query.limit else None
    store_id = await _store_id(ask)
    return CopyPage(copies=[_shown(summary, store_id) for summary in summaries], after=after)


@endpoint("GET /replica/logs/{log}", errors=(404,))
async def get_copy(ask: Ask, log: str) -> Copy:
    """Show a copy of a log."""
    summary = await ask.execute(c.SummarizeLog(log))
    if summary is None:
        raise NotFound(f"there is no log {log!r}", name=log)
    return _shown(summary, await _store_id(ask))


async def _store_id(ask: Ask) -> str:
    """Return the id of this store; a principal that sees the owner of a copy may compare the two."""
    return await ask.execute(c.GetStoreId())


@endpoint(
    "PUT /replica/logs/{log}",
    description="The copy existed and can continue from there",
    also={201: "The copy was created, or starts again"},
    errors=(404, 409, 423),
)
async def start_copy(ask: Ask, log: str, body: StartBody) -> Reply[Copy]:
    """Create an empty copy of a log of another store.

    The copy starts at the first readable offset of the original. An existing copy that ends before
    this offset starts again at the offset.
    """
    base = Mark(body.base_offset, bytes.fromhex(body.base_hash))
    made = await ask.execute(c.StartReplica(log, base, checked_after(body.owner), body.epoch))
    return Reply(await get_copy(ask, log), 201 if made else 200)


@endpoint("GET /replica/logs/{log}/hash", errors=(404, 410, 416))
async def get_hash(ask: Ask, log: str, query: HashQuery) -> HashAt:
    """Show the running hash at an offset."""
    digest = await ask.execute(c.GetChain(log, query.offset))
    return HashAt(offset=query.offset, hash=digest.hex())


@endpoint("GET /replica/logs/{log}/blocks", media_types=(MSGPACK,), errors=(404, 410, 416))
async def get_blocks(ask: Ask, log: str, query: BlocksQuery) -> Response:
    """Send stored blocks, with the running hash at their end.

    The answer is a parcel of about 4 MiB; continue at its end.
    """
    bytes_max = ask.limits.read_bytes_max
    parcel = await ask.execute(SendBlocks(log, query.start, query.stop, bytes_max, query.compress))
    return Response(_encode(parcel), media_type=MSGPACK)


@endpoint("POST /replica/logs/{log}/blocks", raw=(MSGPACK,), errors=(404, 409, 423))
async def adopt_blocks(ask: Ask, log: str, query: AdoptQuery) -> AdoptedRecords:
    """Adopt a parcel in one commit.

    Checksums, limits and the running hash are checked before anything is stored.
    """
    try:
        parcel = _parcel.decode(ask.data)
    except (msgspec.MsgspecError, ValueError) as error:
        raise InvalidInput(f"the body is not a parcel: {error}") from error
    try:
        end = await ask.execute(AdoptParcel(log, parcel, query.expect_end, query.epoch))
    except CorruptionError as error:  # the parcel is damaged, not the store
        raise InvalidInput(error.message, **error.data) from error
    return AdoptedRecords(end_offset=end)
