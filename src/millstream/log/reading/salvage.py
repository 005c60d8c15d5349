"""Salvage: records beside damage; of one whose value is damaged, what else is known of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import NamedTuple

from millstream.errors import CorruptionError
from millstream.header import NO_HEADERS
from millstream.log.model.block import RecordBlock
from millstream.log.reading.reader import read_sound
from millstream.record import Record
from millstream.store.state.view import Rows

Damage = CorruptionError | None
"""Why a value cannot be given; None if it can."""


class Salvaged(NamedTuple):
    """Neighbouring records, with or without their values."""

    records: list[Record]
    damage: Damage


def salvage(view: Rows, log_id: int, name: str, *, start: int, stop: int) -> Iterator[Salvaged]:
    """Every record in [start, stop), also below the log's start while its bytes are there.

    A record that is damaged has an empty value. If its metadata is damaged as well, it has no key,
    no headers and timestamp 0.
    """
    while start < stop:
        try:
            sound = read_sound(view, log_id, name, start=start, stop=stop)
        except CorruptionError as error:
            end = behind(error, start, stop)
            read = partial(read_sound, view, log_id, name, stop=end, values=False)
            yield Salvaged(bare_records(read, name, start=start, stop=end), error)
            start = end
            continue
        for block in sound:
            yield Salvaged(block.records(), None)
        start = sound[-1].offsets.stop


def bare_records(
    read: Callable[..., list[RecordBlock]], log: str, *, start: int, stop: int
) -> list[Record]:
    """The records in [start, stop) without values; of damaged ones nothing is left but their place.

    `read` gives the blocks from an offset `start` on, read without values.
    """
    return [
        one for some in bare_stretches(read, log, start=start, stop=stop) for one in some.records
    ]


class BareRecords(NamedTuple):
    """Neighbouring records without values."""

    records: list[Record]
    is_lost: bool
    """Whether nothing is left of them but their place: no key, no headers, timestamp 0."""


def bare_stretches(
    read: Callable[..., list[RecordBlock]], log: str, *, start: int, stop: int
) -> Iterator[BareRecords]:
    """As `bare_records`, apart by whether their metadata can be read."""
    while start < stop:
        try:
            found = [one for block in read(start=start) for one in block.bare_records()]
            is_lost = False
        except CorruptionError as error:
            lost = range(start, behind(error, start, stop))
            found = [Record(log, offset, b"", 0, None, NO_HEADERS, 0) for offset in lost]
            is_lost = True
        yield BareRecords(found, is_lost)
        start = found[-1].offset + 1


def behind(error: CorruptionError, start: int, stop: int) -> int:
    """Where the damage ends that was found at `start`, within [start, stop)."""
    return min(stop, max(start + 1, int(error.data.get("stop", 0))))
