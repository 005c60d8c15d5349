"""Staging for bulk writers: parts arrive from many tasks, one commit publishes them all.

A transaction is known by its name for a week: whoever commits it again, with whatever parts, gets
the answer of the first time. What was committed is noted in a log of our own, in the same commit.
Staged parts themselves live only as long as the server; see `staged`.
"""

from __future__ import annotations

import asyncio
from typing import Annotated, Any
from weakref import WeakKeyDictionary

import msgspec
from msgspec import Meta, Struct

from millstream.command import Transact
from millstream.errors import Conflict, Denied, EndMoved, InvalidInput, MetadataConflict, Truncated
from millstream.format.block import checksum
from millstream.format.checking import check_packed
from millstream.format.packing import Batch, Single
from millstream.limits import Limits
from millstream.log import commands as c
from millstream.log.log import pack_many
from millstream.log.names import NUMBER_MAX, check_name
from millstream.record import Producer, Retention
from millstream.server.access import Permission, Principal
from millstream.server.core import Core
from millstream.server.rest.ask import Ask
from millstream.server.rest.endpoint import BATCH, Answer, Endpoint
from millstream.server.rest.logs import Existed
from millstream.server.rest.payload import NewRecord, item_of
from millstream.server.rest.staged import PARTS_MAX, Part, Shelf, Staged

BOOK = "millstream:staging"
"""The log that notes what was committed."""

REMEMBERED_MS = 7 * 24 * 3600 * 1000
TXN_CHARS_MAX = 200
_SERVER = Principal(
    "staging",
    (Permission("log", "admin"), Permission("queue", "admin"), Permission("store", "admin")),
)
"""The book is the server's own; who commits needs to write the log or queue that they publish to."""

_NOTHING = Single(b"", None, b"", None)
_packed = msgspec.msgpack.Decoder(Single | Batch)
_pack = msgspec.msgpack.Encoder().encode

_shelves: WeakKeyDictionary[Core, Shelf] = WeakKeyDictionary()

Attempt = Annotated[int, Meta(ge=0, le=2**31)]
Crc = Annotated[int, Meta(ge=0, le=2**32 - 1)]


class PartBody(Struct, forbid_unknown_fields=True, kw_only=True):
    """A part as JSON; bulk writers send packed blocks instead."""

    records: Annotated[list[NewRecord], Meta(min_length=1)]


class PartQuery(Struct, forbid_unknown_fields=True, kw_only=True):
    """Which attempt at the part this is, and the CRC32C of the body, to be checked."""

    attempt: Attempt = 0
    crc: Crc | None = None


class StagedPart(Struct, kw_only=True):
    """A part that was staged; name it so in the commit."""

    part: str
    attempt: int
    count: int
    crc: int
    """CRC32C of the body as it came."""


class PartName(Struct, forbid_unknown_fields=True, kw_only=True):
    """A part to be published, as staging it answered."""

    part: str
    attempt: Attempt = 0
    count: Annotated[int, Meta(ge=1)]
    crc: Crc


class CommitBody(Struct, forbid_unknown_fields=True, kw_only=True):
    """Which parts go to which log, in order."""

    log: str
    parts: Annotated[list[PartName], Meta(min_length=1, max_length=PARTS_MAX)]


class Committed(Struct, kw_only=True):
    """Where a transaction went: `count` offsets from `offset` on."""

    log: str
    offset: int
    count: int
    repeated: bool
    """Whether it had been committed before; then this is the answer of that time."""


class _Note(Struct, kw_only=True):
    """In the book: what was committed. Its producer's name is the transaction's."""

    log: str
    first_count: int
    count: int


def shelf_of(core: Core) -> Shelf:
    """Where a server keeps what was staged."""
    shelf = _shelves.get(core)
    if shelf is None:
        path = core.store.engine.describe().get("path")
        shelf = _shelves[core] = Shelf(core.session.clock, path)
    return shelf


async def stage(ask: Ask) -> StagedPart:
    """Keep a part until the commit."""
    _check_writes_logs(ask.principal)
    txn, part, query = _txn(ask), ask.name("part"), ask.query
    limits = ask.session.limits
    if ask.raw is not None:
        packed = _unpacked(ask.raw)
        await asyncio.to_thread(check_packed, packed, limits)
        data = ask.raw
    else:
        items = [item_of(one, f"records[{i}]: ") for i, one in enumerate(ask.body.records)]
        found = pack_many(items, keys=None, headers=None, timestamps=None, limits=limits)
        assert found is not None
        packed = found
        data = _pack(packed)
    crc = checksum(ask.data)
    if query.crc is not None and query.crc != crc:
        raise InvalidInput(f"the body's CRC32C is {crc}, not {query.crc}: send it again", crc=crc)
    count = 1 if isinstance(packed, Single) else packed.count
    key = (ask.principal.name, txn)
    await shelf_of(ask.core).add(key, (part, query.attempt), data, count=count, crc=crc)
    return StagedPart(part=part, attempt=query.attempt, count=count, crc=crc)


def _unpacked(data: bytes) -> Single | Batch:
    try:
        packed: Single | Batch = _packed.decode(data)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise InvalidInput(f"not a packed block: {error}") from error
    return packed


def _check_writes_logs(principal: Principal) -> None:
    """Staging needs disk: only for those who can publish to some log or queue."""
    nouns = ("*", "log", "queue")
    if not any(one.noun in nouns and one.action != "read" for one in principal.permissions):
        raise Denied(f"{principal.name} may not write any log", noun="log", action="write", name="")


