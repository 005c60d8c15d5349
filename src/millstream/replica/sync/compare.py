"""Comparing two copies of a log: whether they are the same, and if not, from where on.

The running hash at an offset is the same in two copies if everything before it is. So one question
tells whether they differ below both ends, and a search by halves finds the first offset at which
they do, in as many questions as that offset has digits.
"""

from __future__ import annotations

from typing import NamedTuple

from millstream.replica.commands import DigestRange, GetChain, Summary
from millstream.replica.sync.steps import Question, Side, Steps

Copies = dict[Side, Summary]


class Comparison(NamedTuple):
    """How two copies compare, where both have records."""

    difference: int | None = None
    """The first offset that both hold, and hold differently; None if there is none."""
    is_chained: bool = True
    """Whether their hashes can be compared: not if their chains begin apart."""


def compare(log: str, copies: Copies) -> Steps[Comparison]:
    """Look for a difference below both ends."""
    own, peer = copies["own"], copies["peer"]
    low, high = max(own.base.offset, peer.base.offset), min(own.end, peer.end)
    if low > high or (yield from _same_at(log, copies, high)):
        return Comparison()
    if low == high:
        return Comparison(None, is_chained=False)
    if (yield from _same_at(log, copies, low)):
        return Comparison((yield from _search(log, copies, low, high, chained=True)))
    # One of them lost its beginning before it had a chain, or was truncated past its end.
    if (yield from _same_between(log, low, high)):
        return Comparison(None, is_chained=False)
    found = yield from _search(log, copies, low, high, chained=False)
    return Comparison(found, is_chained=False)


def _search(log: str, copies: Copies, low: int, high: int, *, chained: bool) -> Steps[int]:
    """Of [low, high): everything before the answer is the same, the record there is not."""
    first = low
    while high - low > 1:
        middle = (low + high) // 2
        if chained:
            same = yield from _same_at(log, copies, middle)
        else:
            same = yield from _same_between(log, first, middle)
        low, high = (middle, high) if same else (low, middle)
    return low


def _same_at(log: str, copies: Copies, offset: int) -> Steps[bool]:
    """Whether the running hashes at an offset agree; ends and bases are known without asking."""
    known: dict[Side, bytes] = {}
    for side, copy in copies.items():
        if offset == copy.end:
            known[side] = copy.digest
        elif offset == copy.base.offset:
            known[side] = copy.base.digest
    missing: list[Side] = [side for side in copies if side not in known]
    if missing:
        answers = yield [Question(side, GetChain(log, offset)) for side in missing]
        known.update(zip(missing, answers, strict=True))
    return known["own"] == known["peer"]


def _same_between(log: str, start: int, stop: int) -> Steps[bool]:
    question = DigestRange(log, start, stop)
    own, peer = yield [Question("own", question), Question("peer", question)]
    return bool(own == peer)
