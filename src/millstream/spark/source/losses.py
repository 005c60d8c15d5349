"""Losses: records that cannot be read, and that `failOnDataLoss=false` leaves out.

Each is counted and named, as `millstream doctor` names it; other records are never affected.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable

from msgspec import Struct

_log = logging.getLogger("millstream.spark")


class Loss(Struct, frozen=True, array_like=True):
    """Offsets [start, stop) of a log that cannot be read; an empty range if the extent is unknown.

    Without a log the loss is a queue that the pipeline left out; the reason names the queue.
    """

    log: str
    start: int
    stop: int
    reason: str

    def __len__(self) -> int:
        return self.stop - self.start


TellLoss = Callable[[Loss], None]
"""Hears of a loss that a read leaves out."""


def warn(loss: Loss) -> None:
    """Name a loss in the log of the process that reads: Spark gives a source no other place."""
    extent = f"{len(loss)} records" if len(loss) else f"log {loss.log!r}"
    _log.warning("left out %s: %s", extent, loss.reason)


def count(losses: Iterable[Loss]) -> int:
    """How many records are lost."""
    return sum(map(len, losses))
