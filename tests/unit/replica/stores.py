"""What tests of forks and copies ask of a store, and how they fill it."""

from __future__ import annotations

from typing import TypeVar

from millstream import Millstream
from millstream.command import Command
from millstream.format import keys
from millstream.log.model.block import RecordBlock
from millstream.log.model.head import Name
from millstream.log.rules import retention
from millstream.replica import commands as r
from millstream.replica.chain import Mark
from millstream.replica.copies.marks import read_marks
from millstream.store.store import Store
from millstream.testing import Probe
from millstream.threads.log import Log

T = TypeVar("T")


def store_of(ms: Millstream) -> Store:
    """The store behind a handle."""
    return Probe(ms).store


def values(log: Log, start: int | None = None) -> list[bytes]:
    """The values of a log."""
    return [record.value for record in log.read(start)]


def drop_bytes(ms: Millstream) -> None:
    """Let every log forget what it may."""
    store = store_of(ms)
    ms.fold()
    for _ in range(3):
        heads = store.look(
            lambda state, snapshot: state.find(
                *keys.range_of(keys.prefix(keys.HEAD)), snapshot, limit=99
            )
        )
        for key in heads:
            while retention.tend(store, keys.number(key)):
                pass


def filled(ms: Millstream, name: str = "a") -> Log:
    """A log with a block, and singles that the fold has joined."""
    log = ms.log(name)
    log.append_many([b"0", b"1", b"2"])
    for value in (b"3", b"4", b"5"):
        log.append(value)
    return log


def payload_rows(ms: Millstream) -> int:
    """How many payloads and payload blocks are stored at home."""
    with store_of(ms).engine.read() as snapshot:
        rows = 0
        for kind in (keys.PAYLOAD, keys.PAYLOAD_BLOCK):
            rows += len(snapshot.scan(*keys.range_of(keys.prefix(kind)), limit=9_999))
        return rows


def ask(ms: Millstream, command: Command[T]) -> T:
    """The answer of a store to a command."""
    return ms.session.execute(command)


def summary(ms: Millstream, log: str = "a") -> r.Summary:
    """How a log stands."""
    found = ms.session.execute(r.SummarizeLog(log))
    assert found is not None
    return found


def blocks(
    ms: Millstream, start: int = 0, stop: int = 2**40, size: int = 2**20
) -> list[RecordBlock]:
    """Some blocks of log "a", as another copy would get them."""
    return ms.session.execute(r.SendBlocks("a", start, stop, size)).blocks


def adopt(
    ms: Millstream, found: list[RecordBlock], *, digest: bytes, end: int = 0, epoch: int = 0
) -> int:
    """Take blocks over."""
    stop = found[-1].offsets.stop if found else end
    return ms.session.execute(r.AdoptParcel("a", r.Parcel(stop, digest, found), end, epoch))


def marks_of(ms: Millstream) -> list[Mark]:
    """The marks of log "a", ascending."""
    log_id = store_of(ms).view(lambda view: view.entity(keys.log_name("a"), Name).log_id)
    return store_of(ms).view(lambda view: list(read_marks(view, log_id)))


def start(source: Millstream, target: Millstream) -> r.Summary:
    """Make an empty copy of log "a"."""
    found = summary(source)
    assert target.session.execute(r.StartReplica("a", found.base, found.owner, found.epoch))
    return found


def copy(source: Millstream, target: Millstream) -> None:
    """All that a sync does for one log that grows."""
    found = summary(source)
    target.session.execute(r.StartReplica("a", found.base, found.owner, found.epoch))
    while (end := target.log("a").end_offset()) < found.end:
        some = blocks(source, end, size=100)
        digest = source.session.execute(r.GetChain("a", some[-1].offsets.stop))
        adopt(target, some, digest=digest, end=end, epoch=found.epoch)


def fill(ms: Millstream, count: int = 3_000) -> None:
    """A log of blocks and singles."""
    log = ms.log("a")
    log.append(b"single", key="k", headers={"n": 1}, timestamp=9)
    log.append(b"another")
    log.append_many(
        [b"%d" % n for n in range(count)], keys=[b"k" if n % 3 else None for n in range(count)]
    )
    log.append_many([b"last", b"block"], headers=[{"a": 1}, None], timestamps=[4, 5])


def rows(ms: Millstream, kind: int) -> int:
    """How many rows of a type there are, wherever they lie."""
    store = store_of(ms)
    start, stop = keys.range_of(keys.prefix(kind))
    return store.view(lambda view: len(view.scan(start, stop, limit=999)))