def _txn(ask: Ask) -> str:
    name = ask.name("txn")
    if len(name) > TXN_CHARS_MAX:
        raise InvalidInput(f"a staged transaction's name has up to {TXN_CHARS_MAX} characters")
    return name


async def commit(ask: Ask) -> Committed:
    """Publish staged parts in one commit; once, however often it is asked."""
    txn, body = _txn(ask), ask.body
    log = check_name(body.log)
    ask.principal.check(c.Append(log, _NOTHING))
    shelf = shelf_of(ask.core)
    key = (ask.principal.name, txn)
    async with shelf.committing:
        while True:
            commits = (await _execute(ask, c.GetMetadata(BOOK))).get("commits")
            before = await _find_commit(ask, txn)
            if before is not None:
                break
            parts = await _read_parts(shelf, key, body.parts, ask.session.limits)
            try:
                return await _publish(ask, txn, log, parts, commits)
            except MetadataConflict:
                continue  # another process committed something: look again
            finally:
                del parts
    if before.log != log:
        raise Conflict(
            f"transaction {txn!r} was committed to log {before.log!r}, not to {log!r}",
            log=before.log,
        )
    shelf.drop(key)
    return before


async def _publish(
    ask: Ask, txn: str, log: str, parts: list[Single | Batch], commits: int | None
) -> Committed:
    counts = [1 if isinstance(one, Single) else one.count for one in parts]
    note = _Note(log=log, first_count=counts[0], count=sum(counts))
    steps: list[Any] = [
        c.SetMetadata(BOOK, "commits", (commits or 0) + 1, expect=commits, compare=True),
        c.Append(
            BOOK, Single(msgspec.json.encode(note), None, b"", None), producer=Producer(txn, 0)
        ),
        c.Append(log, parts[0], producer=_producer(txn)),
        *(c.Append(log, one) for one in parts[1:]),
    ]
    if commits is None:
        steps.insert(0, c.SetRetention(BOOK, Retention(age_ms=REMEMBERED_MS)))
    results = await _execute(ask, Transact(steps))
    shelf_of(ask.core).drop((ask.principal.name, txn))
    offset = results[-len(parts)]
    return Committed(log=log, offset=offset, count=note.count, repeated=False)


async def _find_commit(ask: Ask, txn: str) -> Committed | None:
    """What a transaction's commit answered, if there was one.

    An append that expects an end which no log has stores nothing, whatever happens; but the
    repeat of a known producer's sequence is answered before that is looked at.
    """
    try:
        at = await _execute(ask, c.Append(BOOK, _NOTHING, NUMBER_MAX, Producer(txn, 0)))
        blocks = await _execute(ask, c.ReadBlocks(BOOK, at, at + 1, 1))
        note = msgspec.json.decode(blocks[0].records()[0].value, type=_Note)
    except EndMoved:
        return None
    except (Truncated, IndexError, msgspec.MsgspecError) as error:
        raise _forgotten(txn) from error
    dummy = Batch(note.first_count, b"", 0, 0, b"", 0, None) if note.first_count > 1 else _NOTHING
    try:
        first = await _execute(ask, c.Append(note.log, dummy, NUMBER_MAX, _producer(txn)))
    except (EndMoved, InvalidInput) as error:
        raise _forgotten(txn) from error
    return Committed(log=note.log, offset=first, count=note.count, repeated=True)


def _producer(txn: str) -> Producer:
    return Producer(f"staging:{txn}", 0)


def _forgotten(txn: str) -> Conflict:
    return Conflict(
        f"transaction {txn!r} was committed, but its log has been deleted or has forgotten it; "
        "use another name",
    )


async def _execute(ask: Ask, command: Any) -> Any:
    return await ask.core.execute(_SERVER, command)


async def _read_parts(
    shelf: Shelf, key: tuple[str, str], names: list[PartName], limits: Limits
) -> list[Single | Batch]:
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
    return await asyncio.to_thread(_load, staged, parts, limits)


def _load(staged: Staged, parts: list[Part], limits: Limits) -> list[Single | Batch]:
    found = [_packed.decode(staged.read(part)) for part in parts]
    for packed in found:
        check_packed(packed, limits)  # a disk may have damaged what it kept
    return found


async def abandon(ask: Ask) -> Existed:
    """Forget what was staged."""
    return Existed(deleted=shelf_of(ask.core).drop((ask.principal.name, _txn(ask))))


def _endpoint(**about: Any) -> Endpoint:
    return Endpoint(tag="staging", **about)


ENDPOINTS = (
    _endpoint(
        method="POST",
        path="/staging/{txn}/{part}",
        name="stagePart",
        summary="Stage one part of a bulk write",
        detail="The body is a packed block (MessagePack, with its checksums), or JSON records. "
        "Parts are kept until the commit, for 15 idle minutes, or until the server stops.",
        run=stage,
        query=PartQuery,
        body=PartBody,
        raw=(BATCH, "application/msgpack"),
        answers=(Answer(StagedPart, status=201),),
    ),
    _endpoint(
        method="POST",
        path="/staging/{txn}/commit",
        name="commitStaged",
        summary="Publish staged parts atomically, and once",
        detail="All parts are appended in one commit, in the order in which they are listed. A "
        "repeat, within a week, answers what the first commit answered. A part that is not there "
        "any more is a conflict (409): stage it again.",
        run=commit,
        body=CommitBody,
        answers=(Answer(Committed),),
        errors=(409, 423),
    ),
    _endpoint(
        method="DELETE",
        path="/staging/{txn}",
        name="abandonStaged",
        summary="Forget what was staged",
        run=abandon,
        answers=(Answer(Existed),),
    ),
)
