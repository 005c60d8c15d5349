"""Positions of a stream: one offset per log, the first that was not read, as Spark keeps them.

Spark stores a position with every batch, and shows three of them in each progress report. Up to a
hundred logs a position is plain: `{"orders": 100, "logIds": {"orders": 7}}`. One of more logs is
packed: how many logs and records, and the rest compressed, so that it stays small.

The id of a log says which log of that name the offset is of. Positions of older versions have none.
"""

from __future__ import annotations

import base64
import lzma
from itertools import accumulate, pairwise
from typing import Any

import msgspec
from msgspec import Struct

from millstream.errors import CorruptionError

PLAIN_MAX = 100
"""Logs of a position that is written out."""

LAG = "offsetsBehindLatest"
"""Under this name a report says how far a stream is behind its logs; there it is no number."""

IDS = "logIds"
"""Under this name a position holds the ids of its logs; a log of that name has a number there."""

Position = dict[str, int]
LogIds = dict[str, int]

_FILTERS: list[dict[str, Any]] = [{"id": lzma.FILTER_LZMA2, "preset": 6}]
_BETWEEN = "\n"  # no name holds a control character


class _Packed(Struct, frozen=True, array_like=True):
    """The compressed part of a position."""

    names: str
    offsets: list[int]
    steps: list[int] = []
    """From the id of each log to that of the next."""


def packed(position: Position, ids: LogIds | None = None) -> dict[str, Any]:
    """A position as Spark stores it; the same one always gives the same.

    Ids are left out where a log is named as their place in the position is.
    """
    ids = ids or {}
    names = sorted(position)
    if len(position) <= PLAIN_MAX:
        known = {name: ids[name] for name in names if name in ids}
        return dict(position) if IDS in position or not known else {**position, IDS: known}
    offsets = [position[name] for name in names]
    # Logs that were made one after the other differ by the same step: that is compressed well.
    numbers = [ids.get(name, 0) for name in names]
    steps = [after - before for before, after in pairwise([0, *numbers])]
    data = msgspec.msgpack.encode(_Packed(_BETWEEN.join(names), offsets, steps))
    small = lzma.compress(data, format=lzma.FORMAT_RAW, filters=_FILTERS)
    return {
        "logs": len(names),
        "offsets": sum(offsets),
        "packed": base64.b85encode(small).decode(),
    }


def reported(latest: Position, planned: Position) -> dict[str, Any]:
    """How far logs go, for a progress report, and how far a stream is behind them."""
    behind = [max(0, end - planned.get(name, end)) for name, end in latest.items()] or [0]
    average = round(sum(behind) / len(behind), 3)
    return {**packed(latest), LAG: {"min": min(behind), "avg": average, "max": max(behind)}}


def unpacked(stored: dict[str, Any]) -> Position:
    """The offsets of a position that Spark has stored."""
    return _unpacked(stored)[0]


def ids_in(stored: dict[str, Any]) -> LogIds:
    """The ids of the logs in a position that Spark has stored, as far as it has any."""
    return _unpacked(stored)[1]


def _unpacked(stored: dict[str, Any]) -> tuple[Position, LogIds]:
    text = stored.get("packed")
    if not isinstance(text, str):  # a log may have that name: it then has a number
        offsets = {name: at for name, at in stored.items() if isinstance(at, int)}
        given = stored.get(IDS)
        return offsets, dict(given) if isinstance(given, dict) else {}
    try:
        data = lzma.decompress(base64.b85decode(text), format=lzma.FORMAT_RAW, filters=_FILTERS)
        found = msgspec.msgpack.decode(data, type=_Packed)
        names = found.names.split(_BETWEEN)
        ids = zip(names, accumulate(found.steps), strict=False)  # older positions have no steps
        return dict(zip(names, found.offsets, strict=True)), {name: one for name, one in ids if one}
    except (ValueError, lzma.LZMAError, msgspec.MsgspecError) as error:
        raise CorruptionError(
            f"the checkpoint holds a position that cannot be read: {error}; restore the "
            "checkpoint, or begin a new one with startingOffsets",
            what="position",
            where="checkpoint",
        ) from error
