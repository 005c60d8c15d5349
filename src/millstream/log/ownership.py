"""Who may append to a log: one store, its owner.

A log is owned by the store in which it was made. A copy of a log says who owns it, and refuses appends.
"""

from __future__ import annotations

from millstream.errors import NotOwner
from millstream.log.head import Head


def not_owner(head: Head) -> NotOwner:
    """The error for an append to a copy."""
    return NotOwner(
        f"log {head.name!r} is a copy: it is written by the store {head.owner} (epoch {head.epoch}); "
        "append there, or take the log over (log.take_over, `millstream log owner --take-over`)",
        log=head.name,
        owner=head.owner,
        epoch=head.epoch,
    )
