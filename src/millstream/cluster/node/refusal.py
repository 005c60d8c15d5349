"""What a caller is told by a node that cannot write: which other node to ask, or what to do."""

from __future__ import annotations

from millstream.cluster.node.leadership import Leadership
from millstream.errors import NoQuorum, NotLeader

CLOSED = (
    "its shared log was closed, so nothing is written; `millstream cluster move` begins another one "
    "behind this store"
)


def not_leader(name: str, view: Leadership, *, stopped: str) -> NotLeader:
    """A node does not lead; `stopped` says why it cannot at all."""
    if stopped:
        text = f"node {name} has halted: {stopped}"
    elif view.leader is None or view.leader == name:
        text = f"node {name} does not lead, and knows no node that does; try again soon"
    else:
        text = f"node {name} does not lead: {view.leader} does, at {view.address}"
    address = None if view.leader == name else view.address
    return NotLeader(text, leader=address, epoch=view.epoch)


def no_quorum(place: str, error: Exception) -> NoQuorum:
    """A shared log cannot be written to, and nothing was sent."""
    return NoQuorum(
        f"{place} cannot be reached, or too few of its servers answer ({error}); "
        "nothing was stored, and reads go on. Try again soon"
    )
