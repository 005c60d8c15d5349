"""Chores: logs of jobs that are deleted when their time is over, as delayed messages of a queue."""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec import Struct

from millstream.format.packing import pack_single
from millstream.limits import Limits
from millstream.log.commands import DeleteLog
from millstream.queue.commands import PutMessages, SpecifyQueue
from millstream.queue.model.spec import ATTEMPTS_MAX, QueueSpec

CHORES = "jobs.chores"
"""The queue of chores. A worker of jobs serves this queue if the queue exists at the start of the worker."""

CHORES_SPEC = QueueSpec(max_attempts=ATTEMPTS_MAX, done_retention=60.0)


class DeleteOutput(Struct, frozen=True, tag="delete_log"):
    """Delete a log."""

    log: str


def make_chores() -> SpecifyQueue:
    """Return the command that makes the queue of chores."""
    return SpecifyQueue(CHORES, CHORES_SPEC)


def delete_later(log: str, after_s: float, limits: Limits) -> PutMessages:
    """Return the command by which a log is deleted after a time."""
    value = msgspec.json.encode(DeleteOutput(log))
    record = pack_single(value, key=None, headers=None, timestamp=None, limits=limits)
    return PutMessages(CHORES, record, delay_ms=round(after_s * 1000))


def command_of(value: bytes | None) -> Any:
    """Return the command that does a chore."""
    return DeleteLog(msgspec.json.decode(value or b"", type=DeleteOutput).log)
