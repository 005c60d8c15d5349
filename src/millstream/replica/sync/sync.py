"""Sync: two stores exchange the records that either lacks, log by log.

The first look is one small summary per log from each store; equal logs cost nothing more. A log
that cannot be brought together is left as it is, and does not keep the other logs waiting.
"""

from __future__ import annotations

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
from millstream.replica.commands import GetStoreId, ListUnsynced, SummarizeLog, Summary
from millstream.replica.sync.converge import Convergence
from millstream.replica.sync.listing import Listing
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
