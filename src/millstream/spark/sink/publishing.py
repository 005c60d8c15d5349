"""Publishing what tasks staged: one transaction, once, however often Spark asks for it.

A transaction is known by an application and a version that grows: a query and its batch, or what the
options `txnAppId` and `txnVersion` say. The last version of each application is noted in the same
commit, in a log of our own, for a year after it was last heard of; that version and all before it
are then answered, and store nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from msgspec import Struct

from millstream.embedded.session import EmbeddedSession
from millstream.format import keys
from millstream.log.commands import Append
from millstream.log.model.producer import Produced, ProducerState
from millstream.log.rules.operations import find_log, make_log
from millstream.queue.rules.putting import append
from millstream.spark.sink import staging
from millstream.spark.sink.staging import LogBlock, StagedFile
from millstream.store.commit.transaction import WriteTransaction
from millstream.store.store import Store

BOOK = "millstream:spark"
"""The log under which applications are noted; it has no records."""

REMEMBERED_MS = 366 * 24 * 3600 * 1000


class Version(Struct, frozen=True, array_like=True):
    """Which transaction of which application."""

    app: str
    number: int


def publish(
    session: EmbeddedSession,
    path: str,
    log: str,
    files: list[StagedFile],
    version: Version | None,
) -> int:
    """Append all that files list to a log, or to those that blocks name: see `publish_blocks`."""

    def found() -> Iterable[LogBlock]:
        return (one for file in files for one in staging.load(path, file))

    return publish_blocks(session.store, log, found, version)


def publish_blocks(
    store: Store, log: str, found: Callable[[], Iterable[LogBlock]], version: Version | None
) -> int:
    """Append blocks to a log, or to those that they name, in order, in one commit.

    They are taken one by one, so that they need not be in memory together, maybe more than once.
    Answers how many records that were; none, if it had been done before.
    """

    def run(tx: WriteTransaction) -> int:
        if version is not None and _is_known(tx, version):
            return 0  # what was staged may be gone already
        count = 0
        for own, packed in found():
            append(tx, Append(own or log, packed))
            count += packed.count
        if version is not None:
            _note(tx, version)
        return count

    return store.run(run)


def _is_known(tx: WriteTransaction, version: Version) -> bool:
    """Whether a transaction, or a later one of the application, was committed."""
    found = find_log(tx, BOOK)
    if found is None:
        return False
    state = tx.entity(keys.producer(found[0], version.app), ProducerState)
    return state.exists() and not state.idle(tx.store_ms) and version.number <= state.last


def _note(tx: WriteTransaction, version: Version) -> None:
    """Remember a transaction; it has no offsets in the book, which has no records."""
    log_id, _ = make_log(tx, BOOK)
    tx.change(
        keys.producer(log_id, version.app),
        Produced(0, version.number, 0, 0, tx.store_ms, 1, REMEMBERED_MS),
    )
