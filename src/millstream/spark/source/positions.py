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
"""The entry of a progress report with the lag of the stream; a log of this name has a number."""

IDS = "logIds"
"""The entry of a position that holds the ids of the logs; a log of this name has a number there."""

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
    """Return a position as Spark stores it; equal positions give equal values.

    A log named `logIds` takes the entry of the ids, so such a position has no ids.
    """
    ids = ids or {}
    names = sorted(position)
    if len(position) <= PLAIN_MAX:
        plain_ids = {name: ids[name] for name in names if name in ids}
        return dict(position) if IDS in position or not plain_ids else {**position, IDS: plain_ids}
    offsets = [position[name] for name in names]
    # Ids of logs created in a row differ by a constant step, and constant steps compress well.
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
    if not isinstance(text, str):  # a log named "packed" has a number here
        offsets = {name: at for name, at in stored.items() if isinstance(at, int)}
        plain_ids = stored.get(IDS)
        return offsets, dict(plain_ids) if isinstance(plain_ids, dict) else {}
    try:
        data = lzma.decompress(base64.b85decode(text), format=lzma.FORMAT_RAW, filters=_FILTERS)
        decoded = msgspec.msgpack.decode(data, type=_Packed)
        names = decoded.names.split(_BETWEEN)
        ids = zip(names, accumulate(decoded.steps), strict=False)  # older positions have no steps
        return dict(zip(names, decoded.offsets, strict=True)), {
            name: log_id for name, log_id in ids if log_id
        }
    except (ValueError, lzma.LZMAError, msgspec.MsgspecError) as error:
        raise CorruptionError(
            f"the checkpoint holds a position that cannot be read: {error}; restore the "
            "checkpoint, or begin a new one with startingOffsets",
            what="position",
            where="checkpoint",
        ) from error
