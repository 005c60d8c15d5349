"""The weight of operations: which an event loop may carry out itself, and which take too long."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from millstream.command import Operation
from millstream.format.packing import Batch, Single
from millstream.log.commands import Acknowledge, Append
from millstream.queue.commands import (
    ClaimRouted,
    FinishClaims,
    PutMessages,
    RenewClaims,
    ReturnClaims,
    Run,
)
from millstream.rooms.commands import Broadcast

OPERATIONS_MAX = 128
WEIGHT_MAX = 128 * 1024
"""What an event loop commits itself, at most: it takes a few milliseconds of processor time."""

HEAVY = WEIGHT_MAX + 1
MESSAGE_WEIGHT = 128
"""Of each message that is claimed or finished; a record weighs its bytes and this."""

_OF_CLAIMS = (FinishClaims, RenewClaims, ReturnClaims)

CLAIM_WEIGHT = 16 * MESSAGE_WEIGHT
"""Of a claim of a few messages that the same commit has brought."""


def are_light(weights: Sequence[int]) -> bool:
    """Whether an event loop may commit operations of these weights together."""
    return len(weights) <= OPERATIONS_MAX and sum(weights) <= WEIGHT_MAX


def weight_of(command: Operation[Any]) -> int:
    """About how much work an operation is; one that may touch more than it names is heavy."""
    if isinstance(command, Append):
        return _of_records(command.records)
    if isinstance(command, ClaimRouted):
        routed = sum([one.stop - one.start for one in command.routed])
        return (command.count + routed + _count(command.acked)) * MESSAGE_WEIGHT
    if isinstance(command, _OF_CLAIMS):
        return _count(command.claims) * MESSAGE_WEIGHT
    if isinstance(command, Acknowledge):
        return MESSAGE_WEIGHT * len(command.ranges)
    if isinstance(command, PutMessages):
        return _of_records(command.records)
    if isinstance(command, Broadcast):
        messages = command.send.messages
        return sum([len(one.data) for one in messages]) + len(messages) * MESSAGE_WEIGHT
    return HEAVY


def _of_records(records: Single | Batch) -> int:
    if isinstance(records, Single):
        return len(records.value or b"") + MESSAGE_WEIGHT
    return len(records.payload) + len(records.metadata) + records.count * MESSAGE_WEIGHT


def _count(runs: Sequence[Run]) -> int:
    return sum([count for _, count, _ in runs])
