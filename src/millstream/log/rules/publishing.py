"""Publishing: several parts appended to logs in one commit, once for each name.

The same commit appends an entry to a separate log, the book. The names are the producers of the book,
so that one lookup tells whether a name was published. Clients of a server cannot send these commands:
the server decides which client publishes under which name.
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
    """The position of published parts: `count` records from `offset` of a log on; the entry of the book.

    For parts of several logs the log is empty, and the offset is that of the first part.
    """

    log: str
    offset: int
    count: int
    digest: str
    """A digest of the content, computed by the publisher."""


class PublishParts(Operation[Published | None], frozen=True):
    """Append parts to logs and an entry to the book; return None if the name was published before."""

    traits = Traits(needs="internal")

    book: str
    remember_ms: int
    """The retention of a new book."""
    name: str
    log: str
    parts: Any
    """An iterable of packed records, read one at a time to save memory, perhaps more than once."""
    digest: str
    logs: tuple[str, ...] = ()
    """The log of each part, if the parts go to several logs."""


class FindPublished(Read[Published | None], frozen=True):
    """Return the entry of a name; None for an unknown or forgotten name."""

    traits = Traits(needs="internal")

    book: str
    name: str


def publish_parts(tx: WriteTransaction, command: PublishParts) -> Published | None:
    """Append the packed_parts, and the entry of the book."""
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
    packed_parts: Iterable[Single | Batch] = command.parts
    for records in packed_parts:
        at = append(tx, Append(next(logs, command.log), records))
        first = first if count else at
        count += records.count
    published = Published(command.log, first, count, command.digest)
    entry = Single(msgspec.json.encode(published), None, b"", None)
    append(tx, Append(command.book, entry, producer=Producer(command.name, 0)))
    return published


def find_published(store: Store, command: FindPublished) -> Published | None:
    """Look up a name, and read its entry."""

    def noted(view: View) -> tuple[int, int] | None:
        book = view.entity(keys.log_name(command.book), Name)
        producer = view.entity(keys.producer(book.log_id, command.name), ProducerState)
        _, now_ms = view.state.time.now()
        return producer.repeated(Producer(command.name, 0), now_ms=now_ms)

    position = store.view(noted)
    if position is None:
        return None
    at, _ = position
    try:
        blocks = read_blocks(store, command.book, start=at, stop=at + 1, bytes_max=1)
        return blocks[0].records()[0].json(Published)
    except (Truncated, IndexError) as error:
        raise Conflict(
            f"{command.name!r} was published, and what it was has been forgotten; use another name"
        ) from error
