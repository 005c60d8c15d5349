"""Similar names: the question "did you mean" in the answer for an unknown log, queue or room.

The names come from the listing of the caller, which has only names that the caller may read. So a
mistyped name reveals no other name.
"""

from __future__ import annotations

from typing import Any

from millstream.command import Command
from millstream.errors import MillstreamError, NotFound
from millstream.log.commands import ListLogs
from millstream.log.model.names import SEARCHED_MAX, similar_name
from millstream.queue.commands import ListQueues
from millstream.rooms.commands import ListRooms
from millstream.server.rest.ask import Ask

_LISTINGS: dict[str, Command[Any]] = {
    "log": ListLogs("", SEARCHED_MAX),
    "queue": ListQueues("", SEARCHED_MAX),
    "room": ListRooms("", SEARCHED_MAX),
}
"""The listing of each noun that a path may name."""


async def with_similar_name(ask: Ask, error: NotFound, segments: dict[str, Any]) -> NotFound:
    """Return the error with a similar name, if the error is about a name in the path."""
    name = error.data.get("name")
    noun = next((noun for noun in _LISTINGS if segments.get(noun) == name), None)
    if noun is None or not isinstance(name, str):
        return error
    try:
        infos = await ask.execute(_LISTINGS[noun])
    except MillstreamError:  # the caller still gets the error of the request
        return error
    similar = similar_name(name, (info.name for info in infos))
    if similar is None:
        return error
    return NotFound(f"{error.message}; did you mean {similar!r}?", **error.data, similar=similar)
