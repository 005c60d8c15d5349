"""Records that belong to a queue and that the queue has not routed yet, read without routing them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import compress
from typing import Any

from millstream.command import Session
from millstream.log.commands import GetBounds, ReadBlocks
from millstream.queue.commands import DescribeQueue
from millstream.queue.service.bulk_reads import ListUnrouted
from millstream.record import Record


def unrouted_records(session: Session, queue: str) -> Iterator[Record]:
    """Yield the records that a queue has not routed yet and that match its filter."""
    info = session.execute(DescribeQueue(queue))
    if info is None:
        return
    for unrouted in session.execute(ListUnrouted(queue)):
        filter_text = "" if unrouted.own else info.spec.filter
        yield from _matching(session, filter_text, unrouted.log, unrouted.start, unrouted.stop)


def _matching(
    session: Session, filter_text: str, log: str, start: int, stop: int
) -> Iterator[Record]:
    condition = None
    if filter_text:
        from millstream.filters import parse  # only queues with a filter pay for its parser

        condition = parse(filter_text)
    start = max(start, session.execute(GetBounds(log))[0])
    while start < stop:
        blocks = session.execute(ReadBlocks(log, start, stop, session.limits.read_bytes_max))
        if not blocks:
            return
        for block in blocks:
            matched: Iterable[Any] = [True] * block.count
            if condition is not None:
                matched = condition.match_many(
                    block.visible_headers(),
                    keys=block.keys(),
                    timestamps=block.timestamps(),
                    log=log,
                    valid=block.valid(),
                )
            yield from compress(block.records(), matched)
            start = block.offsets.stop
