"""Destinations: the commands by which a producer stores its portions in a log, partitions or a queue."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from millstream.command import Operation, Transact
from millstream.log.commands import Append
from millstream.log.rules.append import BLOCK_RECORDS_MIN
from millstream.partitioning import partition_name
from millstream.queue.commands import PutMessages
from millstream.queue.model.own_logs import inbox_of
from millstream.queue.model.routing_marks import Wishes
from millstream.streaming.gathered_block import BlockPortion, GatheredMessage, records_of

NO_WISHES = Wishes()

INBOX_LANE = 0
LATER_LANE = 1
"""The lanes of a queue: messages for now, and messages for later, which go into another log."""


SINGLES_MAX = BLOCK_RECORDS_MIN - 1
"""A block of so many records is sent as single records. The fold joins single records with their
neighbours, and never joins blocks, so slow producers leave no small blocks behind."""


class Destination(Protocol):
    """Where the messages of a producer go."""

    name: str
    """The name of the log or queue."""
    singles_max: int
    """Blocks of up to so many messages are sent as single records."""

    def command(self, portion: BlockPortion) -> Operation[int]:
        """Return the command that stores a portion, and answers the offset of its first message."""


class LogDestination:
    """A log, which is the only lane."""

    singles_max = SINGLES_MAX

    def __init__(self, log: str) -> None:
        self.name = log

    def command(self, portion: BlockPortion) -> Operation[int]:
        """Return the append of a portion."""
        return Append(self.name, records_of(portion.messages), None, portion.producer)


class PartitionsDestination:
    """A partitioned log: each partition is a lane."""

    singles_max = SINGLES_MAX

    def __init__(self, log: str) -> None:
        self.name = log

    def command(self, portion: BlockPortion) -> Operation[int]:
        """Return the append of a portion to its partition."""
        log = partition_name(self.name, portion.block.lane)
        return Append(log, records_of(portion.messages), None, portion.producer)


class QueueDestination:
    """A queue: its inbox and its log for later are two lanes.

    Consumed records of an inbox are deleted, so small blocks do no harm there.
    """

    singles_max = 0

    def __init__(self, queue: str) -> None:
        self.name = queue

    def command(self, portion: BlockPortion) -> Operation[int]:
        """Return the put of a portion, whose messages have an equal delay or an equal time."""
        messages, later = portion.messages, portion.later
        wishes = [
            (message.wishes or NO_WISHES) if isinstance(message, GatheredMessage) else NO_WISHES
            for message in messages
        ]
        records = records_of(messages)
        if wishes.count(NO_WISHES) == len(wishes):
            wishes = []
        if not wishes and later is None:
            return Append(inbox_of(self.name), records, None, portion.producer)
        delay_ms, due_ms = later or (None, None)
        return PutMessages(self.name, records, wishes, delay_ms, due_ms, portion.producer)


def command_of(destination: Destination, portions: Sequence[BlockPortion]) -> Operation[Any]:
    """Return the command that commits the portions together."""
    if len(portions) == 1:
        return destination.command(portions[0])
    return Transact([destination.command(portion) for portion in portions])


def firsts_of(portions: Sequence[BlockPortion], answer: Any) -> list[int]:
    """Return the offset of the first message of each portion, from the answer to `command_of`."""
    return [answer] if len(portions) == 1 else answer
