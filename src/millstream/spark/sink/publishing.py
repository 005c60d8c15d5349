"""Publication of staged blocks: one transaction, once, however often Spark asks.

A version names the transaction: an application and a growing number. For a stream they are the query
and its batch, for a batch write the options `txnAppId` and `txnVersion`. The commit notes the last
version of the application in an internal log for a year. A repeat of this version, or of an earlier
one, stores nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from msgspec import Struct

from millstream.format import keys
from millstream.format.packing import Batch, Single
from millstream.log.commands import Append
from millstream.log.model.producer import Produced, ProducerState
from millstream.log.rules.operations import find_log, make_log
from millstream.queue.rules.puts import append
from millstream.store.commit.transaction import WriteTransaction
from millstream.store.store import Store

BOOK = "millstream:spark"
"""The log that holds the versions of applications as producers, and no records."""

REMEMBERED_MS = 366 * 24 * 3600 * 1000


LogBlock = tuple[str, Single | Batch]
"""A packed block and its log; the log is empty if all blocks belong to the same log."""


class Version(Struct, frozen=True, array_like=True):
    """A transaction: the application and its growing number."""

    app: str
    number: int


def publish_blocks(
    store: Store, log: str, blocks: Callable[[], Iterable[LogBlock]], version: Version | None
) -> int:
    """Append blocks in one commit; a block without a log goes to `log`.

    `blocks` yields a block at a time to bound memory, and the commit may call it more than once.
    Returns the number of records, or 0 if the version was published before.
    """

    def run(tx: WriteTransaction) -> int:
        if version is not None and _is_known(tx, version):
            return 0  # without a read of the blocks, which may be gone already
        count = 0
        for block_log, packed in blocks():
            append(tx, Append(block_log or log, packed))
            count += packed.count
        if version is not None:
            _note(tx, version)
        return count

    return store.run(run)


def _is_known(tx: WriteTransaction, version: Version) -> bool:
    """Return whether this version, or a later version of the application, was committed."""
    book = find_log(tx, BOOK)
    if book is None:
        return False
    state = tx.entity(keys.producer(book[0], version.app), ProducerState)
    return state.exists() and not state.idle(tx.store_ms) and version.number <= state.last


def _note(tx: WriteTransaction, version: Version) -> None:
    """Note a version; its offsets are 0, because the log has no records."""
    log_id, _ = make_log(tx, BOOK)
    tx.change(
        keys.producer(log_id, version.app),
        Produced(0, version.number, 0, 0, tx.store_ms, 1, REMEMBERED_MS),
    )
