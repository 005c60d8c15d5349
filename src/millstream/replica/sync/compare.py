"""Comparing two copies of a log: whether they are equal, and if not, the first difference.

The running hash at an offset is equal in two copies if everything before the offset is equal. So
one question tells whether the copies differ below both ends, and a binary search finds the first
difference in as many questions as its offset has binary digits.
"""

from __future__ import annotations

from typing import NamedTuple

from millstream.replica.commands import DigestRange, GetChain, Summary
from millstream.replica.sync.steps import Party, Question, Steps

Copies = dict[Party, Summary]


class Comparison(NamedTuple):
    """The result of comparing two copies, where both have records."""

    difference: int | None = None
    """The first offset at which the records differ; None if the copies agree."""
    is_chained: bool = True
    """Whether the hashes can be compared: False if the chains begin at different offsets."""


def compare(log: str, copies: Copies) -> Steps[Comparison]:
    """Look for a difference below both ends."""
    local, peer = copies["local"], copies["peer"]
    low, high = max(local.base.offset, peer.base.offset), min(local.end, peer.end)
    if low > high or (yield from _same_at(log, copies, high)):
        return Comparison()
    if low == high:
        return Comparison(None, is_chained=False)
    if (yield from _same_at(log, copies, low)):
        return Comparison((yield from _search(log, copies, low, high, chained=True)))
    # One copy lost its beginning before it had a chain, or was truncated past its end. Its running
    # hash starts from zero in the middle of the log, so only digests of ranges can be compared.
    # Every question then reads the range again.
    if (yield from _same_between(log, low, high)):
        return Comparison(None, is_chained=False)
    difference = yield from _search(log, copies, low, high, chained=False)
    return Comparison(difference, is_chained=False)


def _search(log: str, copies: Copies, low: int, high: int, *, chained: bool) -> Steps[int]:
    """Return the offset in [low, high) up to which the copies are equal, and at which they differ."""
    first = low
    while high - low > 1:
        middle = (low + high) // 2
        if chained:
            is_equal = yield from _same_at(log, copies, middle)
        else:
            is_equal = yield from _same_between(log, first, middle)
        low, high = (middle, high) if is_equal else (low, middle)
    return low


def _same_at(log: str, copies: Copies, offset: int) -> Steps[bool]:
    """Whether the running hashes at an offset agree. Summaries hold the hashes at ends and bases."""
    digests: dict[Party, bytes] = {}
    for party, copy in copies.items():
        if offset == copy.end:
            digests[party] = copy.digest
        elif offset == copy.base.offset:
            digests[party] = copy.base.digest
    missing: list[Party] = [party for party in copies if party not in digests]
    if missing:
        answers = yield [Question(party, GetChain(log, offset)) for party in missing]
        digests.update(zip(missing, answers, strict=True))
    return digests["local"] == digests["peer"]


def _same_between(log: str, start: int, stop: int) -> Steps[bool]:
    question = DigestRange(log, start, stop)
    local, peer = yield [Question("local", question), Question("peer", question)]
    return bool(local == peer)
