"""Salvage: reads the records beside damage, and the metadata of damaged records."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import NamedTuple

from millstream.errors import CorruptionError, Truncated
from millstream.header import NO_HEADERS, HeaderMapping
from millstream.log.model.block import RecordBlock
from millstream.log.reading.reader import read_blocks, read_sound
from millstream.record import Record
from millstream.store.state.view import Rows
from millstream.store.store import Store

METADATA_BYTES = 1024 * 1024
"""Bytes of metadata per read while headers are searched."""

Damage = CorruptionError | None
"""The damage of values; None for sound values."""


class Salvaged(NamedTuple):
    """Contiguous records, with or without their values."""

    records: list[Record]
    damage: Damage


def salvage(view: Rows, log_id: int, name: str, *, start: int, stop: int) -> Iterator[Salvaged]:
    """Yield every record in [start, stop), also below the log's start while its bytes exist.

    A damaged record has an empty value. With damaged metadata it also has no key, no headers and the
    timestamp 0.
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
    """Return the records in [start, stop) without values; damaged records have only an offset.

    `read` returns the blocks from an offset `start` on, without values.
    """
    stretches = bare_stretches(read, log, start=start, stop=stop)
    return [record for stretch in stretches for record in stretch.records]


class BareRecords(NamedTuple):
    """Contiguous records without values."""

    records: list[Record]
    is_lost: bool
    """Whether the metadata is lost: no key, no headers, timestamp 0."""


def bare_stretches(
    read: Callable[..., list[RecordBlock]], log: str, *, start: int, stop: int
) -> Iterator[BareRecords]:
    """Yield the records of `bare_records`, separated by whether their metadata can be read."""
    while start < stop:
        try:
            records = [record for block in read(start=start) for record in block.bare_records()]
            is_lost = False
        except CorruptionError as error:
            lost = range(start, behind(error, start, stop))
            records = [Record(log, offset, b"", 0, None, NO_HEADERS, 0) for offset in lost]
            is_lost = True
        yield BareRecords(records, is_lost)
        start = records[-1].offset + 1


def readable_headers(
    store: Store, log: str, start: int, stop: int
) -> Iterator[tuple[int, HeaderMapping]]:
    """Yield the offset and the headers of each record in [start, stop) that can be read.

    Records that retention takes meanwhile, and damaged records, are passed over.
    """
    while start < stop:
        try:
            blocks = read_blocks(
                store, log, start=start, stop=stop, bytes_max=METADATA_BYTES, values=False
            )
        except Truncated as error:
            start = max(start + 1, int(error.data["start"]))
            continue
        except CorruptionError as error:
            start = behind(error, start, stop)
            continue
        if not blocks:
            return
        for block in blocks:
            yield from zip(block.offsets, block.headers(), strict=True)
        start = blocks[-1].offsets.stop


def behind(error: CorruptionError, start: int, stop: int) -> int:
    """Return the end of the damage at `start`, within [start, stop)."""
    return min(stop, max(start + 1, int(error.data.get("stop", 0))))
