"""Listings of logs and queues, page by page, that can continue behind a damaged entry."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TypeVar

from millstream.errors import CorruptionError
from millstream.queue.model.message import QueueInfo
from millstream.record import LogInfo

Info = TypeVar("Info", LogInfo, QueueInfo)

PAGE = 1_000
"""Entries in a page."""


def listed(
    ask: Callable[[str, int], list[Info]],
    *,
    named_by: str,
    tell: Callable[[str, CorruptionError], None] | None,
) -> Iterator[Info]:
    """Yield all entries in the order of their names; `ask` returns a page of entries behind a name.

    A damaged entry ends the listing with `CorruptionError`. With `tell` the listing continues
    behind the damaged entry, if the error's field `named_by` names it, and `tell` receives the name
    and the error.
    """
    after, limit = "", PAGE
    while True:
        try:
            page = ask(after, limit)
        except CorruptionError as error:
            name = error.data.get(named_by)
            if tell is None or name is None:
                raise
            if limit > 1:
                limit = 1  # pages of one entry reach every entry before the damaged entry
                continue
            tell(name, error)
            after, limit = name, PAGE
            continue
        if not page:
            return
        yield from page
        after = page[-1].name
