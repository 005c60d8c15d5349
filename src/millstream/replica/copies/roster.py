"""Rosters: how logs of given names stand, for a side that gives or takes only these."""

from __future__ import annotations

from millstream.command import Read, Traits
from millstream.errors import TooLarge
from millstream.log.names import check_name
from millstream.replica.commands import SummarizeLog, Summary
from millstream.replica.copies.copying import summarize_log
from millstream.store.store import Store

NAMES_MAX = 1_000


class SummarizeNamed(Read[list[Summary]], frozen=True):
    """How the logs of these names stand; those that do not exist are left out."""

    traits = Traits(needs="seen")

    names: list[str]


def summarize_named(store: Store, query: SummarizeNamed) -> list[Summary]:
    """One summary after the other."""
    if len(query.names) > NAMES_MAX:
        raise TooLarge(
            f"{len(query.names):,} names; the limit is {NAMES_MAX:,}",
            size=len(query.names),
            limit=NAMES_MAX,
        )
    found = (summarize_log(store, SummarizeLog(check_name(name))) for name in query.names)
    return [one for one in found if one is not None]
