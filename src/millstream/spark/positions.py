"""Positions of a stream: one offset per log, the first that was not read, as Spark keeps them.

Spark stores a position with every batch, and shows three of them in each progress report. Up to a
hundred logs a position is plain: `{"orders": 100}`. One of more logs is packed: how many logs and
records, and the rest compressed, so that it stays small.
"""

from __future__ import annotations

import base64
import lzma
from typing import Any

import msgspec

from millstream.errors import CorruptionError

PLAIN_MAX = 100
"""Logs of a position that is written out."""

LAG = "offsetsBehindLatest"
"""Under this name a report says how far a stream is behind its logs; there it is no number."""

Position = dict[str, int]

_FILTERS: list[dict[str, Any]] = [{"id": lzma.FILTER_LZMA2, "preset": 6}]
_BETWEEN = "\n"  # no name holds a control character


def packed(position: Position) -> dict[str, Any]:
    """A position as Spark stores it; the same one always gives the same."""
    if len(position) <= PLAIN_MAX:
        return dict(position)
    names = sorted(position)
    offsets = [position[name] for name in names]
    data = msgspec.msgpack.encode((_BETWEEN.join(names), offsets))
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
    """A position that Spark has stored."""
    text = stored.get("packed")
    if not isinstance(text, str):  # a log may have that name: it then has a number
        return {name: at for name, at in stored.items() if isinstance(at, int)}
    try:
        data = lzma.decompress(base64.b85decode(text), format=lzma.FORMAT_RAW, filters=_FILTERS)
        names, offsets = msgspec.msgpack.decode(data, type=tuple[str, list[int]])
        return dict(zip(names.split(_BETWEEN), offsets, strict=True))
    except (ValueError, lzma.LZMAError, msgspec.MsgspecError) as error:
        raise CorruptionError(
            f"the checkpoint holds a position that cannot be read: {error}; restore the "
            "checkpoint, or begin a new one with startingOffsets",
            what="position",
            where="checkpoint",
        ) from error
