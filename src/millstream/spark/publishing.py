"""Publishing what tasks staged: one transaction, once, however often Spark asks for it.

A transaction is known by an application and a version that grows: a query and its batch, or what the
options `txnAppId` and `txnVersion` say. The last version of each application is noted in the same
commit, in a log of our own, for a year after it was last heard of; that version and all before it
are then answered, and store nothing.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial

from msgspec import Struct

from millstream.embedded import EmbeddedSession
from millstream.format import keys
from millstream.format.packing import Batch, Single
from millstream.log.commands import Append
from millstream.log.operations import find_log, make_log
from millstream.log.producer import Produced, ProducerState
from millstream.queue.rules.inbox import append
from millstream.spark import staging
from millstream.spark.staging import StagedFile
from millstream.store.transaction import Transaction

BOOK = "millstream:spark"
"""The log under which applications are noted; it has no records."""

REMEMBERED_MS = 366 * 24 * 3600 * 1000


class Version(Struct, frozen=True, array_like=True):
    """Which transaction of which application."""

    app: str
    number: int


class Published(Struct, frozen=True):
    """How many records were published; none, if it had been done before."""

    count: int
    repeated: bool


def publish(
    session: EmbeddedSession,
    path: str,
    log: str,
    files: list[StagedFile],
    version: Version | None,
) -> Published:
    """Append all that is listed to a log, in order, in one commit."""
    if version is not None and session.store.run(partial(is_known, version=version)):
        return Published(0, True)  # its files may be gone already
    return session.store.run(partial(_publish, path=path, log=log, files=files, version=version))


def is_known(tx: Transaction, version: Version) -> bool:
    """Whether a transaction, or a later one of the application, was committed."""
    found = find_log(tx, BOOK)
    if found is None:
        return False
    state = tx.entity(keys.producer(found[0], version.app), ProducerState)
    return state.exists() and not state.idle(tx.store_ms) and version.number <= state.last


def note(tx: Transaction, version: Version) -> None:
    """Remember a transaction; it has no offsets in the book, which has no records."""
    log_id, _ = make_log(tx, BOOK)
    tx.change(
        keys.producer(log_id, version.app),
        Produced(0, version.number, 0, 0, tx.store_ms, 1, REMEMBERED_MS),
    )


def _publish(
    tx: Transaction, *, path: str, log: str, files: list[StagedFile], version: Version | None
) -> Published:
    if version is not None and is_known(tx, version):
        return Published(0, True)
    found = (packed for one in files for packed in staging.load(path, one))
    count = append_all(tx, log, found)
    if version is not None:
        note(tx, version)
    return Published(count, False)


def append_all(tx: Transaction, log: str, found: Iterable[Single | Batch]) -> int:
    """Append blocks one after the other; memory holds a bounded part of them."""
    count = 0
    for packed in found:
        append(tx, Append(log, packed))
        count += packed.count if isinstance(packed, Batch) else 1
    return count
