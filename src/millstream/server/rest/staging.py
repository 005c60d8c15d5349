"""Staging for bulk writers: many tasks upload parts, and one commit publishes the parts.

The server remembers a transaction by its name for a week, for the token that committed it. A
repeated commit returns the first answer; another content under the same name is a conflict. The
commit also appends a note to a log of the server (`log/rules/publishing.py`). Staged parts exist
only until the server stops; see `staged`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from hashlib import blake2b
from typing import Annotated

import msgspec
from msgspec import Meta, Struct

from millstream.errors import Conflict, Denied, InvalidInput
from millstream.format.block import checksum
from millstream.format.packing import Batch, Single, pack_many
from millstream.format.record_checks import check_packed
from millstream.limits import Limits
from millstream.log import commands as c
from millstream.log.model.names import check_name
from millstream.log.rules.publishing import FindPublished, Published, PublishParts
from millstream.server.auth.access import Principal
from millstream.server.rest.ask import Ask
from millstream.server.rest.endpoint import BATCH, Endpoints
from millstream.server.rest.logs import Existed
from millstream.server.rest.payload import NewRecord, item_of
from millstream.server.staged_parts import PARTS_MAX, Part, Shelf, ShelvedParts

BOOK = "millstream:staging"
"""The log with a note of every committed transaction."""

REMEMBERED_MS = 7 * 24 * 3600 * 1000
TXN_CHARS_MAX = 200
_NOTHING = Single(b"", None, b"", None)
_packed = msgspec.msgpack.Decoder(Single | Batch)
_pack = msgspec.msgpack.Encoder().encode

Attempt = Annotated[int, Meta(ge=0, le=2**31)]
Crc = Annotated[int, Meta(ge=0, le=2**32 - 1)]


class PartBody(Struct, forbid_unknown_fields=True, kw_only=True):
    """A part as JSON; bulk writers send packed blocks instead."""

    records: Annotated[list[NewRecord], Meta(min_length=1)]


class PartQuery(Struct, forbid_unknown_fields=True, kw_only=True):
    """The attempt at the part, and the CRC32C of the body, which the server checks."""

    attempt: Attempt = 0
    crc: Crc | None = None


class StagedPart(Struct, forbid_unknown_fields=True, kw_only=True):
    """A staged part, in the form that the commit lists."""

    part: str
    attempt: Attempt = 0
    count: Annotated[int, Meta(ge=1)]
    crc: Crc
    """CRC32C of the body as received."""
    log: str = ""
    """In the commit: the log of this part; default: the commit's log."""


class CommitBody(Struct, forbid_unknown_fields=True, kw_only=True):
    """The parts to commit, in order; a part may name its own log."""

    log: str = ""
    parts: Annotated[list[StagedPart], Meta(min_length=1, max_length=PARTS_MAX)]
    any_content: bool = False
    """Whether a repeat may list other parts, for writers such as Spark that pack the same rows
    again."""


class Committed(Struct, kw_only=True):
    """The offsets of a committed transaction: `count` offsets from `offset` on."""

    log: str
    offset: int
    count: int
    repeated: bool
    """Whether the transaction was committed before, so that the first answer is repeated."""


endpoint = Endpoints("staging")


@endpoint("POST /staging/{txn}/{part}", status=201, raw=(BATCH, "application/msgpack"))
async def stage_part(
    ask: Ask, txn: str, part: str, query: PartQuery, body: PartBody | None
) -> StagedPart:
    """Stage a part of a bulk write.

    The body is a packed block (MessagePack, with its checksums), or JSON records. Parts are kept
    until the commit, for 15 idle minutes, or until the server stops.
    """
    _check_writes_logs(ask.principal)
    _check_txn(txn)
    limits, data = ask.limits, ask.data
    packed: Single | Batch | None
    if body is None:
        packed = _unpacked(data)
        await asyncio.to_thread(check_packed, packed, limits)
    else:
        items = [item_of(record, f"records[{i}]: ") for i, record in enumerate(body.records)]
        packed = pack_many(items, keys=None, headers=None, timestamps=None, limits=limits)
        assert packed is not None
        data = _pack(packed)
    crc = checksum(ask.data)
    if query.crc is not None and query.crc != crc:
        raise InvalidInput(f"the body's CRC32C is {crc}, not {query.crc}: send it again", crc=crc)
    count = 1 if isinstance(packed, Single) else packed.count
    key = (ask.principal.name, txn)
    await ask.core.shelf.add(key, (part, query.attempt), data, count=count, crc=crc)
    return StagedPart(part=part, attempt=query.attempt, count=count, crc=crc)


def _unpacked(data: bytes) -> Single | Batch:
    try:
        packed: Single | Batch = _packed.decode(data)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise InvalidInput(f"not a packed block: {error}") from error
    return packed


def _check_writes_logs(principal: Principal) -> None:
    """Refuse principals that can write to no log or queue: staging takes disk space."""
    nouns = ("*", "log", "queue")
    if not any(
        permission.noun in nouns and permission.action != "read"
        for permission in principal.permissions
    ):
        raise Denied(f"{principal.name} may not write any log", noun="log", action="write", name="")


