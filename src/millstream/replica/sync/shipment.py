"""Shipping: records on their way from one copy of a log to the other, in parcels. No I/O.

The taker appends each parcel in one commit; the giver reads the next parcel meanwhile.
"""

from __future__ import annotations

from collections.abc import Callable

from millstream.errors import CorruptionError
from millstream.replica.commands import AdoptParcel, Parcel, SendBlocks, Summary
from millstream.replica.sync.steps import OPPOSITE, Party, Question, Steps, ask

PARCEL_BYTES = 4 * 1024 * 1024
"""Payload bytes in a parcel: one commit of the taker."""


def ship(
    log: str,
    source: Summary,
    *,
    taker: Party,
    start: int,
    compress: bool,
    took: Callable[[Parcel, int], None],
) -> Steps[int]:
    """Send the source's records from an offset on to the taker, and return the taker's new end.

    `took` is called with each appended parcel and its number of records. Raises `CorruptionError`
    if the giver's records do not match its summary.
    """
    giver, position, parcel = OPPOSITE[taker], start, None
    if position < source.end:
        parcel = yield from ask(giver, _question(log, source, position, compress=compress))
    while parcel is not None:
        _check(log, source, parcel, position)
        adopt = AdoptParcel(log, parcel, position, source.epoch)
        questions = [Question(taker, adopt)]
        if parcel.end < source.end:
            next_read = _question(log, source, parcel.end, compress=compress)
            questions.append(Question(giver, next_read))
        answers = yield questions
        took(parcel, parcel.end - position)
        position = parcel.end
        parcel = answers[1] if len(answers) > 1 else None
    return position


def _question(log: str, source: Summary, start: int, *, compress: bool) -> SendBlocks:
    return SendBlocks(log, start, source.end, PARCEL_BYTES, compress)


def _check(log: str, source: Summary, parcel: Parcel, position: int) -> None:
    """Refuse a peer that promised records and sends none: the sync would ask without end."""
    if not position < parcel.end <= source.end:
        raise CorruptionError(
            f"the peer has records of log {log!r} up to {source.end}, it said, and sends "
            f"{position} to {parcel.end}",
            what="parcel",
            where=position,
            log=log,
        )
    if parcel.end == source.end and parcel.digest != source.digest:
        raise CorruptionError(
            f"the peer sends another hash of log {log!r} at {parcel.end} than it said first",
            what="digest",
            where=parcel.end,
            log=log,
        )
