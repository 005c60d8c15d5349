"""Alterations of a queue: which settings never change, and which only change while nothing waits."""

from __future__ import annotations

from collections.abc import Sequence

from millstream.errors import Conflict, InvalidInput
from millstream.queue.model.own_logs import own_logs
from millstream.queue.model.spec import QueueSpec

FIXED = ("start", "start_ms")
"""Settings for the creation of a queue: routing begins at the start."""

FIXED_WHILE_USED = ("priority_by", "group_by", "group_in_flight", "group_order")
"""Settings that decide where a waiting message is stored."""


def check_alteration(
    name: str, old: QueueSpec, new: QueueSpec, *, available: int, in_flight: int
) -> None:
    """Refuse changes of fields that cannot change, or not now; the error carries old and new
    values.
    """
    never = [field for field in FIXED if getattr(old, field) != getattr(new, field)]
    later = [field for field in FIXED_WHILE_USED if getattr(old, field) != getattr(new, field)]
    if not (available or in_flight):
        later = []
    elif "group_in_flight" in later and not (old.group_order or new.group_order):
        later.remove("group_in_flight")  # no order depends on it
    if not (never or later):
        return
    why = []
    if never:
        why.append(
            f"{_difference(old, new, never)}: that is never altered, because routing has begun"
        )
    if later:
        flying = f"{in_flight} {'is' if in_flight == 1 else 'are'} in flight"
        why.append(
            f"{_difference(old, new, later)}: that is altered only while nothing waits or is in flight; "
            f"{available} wait, {flying}"
        )
    raise Conflict(
        f"queue {name!r} cannot become what is asked for. {'. '.join(why)}",
        name=name,
        fields={field: [getattr(old, field), getattr(new, field)] for field in (*never, *later)},
    )


def _difference(old: QueueSpec, new: QueueSpec, fields: Sequence[str]) -> str:
    return ", ".join(
        f"{field} is {getattr(old, field)!r}, asked for {getattr(new, field)!r}" for field in fields
    )


def check_changes(name: str, spec: QueueSpec) -> None:
    """Refuse a log of changes that feeds its own queue: each claim would make a message without end."""
    log = spec.changes
    if log and spec.takes_from(log):
        raise InvalidInput(
            f"the log of changes {log!r} of queue {name!r} is one of its own sources, so that each change "
            "would come back as a message; name a log that none of its sources matches"
        )


def check_dead_letter(name: str, spec: QueueSpec) -> None:
    """Refuse a dead-letter log that feeds its own queue: letters would fail and return without end."""
    log = spec.dead_letter
    if not log or not (log in own_logs(name) or spec.takes_from(log)):
        return
    inbox = " (its inbox)" if log in own_logs(name) else ""
    raise InvalidInput(
        f"the dead-letter log {log!r} of queue {name!r} is one of its own sources{inbox}, so that "
        "letters would come back as messages; name a log that none of its sources matches"
    )
