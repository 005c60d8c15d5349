"""Staging for bulk writers: parts arrive from many tasks, one commit publishes them all.

A transaction is known by its name for a week, to the token that committed it: a repeat of the commit
gets the answer of the first time, and other content under the same name is a conflict. What was
committed is noted in a log of our own, in the same commit (`log/rules/publishing.py`). Staged parts
themselves live only as long as the server; see `staged`.
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
from millstream.format.checking import check_packed
from millstream.format.packing import Batch, Single, pack_many
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
"""The log that notes what was committed."""

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
    """Which attempt at the part this is, and the CRC32C of the body, to be checked."""

    attempt: Attempt = 0
    crc: Crc | None = None


class StagedPart(Struct, forbid_unknown_fields=True, kw_only=True):
    """A part that was staged; name it so in the commit."""

    part: str
    attempt: Attempt = 0
    count: Annotated[int, Meta(ge=1)]
    crc: Crc
    """CRC32C of the body as it came."""
    log: str = ""
    """In the commit: the log that this part goes to, if not the one of all."""


class CommitBody(Struct, forbid_unknown_fields=True, kw_only=True):
    """Which parts go to which log, in order; each part may name a log of its own."""

    log: str = ""
    parts: Annotated[list[StagedPart], Meta(min_length=1, max_length=PARTS_MAX)]
    any_content: bool = False
    """Whether a repeat may list other parts: for writers that pack the same rows anew, as Spark."""


class Committed(Struct, kw_only=True):
    """Where a transaction went: `count` offsets from `offset` on."""

    log: str
    offset: int
    count: int
    repeated: bool
    """Whether it had been committed before; then this is the answer of that time."""


endpoint = Endpoints("staging")


@endpoint("POST /staging/{txn}/{part}", status=201, raw=(BATCH, "application/msgpack"))
async def stage_part(
    ask: Ask, txn: str, part: str, query: PartQuery, body: PartBody | None
) -> StagedPart:
    """Stage one part of a bulk write.

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
        items = [item_of(one, f"records[{i}]: ") for i, one in enumerate(body.records)]
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
    """Staging needs disk: only for principals that can publish to some log or queue."""
    nouns = ("*", "log", "queue")
    if not any(one.noun in nouns and one.action != "read" for one in principal.permissions):
        raise Denied(f"{principal.name} may not write any log", noun="log", action="write", name="")


def _check_txn(name: str) -> None:
    if len(name) > TXN_CHARS_MAX:
        raise InvalidInput(
            f"a staged transaction's name has up to {TXN_CHARS_MAX} characters, not {len(name):,}"
        )


@endpoint("POST /staging/{txn}/commit", errors=(409, 423))
async def commit_staged(ask: Ask, txn: str, body: CommitBody) -> Committed:
    """Publish staged parts atomically, and once.

    All parts are appended in one commit, in the order in which they are listed, each to the log that
    it names, else to the one of all. A repeat by the same
    token, within a week, answers what the first commit answered; other content under the same name is
    a conflict (409), and so is a part that is not there any more: stage it again.
    """
    _check_txn(txn)
    logs = [one.log or body.log for one in body.parts]
    for log in dict.fromkeys(logs):
        ask.principal.check(c.Append(check_name(log), _NOTHING))
    is_one = all(log == body.log for log in logs)
    core, shelf, key = ask.core, ask.core.shelf, (ask.principal.name, txn)
    name, digest = _name_of(key), _digest_of(body.parts)
    async with shelf.committing:
        while (before := await core.session.execute(FindPublished(BOOK, name))) is None:
            parts = _find_parts(shelf, key, body.parts, ask.limits)
            command = PublishParts(
                BOOK, REMEMBERED_MS, name, body.log, parts, digest, () if is_one else tuple(logs)
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
    """The name in the book: a transaction belongs to the token that stages it."""
    return blake2b(msgspec.json.encode(key), digest_size=16).hexdigest()


def _digest_of(parts: list[StagedPart]) -> str:
    """What tells a repeat from another commit: the parts' sizes and checksums, in order."""
    content = [(one.count, one.crc, one.log) if one.log else (one.count, one.crc) for one in parts]
    return blake2b(msgspec.json.encode(content), digest_size=16).hexdigest()


def _check_same(txn: str, body: CommitBody, before: Published, digest: str) -> None:
    if before.log != body.log:
        raise Conflict(
            f"transaction {txn!r} was committed to log {before.log!r}, not to {body.log!r}",
            log=before.log,
        )
    if before.digest != digest and not body.any_content:
        raise Conflict(
            f"transaction {txn!r} was committed before, with {before.count:,} records of other "
            "content; nothing was published now: use another name, or say any_content if it is "
            "the same data, packed anew",
            log=before.log,
            offset=before.offset,
            count=before.count,
        )


def _committed(found: Published, *, repeated: bool) -> Committed:
    return Committed(log=found.log, offset=found.offset, count=found.count, repeated=repeated)


def _find_parts(
    shelf: Shelf, key: tuple[str, str], names: list[StagedPart], limits: Limits
) -> LoadedParts:
    """The parts that are to be published; one that is gone, or another, is a conflict."""
    if len({one.part for one in names}) != len(names):
        raise InvalidInput("a part is named twice")
    staged = shelf.find(key)
    known = staged.parts if staged else {}
    missing = [one.part for one in names if (one.part, one.attempt) not in known]
    if staged is None or missing:
        raise Conflict(
            f"{len(missing)} parts are not staged here, or no longer: the server may have been "
            "started anew, or they lay idle too long; stage them again",
            missing=missing,
        )
    parts = [known[one.part, one.attempt] for one in names]
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
    """Staged parts, read when their commit comes to them: memory holds one at a time."""

    def __init__(self, staged: ShelvedParts, parts: list[Part], limits: Limits) -> None:
        self._staged = staged
        self._parts = parts
        self._limits = limits

    def __iter__(self) -> Iterator[Single | Batch]:
        for part in self._parts:
            packed = _packed.decode(self._staged.read(part))
            check_packed(packed, self._limits)  # a disk may have damaged what it kept
            yield packed


@endpoint("DELETE /staging/{txn}")
async def abandon_staged(ask: Ask, txn: str) -> Existed:
    """Forget what was staged."""
    _check_txn(txn)
    return Existed(deleted=ask.core.shelf.drop((ask.principal.name, txn)))
