"""Sync: two stores exchange the records that either lacks, log by log.

The first look is one small summary per log from each store; equal logs cost nothing more. A log
that cannot be brought together is left as it is, and does not keep the other logs waiting.

The logs are listed in the order of their names, page by page. If both parties give, their listings are
merged. If only one party gives, only its logs matter: the other party is asked for these logs by name,
however many more it has.
"""

from __future__ import annotations

from collections import deque
from typing import NamedTuple

from millstream.errors import (
    EndMoved,
    Fenced,
    ForkDetected,
    InvalidInput,
    MillstreamError,
    NotOwner,
    OutOfRange,
    Overloaded,
    StoreError,
    Truncated,
)
from millstream.replica.commands import (
    NAMES_MAX,
    GetStoreId,
    ListUnsynced,
    SummarizeLog,
    SummarizeLogs,
    SummarizeNamed,
    Summary,
)
from millstream.replica.copies.pattern import takes
from millstream.replica.sync.converge import Convergence
from millstream.replica.sync.outcome import Direction, LeftBehind, Options, Outcome, Tell
from millstream.replica.sync.steps import Party, Question, Steps, ask

TRIES = 5
"""Other processes may append, truncate or sync meanwhile: then the log is summarized again."""

STOPS = (StoreError, Overloaded)
"""Errors after which the next log would fail too."""

GIVERS: dict[Direction, tuple[Party, ...]] = {
    "push": ("local",),
    "pull": ("peer",),
    "both": ("local", "peer"),
}
"""The parties that give records, by direction."""

MOVED = (EndMoved, Truncated, OutOfRange, Fenced, NotOwner)
"""Errors that may mean that the log changed meanwhile; a repeated error is real."""

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


def sync_steps(
    options: Options, tell: Tell | None, *, look_behind: bool = True
) -> Steps[tuple[Outcome, list[MillstreamError]]]:
    """Sync the logs that match the options.

    With `look_behind` the outcome lists the entities of the stores that a sync does not carry.
    """
    own_id, peer_id = yield [Question("local", GetStoreId()), Question("peer", GetStoreId())]
    if own_id == peer_id:
        raise InvalidInput(
            f"both are the store {own_id}: a store is not synced with itself, nor with a copy of its "
            "file, for both would write the same log"
        )
    stores: dict[Party, str] = {"local": own_id, "peer": peer_id}
    outcome = Outcome(peer=peer_id)
    errors: list[MillstreamError] = []
    listing = Listing(options)
    while (pair := (yield from listing.next())) is not None:
        outcome.looked_at += 1
        work = Convergence(pair.name, options, stores=stores, tell=tell)
        error = yield from _converge(work, pair.local, pair.peer)
        outcome.pulled += work.outcome.pulled
        outcome.pushed += work.outcome.pushed
        if work.outcome.changed():
            outcome.logs.append(work.outcome)
        if error is not None:
            errors.append(error)
    if look_behind:
        for party in GIVERS[options.direction]:
            outcome.left_behind += yield from _left_behind(party, stores[party])
    return outcome, errors


def _left_behind(party: Party, store: str) -> Steps[list[LeftBehind]]:
    """List the entities of a store that no sync carries; a peer may refuse to tell, or be too old."""
    try:
        unsynced = yield from ask(party, ListUnsynced())
    except STOPS:
        raise
    except MillstreamError:
        return [LeftBehind(store=store, kind="unknown")]
    return [
        LeftBehind(
            store=store,
            kind=entity_kind.kind,
            count=entity_kind.count,
            names=entity_kind.names,
            messages=entity_kind.messages,
        )
        for entity_kind in unsynced
    ]


def _converge(
    work: Convergence, local: Summary | None, peer: Summary | None
) -> Steps[MillstreamError | None]:
    """Converge a log, again if it changed meanwhile; return the error that ended the last try."""
    for tries_left in range(TRIES - 1, -1, -1):
        try:
            yield from work.run(local, peer)
            break
        except STOPS:
            raise
        except MillstreamError as error:
            if not tries_left or not isinstance(error, MOVED) or isinstance(error, ForkDetected):
                work.outcome.error = f"{type(error).__name__}: {error.message}"
                return error
        question = SummarizeLog(work.log)
        local, peer = yield [Question("local", question), Question("peer", question)]
    return None
