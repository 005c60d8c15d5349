"""Listings: the logs that a sync compares, in the order of their names, a page at a time.

If both sides give, their listings are walked side by side. If only one gives, only its logs matter: the
other one is asked for these by name, however many more it has.
"""

from __future__ import annotations

from collections import deque
from typing import NamedTuple

from millstream.errors import InvalidInput
from millstream.replica.commands import NAMES_MAX, SummarizeLogs, SummarizeNamed, Summary
from millstream.replica.copies.pattern import takes
from millstream.replica.sync.outcome import Options
from millstream.replica.sync.steps import Question, Side, Steps, ask

SUMMARIES_PER_PAGE = NAMES_MAX


class Pair(NamedTuple):
    """One log, as it stands on either side."""

    name: str
    own: Summary | None
    peer: Summary | None


class Pages:
    """The summaries of one side."""

    def __init__(self, side: Side, pattern: str) -> None:
        self.side = side
        self.found: deque[Summary] = deque()
        self._pattern = pattern
        self._after: str | None = ""

    def question(self) -> Question | None:
        """What to ask for the next page; None if there is one, or none is left."""
        if self.found or self._after is None:
            return None
        return Question(self.side, SummarizeLogs(self._after, SUMMARIES_PER_PAGE, self._pattern))

    def add(self, page: list[Summary]) -> None:
        """Take a page in; an empty one is the last."""
        names = [summary.name for summary in page]
        if names != sorted(set(names)) or (names and names[0] <= (self._after or "")):
            raise InvalidInput("a peer lists its logs out of order")
        self._after = names[-1] if len(names) >= SUMMARIES_PER_PAGE else None
        self.found.extend(one for one in page if takes(self._pattern, one.name))

    def take(self, name: str) -> Summary | None:
        """The summary of a name, if it is the next."""
        return self.found.popleft() if self.found and self.found[0].name == name else None


class Listing:
    """Both sides, side by side; of a side that only takes, the logs that the other one gives."""

    def __init__(self, options: Options) -> None:
        self._own, self._peer = Pages("own", options.logs), Pages("peer", options.logs)
        self._giver = {"push": self._own, "pull": self._peer}.get(options.direction)
        """None if both give."""

    def next(self) -> Steps[Pair | None]:
        """The next log; None after the last."""
        pages = (self._own, self._peer)
        listed = pages if self._giver is None else (self._giver,)
        while asks := [(page, one) for page in listed if (one := page.question()) is not None]:
            answers = yield [question for _, question in asks]
            for (page, _), answer in zip(asks, answers, strict=True):
                page.add(answer)
            if self._giver is not None:
                yield from self._find_others(self._giver)
        names = [page.found[0].name for page in pages if page.found]
        if not names:
            return None
        name = min(names)
        return Pair(name, self._own.take(name), self._peer.take(name))

    def _find_others(self, giver: Pages) -> Steps[None]:
        """Ask the side that takes how its logs of the same names stand."""
        taker = self._peer if giver is self._own else self._own
        names = [summary.name for summary in giver.found]
        if names:
            there = yield from ask(taker.side, SummarizeNamed(names))
            known = {summary.name: summary for summary in there}
            taker.found.extend(known[name] for name in names if name in known)