def _check_txn(name: str) -> None:
    if len(name) > TXN_CHARS_MAX:
        raise InvalidInput(
            f"a staged transaction's name has up to {TXN_CHARS_MAX} characters, not {len(name):,}"
        )


@endpoint("POST /staging/{txn}/commit", errors=(409, 423))
async def commit_staged(ask: Ask, txn: str, body: CommitBody) -> Committed:
    """Publish staged parts atomically and exactly once.

    All parts are appended in one commit, in the listed order. Each part goes to its own log, or to
    the commit's log. A repeat with the same token within a week returns the first answer. The
    answer is 409 if the name was used for another content, or if a part is no longer staged; then
    stage the part again.
    """
    _check_txn(txn)
    logs = [part.log or body.log for part in body.parts]
    for log in dict.fromkeys(logs):
        ask.principal.check(c.Append(check_name(log), _NOTHING))
    is_one = all(log == body.log for log in logs)
    core, shelf, key = ask.core, ask.core.shelf, (ask.principal.name, txn)
    name, digest = _name_of(key), _digest_of(body.parts)
    async with shelf.committing:
        while (before := await core.session.execute(FindPublished(BOOK, name))) is None:
            parts = _find_parts(shelf, key, body.parts, ask.limits)
            command = PublishParts(
                book=BOOK,
                remember_ms=REMEMBERED_MS,
                name=name,
                log=body.log,
                parts=parts,
                digest=digest,
                logs=() if is_one else tuple(logs),
            )
            published = await core.session.execute(command)
            del parts, command
            if published is not None:
                shelf.drop(key)
                return _committed(published, repeated=False)
    _check_same(txn, body, before, digest)
    shelf.drop(key)
    return _committed(before, repeated=True)


def _name_of(key: tuple[str, str]) -> str:
    """Return the transaction's name in the log of notes: names belong to the token that stages."""
    return blake2b(msgspec.json.encode(key), digest_size=16).hexdigest()


def _digest_of(parts: list[StagedPart]) -> str:
    """Return a digest of the parts' sizes and checksums in order; it tells a repeat from a new
    commit."""
    content = [
        (part.count, part.crc, part.log) if part.log else (part.count, part.crc) for part in parts
    ]
    return blake2b(msgspec.json.encode(content), digest_size=16).hexdigest()


def _check_same(txn: str, body: CommitBody, before: Published, digest: str) -> None:
    if before.log != body.log:
        raise Conflict(
            f"transaction {txn!r} was committed to log {before.log!r}, not to {body.log!r}",
            log=before.log,
        )
    if before.digest != digest and not body.any_content:
        raise Conflict(
            f"transaction {txn!r} was committed before, with {before.count:,} records of another "
            "content; nothing was published now: use another name, or set any_content if the data "
            "is the same and was packed again",
            log=before.log,
            offset=before.offset,
            count=before.count,
        )


def _committed(published: Published, *, repeated: bool) -> Committed:
    return Committed(
        log=published.log, offset=published.offset, count=published.count, repeated=repeated
    )


def _find_parts(
    shelf: Shelf, key: tuple[str, str], names: list[StagedPart], limits: Limits
) -> LoadedParts:
    """Return the parts to publish; a missing or different part is a conflict."""
    if len({name.part for name in names}) != len(names):
        raise InvalidInput("a part is named twice")
    staged = shelf.find(key)
    staged_parts = staged.parts if staged else {}
    missing = [name.part for name in names if (name.part, name.attempt) not in staged_parts]
    if staged is None or missing:
        raise Conflict(
            f"{len(missing)} parts are not staged here: the server was restarted, or the parts were "
            "idle too long; stage them again",
            missing=missing,
        )
    parts = [staged_parts[name.part, name.attempt] for name in names]
    for name, part in zip(names, parts, strict=True):
        if (name.count, name.crc) != (part.count, part.crc):
            raise Conflict(
                f"part {name.part!r} was staged with {part.count} records and CRC32C {part.crc}",
                part=name.part,
                count=part.count,
                crc=part.crc,
            )
    return LoadedParts(staged, parts, limits)


class LoadedParts:
    """Staged parts, loaded when the commit reaches them: memory holds one part at a time."""

    def __init__(self, staged: ShelvedParts, parts: list[Part], limits: Limits) -> None:
        self._staged = staged
        self._parts = parts
        self._limits = limits

    def __iter__(self) -> Iterator[Single | Batch]:
        for part in self._parts:
            packed = _packed.decode(self._staged.read(part))
            check_packed(packed, self._limits)  # the disk may have damaged the part
            yield packed


@endpoint("DELETE /staging/{txn}")
async def abandon_staged(ask: Ask, txn: str) -> Existed:
    """Discard all staged parts of a transaction."""
    _check_txn(txn)
    return Existed(deleted=ask.core.shelf.drop((ask.principal.name, txn)))
