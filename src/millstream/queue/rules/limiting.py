"""Limits of single groups, set at run time."""

from __future__ import annotations

from millstream.errors import InvalidInput, TooLarge
from millstream.format import keys
from millstream.log.model.names import check_integer, check_text
from millstream.queue import commands as c
from millstream.queue.model.group_limits import (
    GROUP_LIMITS_MAX,
    GroupLimit,
    GroupLimited,
    GroupLimits,
)
from millstream.queue.model.spec import IN_FLIGHT_MAX, RATE_MAX, RATE_MIN
from millstream.queue.rules.ledger import Ledger
from millstream.queue.rules.lookup import need_queue
from millstream.store.commit.transaction import WriteTransaction
from millstream.store.state.view import View


def limit_group(tx: WriteTransaction, command: c.LimitGroup) -> bool:
    """Set the limits of one group, or remove them; return whether anything changed."""
    ledger = Ledger(tx, command.queue)
    name, limit = command.group, command.limit
    if not ledger.queue.spec.group_by:
        raise InvalidInput(
            f"queue {command.queue!r} has no groups, so none of them can have a limit: set "
            "group_by first"
        )
    if not check_text("a group", name):
        raise InvalidInput("a limit is for a group with a name, not for ''")
    _check(limit)
    key = keys.group_limits(ledger.queue.queue_id)
    limits = tx.entity(key, GroupLimits).limits
    new = None if limit == GroupLimit() else limit
    if limits.get(name) == new:
        return False
    if name not in limits and len(limits) >= GROUP_LIMITS_MAX:
        raise TooLarge(
            f"{len(limits):,} groups of queue {command.queue!r} have limits of their own already; "
            "remove some, or change group_in_flight and group_rate of the queue",
            size=len(limits) + 1,
            limit=GROUP_LIMITS_MAX,
        )
    tx.change(key, GroupLimited(name, new))
    ledger.index.relimit(name)
    ledger.close()
    return True


def _check(limit: GroupLimit) -> None:
    if limit.in_flight is not None and check_integer("in_flight", limit.in_flight) > IN_FLIGHT_MAX:
        raise InvalidInput(f"in_flight is up to {IN_FLIGHT_MAX:,}, not {limit.in_flight:,}")
    if limit.rate and not RATE_MIN <= limit.rate <= RATE_MAX:
        raise InvalidInput(
            f"rate is 0, or from {RATE_MIN} to {RATE_MAX:,.0f} claims per second, not {limit.rate}"
        )


def list_group_limits(view: View, query: c.ListGroupLimits) -> dict[str, GroupLimit]:
    """Return the groups with limits of their own, by name."""
    queue = need_queue(view, query.queue)
    return dict(sorted(view.entity(keys.group_limits(queue.queue_id), GroupLimits).limits.items()))
