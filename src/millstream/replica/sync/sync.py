"""Sync: two stores exchange what one has and the other lacks, log by log.

The first look is one small summary per log from each side; of logs that are the same nothing more is
said. A log that cannot be brought together is left as it is, and does not keep the others waiting.
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
from millstream.replica.sync.steps import Question, Side, Steps, ask

TRIES = 5
"""Others may append, truncate or sync while we do: then the log is looked at again."""

STOPS = (StoreError, Overloaded)
"""After these there is no point in going on with the next log."""

GIVERS: dict[Direction, tuple[Side, ...]] = {
    "push": ("own",),
    "pull": ("peer",),
    "both": ("own", "peer"),
}
"""The sides that give, by direction."""

MOVED = (EndMoved, Truncated, OutOfRange, Fenced, NotOwner)
"""Errors that may mean that the log changed meanwhile; if they come again, they are real."""


def sync_steps(
    options: Options, tell: Tell | None, *, look_behind: bool = True
) -> Steps[tuple[Outcome, list[MillstreamError]]]:
    """The steps of a sync of all logs that the options name.

    With `look_behind` the outcome says what the stores hold that a sync does not carry.
    """
    own_id, peer_id = yield [Question("own", GetStoreId()), Question("peer", GetStoreId())]
    if own_id == peer_id:
        raise InvalidInput(
            f"both are the store {own_id}: a store is not synced with itself, nor with a copy of its "
            "file, for both would write the same log"
        )
    stores: dict[Side, str] = {"own": own_id, "peer": peer_id}
    outcome = Outcome(peer=peer_id)
    errors: list[MillstreamError] = []
    listing = Listing(options)
    while (pair := (yield from listing.next())) is not None:
        outcome.looked_at += 1
        work = Convergence(pair.name, options, stores=stores, tell=tell)
        error = yield from _converge(work, pair.own, pair.peer)
        outcome.pulled += work.outcome.pulled
        outcome.pushed += work.outcome.pushed
        if work.outcome.changed():
            outcome.logs.append(work.outcome)
        if error is not None:
            errors.append(error)
    if look_behind:
        for side in GIVERS[options.direction]:
            outcome.left_behind += yield from _left_behind(side, stores[side])
    return outcome, errors


def _left_behind(side: Side, store: str) -> Steps[list[LeftBehind]]:
    """What a store holds that no sync carries; a peer may not tell, or be too old to know."""
    try:
        found = yield from ask(side, ListUnsynced())
    except STOPS:
        raise
    except MillstreamError:
        return [LeftBehind(store=store, kind="unknown")]
    return [
        LeftBehind(
            store=store, kind=one.kind, count=one.count, names=one.names, messages=one.messages
        )
        for one in found
    ]


def _converge(
    work: Convergence, own: Summary | None, peer: Summary | None
) -> Steps[MillstreamError | None]:
    """Converge one log, again if it was changed meanwhile; the error that it was left with."""
    for left in range(TRIES - 1, -1, -1):
        try:
            yield from work.run(own, peer)
            break
        except STOPS:
            raise
        except MillstreamError as error:
            if not left or not isinstance(error, MOVED) or isinstance(error, ForkDetected):
                work.outcome.error = f"{type(error).__name__}: {error.message}"
                return error
        question = SummarizeLog(work.log)
        own, peer = yield [Question("own", question), Question("peer", question)]
    return None
