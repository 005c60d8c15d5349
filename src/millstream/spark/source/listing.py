"""Listings of logs and queues, page by page, that go on behind a damaged one where that is told."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TypeVar

from millstream.errors import CorruptionError
from millstream.queue.model.message import QueueInfo
from millstream.record import LogInfo

Info = TypeVar("Info", LogInfo, QueueInfo)

PAGE = 1_000
"""How many are asked for at once."""


def listed(
    ask: Callable[[str, int], list[Info]],
    *,
    named_by: str,
    tell: Callable[[str, CorruptionError], None] | None,
) -> Iterator[Info]:
    """All that there are, in the order of their names; `ask` answers so many behind a name.

    A damaged one ends it with `CorruptionError`. If `tell` is given and the error's field `named_by`
    names the damaged one, `tell` hears of it, and the listing goes on behind it.
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
                limit = 1  # up to the damaged one, one by one
                continue
            tell(name, error)
            after, limit = name, PAGE
            continue
        if not page:
            return
        yield from page
        after = page[-1].name
