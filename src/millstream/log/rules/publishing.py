"""Publishing: several parts appended to logs in one commit, once for each name.

What was published is noted in a log of its own, the book, by the same commit. The book's producers
are the names, so it is known by one look whether a name was published. Nothing of this can be asked
by clients of a server: who may publish what under which name, the server decides.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec
from msgspec import Struct

from millstream.command import Operation, Read, Traits
from millstream.errors import Conflict, Truncated
from millstream.format import keys
from millstream.format.packing import Batch, Single
from millstream.log.commands import Append, SetRetention
from millstream.log.model.head import Name
from millstream.log.model.producer import ProducerState
from millstream.log.reading.reader import read_blocks
from millstream.log.rules.operations import append, find_log, set_retention
from millstream.record import Producer, Retention
from millstream.store.commit.transaction import WriteTransaction
from millstream.store.state.view import View
from millstream.store.store import Store


class Published(Struct, frozen=True):
    """Where parts went: `count` records from `offset` of a log on. It is also the book's entry.

    Of parts that went to several logs the log is empty, and the offset that of the first part.
    """

    log: str
    offset: int
    count: int
    digest: str
    """A digest of the content, computed by its publisher."""


class PublishParts(Operation[Published | None], frozen=True):
    """Append parts to logs and note it in the book; None if the name was published before."""

    traits = Traits(needs="internal")

    book: str
    remember_ms: int
    """How long the book keeps its entries, if it is made now."""
    name: str
    log: str
    parts: Any
    """An iterable of packed records: taken one by one, so that they need not be in memory together;
    maybe more than once."""
    digest: str
    logs: tuple[str, ...] = ()
    """The log of each part, if they go to several."""


class FindPublished(Read[Published | None], frozen=True):
    """What was published under a name; None if nothing was, or it is long ago."""

    traits = Traits(needs="internal")

    book: str
    name: str


def publish_parts(tx: WriteTransaction, command: PublishParts) -> Published | None:
    """Append all of it, and the entry of the book."""
    book = find_log(tx, command.book)
    if book is None:
        keep = Retention(age_ms=command.remember_ms)
        set_retention(tx, SetRetention(command.book, keep))
    else:
        noted = tx.entity(keys.producer(book[0], command.name), ProducerState)
        if noted.repeated(Producer(command.name, 0), now_ms=tx.store_ms) is not None:
            return None
    first, count = 0, 0
    logs = iter(command.logs)
    parts: Iterable[Single | Batch] = command.parts
    for part in parts:
        at = append(tx, Append(next(logs, command.log), part))
        first = first if count else at
        count += part.count
    published = Published(command.log, first, count, command.digest)
    entry = Single(msgspec.json.encode(published), None, b"", None)
    append(tx, Append(command.book, entry, producer=Producer(command.name, 0)))
    return published


def find_published(store: Store, command: FindPublished) -> Published | None:
    """Look the name up, and read its entry."""

    def noted(view: View) -> tuple[int, int] | None:
        book = view.entity(keys.log_name(command.book), Name)
        producer = view.entity(keys.producer(book.log_id, command.name), ProducerState)
        _, now_ms = view.state.time.now()
        return producer.repeated(Producer(command.name, 0), now_ms=now_ms)

    found = store.view(noted)
    if found is None:
        return None
    at, _ = found
    try:
        blocks = read_blocks(store, command.book, start=at, stop=at + 1, bytes_max=1)
        return blocks[0].records()[0].json(Published)
    except (Truncated, IndexError) as error:
        raise Conflict(
            f"{command.name!r} was published, and what it was has been forgotten; use another name"
        ) from error
