"""The part of a claim that fits into an answer: the first messages, and nothing is lost or changed."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest

from millstream.header import Headers
from millstream.log.model.block import pack_headers
from millstream.queue.model.message import Label, Lot, Message, messages_of
from millstream.queue.runs import lots_claimed, lots_within

SIZES = ([3, 0, 4], [10], [2, 2, 2, 2])
TOTAL = sum(map(sum, SIZES))


def lots(*, dense: bool) -> list[Lot]:
    """Lots with the sizes above; sparse lots have columns for offsets, times, keys and headers."""
    made, claim_id = [], 100
    for sizes in SIZES:
        count = len(sizes)
        headers = [] if dense else [Headers({"number": number}) for number in range(count)]
        label = Label(
            "q",
            "log",
            claim_id,
            7 if dense else [number * 5 for number in range(count)],
            2,
            123 if dense else [number + 1_000 for number in range(count)],
            None if dense else [b"%d" % number for number in range(count)],
            pack_headers(headers),
            until_ms=99,
        )
        made.append(Lot(label, [b"x" * size or None for size in sizes]))
        claim_id += count + 1
    return made


def facts(message: Message) -> list[Any]:
    """Return everything that a consumer sees of a message."""
    return [
        message.claim_id,
        message.attempt,
        message.offset,
        message.timestamp,
        message.key,
        dict(message.headers),
        message.value,
        message.label.until_ms,
    ]


@pytest.mark.parametrize("dense", [True, False])
@pytest.mark.parametrize("bytes_max", range(TOTAL + 2))
def test_the_parts_are_the_whole(bytes_max: int, *, dense: bool) -> None:
    whole = lots(dense=dense)
    first, others = lots_within(whole, bytes_max)
    expected = [facts(message) for message in messages_of(whole)]
    parts = [facts(message) for message in [*messages_of(first), *messages_of(others)]]
    assert parts == expected
    sizes = [len(message.value or b"") for message in messages_of(first)]
    assert len(sizes) == 1 or sum(sizes) <= bytes_max
    if others:
        assert sum(sizes) + len(messages_of(others)[0].value or b"") > bytes_max
    runs = lots_claimed([*first, *others])
    assert all(start + count <= after for (start, count, _), (after, _, _) in pairwise(runs))
    assert all(lot.values for lot in [*first, *others])


def test_no_lots_stay_no_lots() -> None:
    assert lots_within([], 0) == ([], [])
