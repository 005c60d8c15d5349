"""Chores: work that the jobs of a store leave for later, as delayed messages of a queue.

A chore deletes a log when its result has expired, or ends a member of a group whose worker died after a
cancel. `chore_steps` does the work of a chore.
"""

from __future__ import annotations

import msgspec
from msgspec import Struct

from millstream.format.packing import pack_single
from millstream.limits import Limits
from millstream.queue.commands import PutMessages, SpecifyQueue
from millstream.queue.model.spec import ATTEMPTS_MAX, QueueSpec

CHORES = "jobs.chores"
"""The queue of chores. Every worker of jobs serves this queue."""

CHORES_SPEC = QueueSpec(max_attempts=ATTEMPTS_MAX, done_retention=60.0)

AGAIN_S_MIN = 1.0
SETTLE_S = 60.0
"""How often a chore looks whether a job has ended that was asked to end."""


class ExpireGroup(Struct, frozen=True, tag="expire_group"):
    """Delete the log of a chain or a group once its result has expired."""

    log: str
    keep_s: float
    """How long the result is kept after the end of the last job."""


class ExpireOutput(Struct, frozen=True, tag="expire_output"):
    """Delete the output of a job once its result has expired."""

    job: str
    keep_s: float
    """How long the result and the output are kept after the end of the job."""


class SettleMember(Struct, frozen=True, tag="settle_member"):
    """End a member of a group whose cancel was requested while it ran, if its worker has died."""

    job: str


Chore = ExpireGroup | ExpireOutput | SettleMember


def make_chores() -> SpecifyQueue:
    """Return the command that makes the queue of chores."""
    return SpecifyQueue(CHORES, CHORES_SPEC)


def do_later(chore: Chore, after_s: float, limits: Limits) -> PutMessages:
    """Return the command by which a chore is done after a time."""
    value = msgspec.json.encode(chore)
    record = pack_single(value, key=None, headers=None, timestamp=None, limits=limits)
    return PutMessages(CHORES, record, delay_ms=round(after_s * 1000))


def decode_chore(value: bytes | None) -> Chore:
    """Return a stored chore."""
    chore: Chore = msgspec.json.decode(value or b"", type=Chore)
    return chore
