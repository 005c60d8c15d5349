"""Listings: the logs that a sync compares, in the order of their names, page by page.

If both parties give, their listings are merged. If only one party gives, only its logs matter: the
other party is asked for these logs by name, however many more it has.
"""

from __future__ import annotations

from collections import deque
from typing import NamedTuple

from millstream.errors import InvalidInput
from millstream.replica.commands import NAMES_MAX, SummarizeLogs, SummarizeNamed, Summary
from millstream.replica.copies.pattern import takes
from millstream.replica.sync.outcome import Options
from millstream.replica.sync.steps import Party, Question, Steps, ask

SUMMARIES_PER_PAGE = NAMES_MAX


class Pair(NamedTuple):
    """The summaries of a log in the local store and in the peer."""

    name: str
    local: Summary | None
    peer: Summary | None


class Pages:
    """The summaries of one party."""

    def __init__(self, party: Party, pattern: str) -> None:
        self.party = party
        self.summaries: deque[Summary] = deque()
        self._pattern = pattern
        self._after: str | None = ""

    def question(self) -> Question | None:
        """Return the question for the next page; None while summaries are left, and at the end."""
        if self.summaries or self._after is None:
            return None
        return Question(self.party, SummarizeLogs(self._after, SUMMARIES_PER_PAGE, self._pattern))

    def add(self, page: list[Summary]) -> None:
        """Add a page; an incomplete page is the last."""
        names = [summary.name for summary in page]
        if names != sorted(set(names)) or (names and names[0] <= (self._after or "")):
            raise InvalidInput("a peer lists its logs out of order")
        self._after = names[-1] if len(names) >= SUMMARIES_PER_PAGE else None
        self.summaries.extend(summary for summary in page if takes(self._pattern, summary.name))

    def take(self, name: str) -> Summary | None:
        """Return the summary of a name if it is the next."""
        return (
            self.summaries.popleft() if self.summaries and self.summaries[0].name == name else None
        )


class Listing:
    """The listings of both parties; of a taking party, only the logs that the giver has."""

    def __init__(self, options: Options) -> None:
        self._local, self._peer = Pages("local", options.logs), Pages("peer", options.logs)
        self._giver = {"push": self._local, "pull": self._peer}.get(options.direction)
        """The only giving party of a push or pull."""

    def next(self) -> Steps[Pair | None]:
        """Return the next log; None after the last."""
        pages = (self._local, self._peer)
        listed = pages if self._giver is None else (self._giver,)
        while asks := [
            (page, question) for page in listed if (question := page.question()) is not None
        ]:
            answers = yield [question for _, question in asks]
            for (page, _), answer in zip(asks, answers, strict=True):
                page.add(answer)
            if self._giver is not None:
                yield from self._find_others(self._giver)
        names = [page.summaries[0].name for page in pages if page.summaries]
        if not names:
            return None
        name = min(names)
        return Pair(name, self._local.take(name), self._peer.take(name))

    def _find_others(self, giver: Pages) -> Steps[None]:
        """Ask the taking party for summaries of the giver's names."""
        taker = self._peer if giver is self._local else self._local
        names = [summary.name for summary in giver.summaries]
        if names:
            summaries = yield from ask(taker.party, SummarizeNamed(names))
            by_name = {summary.name: summary for summary in summaries}
            taker.summaries.extend(by_name[name] for name in names if name in by_name)
