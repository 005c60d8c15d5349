"""Salvage: records beside damage; of one whose value is damaged, what else is known of it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from millstream.errors import CorruptionError
from millstream.log.reader import read_sound
from millstream.record import NO_HEADERS, Record
from millstream.store.rows import Rows

Damage = CorruptionError | None
"""Why a value cannot be given; None if it can."""


class Found(NamedTuple):
    """Neighbouring records, with or without their values."""

    records: list[Record]
    damage: Damage


def salvage(view: Rows, log_id: int, name: str, *, start: int, stop: int) -> Iterator[Found]:
    """Every record in [start, stop), also below the log's start while its bytes are there.

    A record that is damaged has an empty value. If its metadata is damaged as well, it has no key,
    no headers and timestamp 0.
    """
    while start < stop:
        try:
            sound = read_sound(view, log_id, name, start=start, stop=stop)
        except CorruptionError as error:
            end = behind(error, start, stop)
            yield Found(_bare(view, log_id, name, start, end), error)
            start = end
            continue
        for block in sound:
            yield Found(block.records(), None)
        start = sound[-1].offsets.stop


def behind(error: CorruptionError, start: int, stop: int) -> int:
    """Where the damage ends that was found at `start`, within [start, stop)."""
    return min(stop, max(start + 1, int(error.data.get("stop", 0))))


def _bare(view: Rows, log_id: int, name: str, start: int, stop: int) -> list[Record]:
    found: list[Record] = []
    while start < stop:
        try:
            blocks = read_sound(view, log_id, name, start=start, stop=stop, values=False)
        except CorruptionError as error:
            end = behind(error, start, stop)
            found += [nothing_of(name, offset) for offset in range(start, end)]
            start = end
            continue
        for block in blocks:
            found += block.bare_records()
        start = blocks[-1].offsets.stop
    return found


def nothing_of(log: str, offset: int) -> Record:
    """A record of which nothing is left but its place."""
    return Record(log, offset, b"", 0, None, NO_HEADERS, 0)
