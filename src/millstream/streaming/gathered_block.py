"""Gathered messages: handles of messages, blocks of messages, and outcomes.

A message is plain bytes, or a `GatheredMessage` if it has more than a value. The call that hands in
a message packs and checks it, so the caller may change its own objects afterwards. The sender joins
the messages of a block into a batch, once.

A block is sent as a whole. If the store refuses it because of a message, it is sent in portions.
Portions are settled in order, so `settled` counts the messages from the front with a known outcome.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from inspect import iscoroutinefunction
from typing import Any

from msgspec import Struct

from millstream.errors import InvalidInput, MillstreamError
from millstream.format import block as blocks
from millstream.format.header_cells import NO_HEADERS
from millstream.format.packing import Batch, Single, batch_of, pack_single
from millstream.header import HeadersLike
from millstream.limits import Limits, MiB, too_large
from millstream.queue.model.routing_marks import Wishes
from millstream.record import Producer
from millstream.store.commit.transactor import fresh

Callback = Callable[[Any], object]
"""Called with the handle of a message once its outcome is known."""

DelayOrTime = tuple[int | None, int | None]
"""The delay, or the time, of a message for later, in milliseconds."""

BLOCK_MESSAGES_MAX = 10_000
BLOCK_BYTES_MAX = MiB
"""A block ends at this size: readers read a block as a unit."""

MESSAGE_BYTES = 64
"""The bytes that a message counts beside its value, so that empty messages have a bound."""


class GatheredMessage(Struct, frozen=True):
    """A packed message with more than a value."""

    record: Single
    callback: Callback | None = None
    wishes: Wishes | None = None
    later: DelayOrTime | None = None

    @property
    def shape(self) -> tuple[bool, DelayOrTime | None]:
        """Return what all messages of a block must have in common."""
        return self.record.timestamp_ms is not None, self.later

    @property
    def size(self) -> int:
        """Return the bytes that the message counts."""
        record = self.record
        own_bytes = len(record.value or b"") + len(record.key or b"") + len(record.headers)
        return own_bytes + MESSAGE_BYTES


Gathered = bytes | GatheredMessage

NOTHING = Single(b"", None, NO_HEADERS, None)
"""The record of a message that was not taken."""

PLAIN = (False, None)
"""The shape of plain bytes."""


def is_callback(value: Any) -> bool:
    """Return whether a value can be called: nobody would await the answer of a coroutine function."""
    return callable(value) and not iscoroutinefunction(value)


def message_of(
    value: Any,
    key: bytes | str | None,
    headers: HeadersLike | None,
    timestamp: int | None,
    callback: Callback | None,
    limits: Limits,
    wishes: Wishes | None = None,
    later: DelayOrTime | None = None,
) -> Gathered:
    """Pack and check a message; raise `InvalidInput` for a message that no store takes."""
    is_plain = key is None and headers is None and timestamp is None and callback is None
    if is_plain and wishes is None and later is None and type(value) is bytes:
        if len(value) > limits.value_bytes_max:
            raise too_large("a value", len(value), limits.value_bytes_max)
        return value
    if callback is not None and not is_callback(callback):
        raise InvalidInput(f"a callback is a plain function of a handle, not {callback!r:.100}")
    record = pack_single(value, key=key, headers=headers, timestamp=timestamp, limits=limits)
    return GatheredMessage(record, callback, wishes, later)


class GatheredBlock:
    """Messages of a log that are stored together, with the outcome of each message."""

    __slots__ = ("bytes", "handles", "lane", "messages", "outcomes", "settled", "watchers")

    def __init__(
        self, lane: int, handles: list[MessageHandle], messages: list[Gathered], size: int
    ) -> None:
        self.lane = lane
        """The number of the log that the block goes to; sequences are counted by log."""
        self.handles, self.messages = handles, messages
        """Both lists are emptied after the last outcome, so that a handle keeps no value alive."""
        self.bytes = size
        self.settled = 0
        """The number of messages from the front whose outcome is known."""
        self.outcomes: list[tuple[int, int | MillstreamError]] = []
        """The index of the first message of each settled portion, with the offset of this message
        or the error of the portion."""
        self.watchers: list[tuple[int, Callable[[], None]]] = []
        """Called once the message with this index is settled."""
        for index, handle in enumerate(handles):
            handle.index = index
            handle.block = self
            handle.message = None

    def outcome(self, index: int) -> int | MillstreamError:
        """Return the offset of a settled message, or its error."""
        outcomes = self.outcomes
        at = 0 if len(outcomes) == 1 else bisect_right(outcomes, index, key=_start) - 1
        start, outcome = outcomes[at]
        return outcome if isinstance(outcome, MillstreamError) else outcome + index - start


def _start(outcome: tuple[int, Any]) -> int:
    return outcome[0]


class MessageHandle(Struct, eq=False, gc=False, weakref=False):
    """A message that was handed to a producer: waiting, on its way, or settled."""

    gathering: Any
    message: Gathered | None
    """The message, until the sender takes it into a block."""
    block: GatheredBlock | None = None
    index: int = 0
    is_reported: bool = False
    """Whether a caller got the error of the message."""

    def __repr__(self) -> str:
        outcome = self.block.outcome(self.index) if self.done and self.block else "waiting"
        name = type(outcome).__name__ if isinstance(outcome, MillstreamError) else outcome
        return f"{type(self).__name__}({name})"

    @property
    def done(self) -> bool:
        """Whether the outcome is known."""
        block = self.block
        return block is not None and block.settled > self.index

    def result(self) -> int:
        """Return the offset of a settled message, or raise its error."""
        assert self.block is not None
        outcome = self.block.outcome(self.index)
        if isinstance(outcome, MillstreamError):
            self.is_reported = True
            raise fresh(outcome)
        return outcome


def blocks_of(
    lane: int, handles: Sequence[MessageHandle], *, messages_max: int
) -> Iterator[GatheredBlock]:
    """Yield blocks of gathered messages, in order. A block keeps the bounds, and has a single shape."""
    messages: list[Any] = [handle.message for handle in handles]
    if _are_plain(messages):
        size = sum(map(len, messages)) + MESSAGE_BYTES * len(messages)
        if size <= BLOCK_BYTES_MAX and len(messages) <= messages_max:
            yield GatheredBlock(lane, [*handles], messages, size)
            return
    start = size = 0
    shape = None
    for index, message in enumerate(messages):
        is_bytes = type(message) is bytes
        message_shape = PLAIN if is_bytes else message.shape
        message_size = len(message) + MESSAGE_BYTES if is_bytes else message.size
        if index > start and (
            message_shape != shape
            or size + message_size > BLOCK_BYTES_MAX
            or index - start >= messages_max
        ):
            yield GatheredBlock(lane, [*handles[start:index]], messages[start:index], size)
            start, size = index, 0
        shape = message_shape
        size += message_size
    yield GatheredBlock(lane, [*handles[start:]], messages[start:], size)


class BlockPortion(Struct, eq=False):
    """Messages [start, stop) of a block, which are sent as one batch under one sequence."""

    block: GatheredBlock
    start: int
    stop: int
    producer: Producer | None = None

    @property
    def messages(self) -> Sequence[Gathered]:
        """Return the messages of the portion."""
        messages = self.block.messages
        is_whole = self.start == 0 and self.stop == len(messages)
        return messages if is_whole else messages[self.start : self.stop]

    @property
    def later(self) -> DelayOrTime | None:
        """Return the delay, or the time, that all messages of the portion have."""
        message = self.block.messages[self.start]
        return None if isinstance(message, bytes) else message.later

    @property
    def count(self) -> int:
        """Return the number of messages."""
        return self.stop - self.start

    def halves(self) -> list[BlockPortion]:
        """Return the portion as two portions, in order."""
        middle = (self.start + self.stop) // 2
        return [
            BlockPortion(self.block, self.start, middle),
            BlockPortion(self.block, middle, self.stop),
        ]


def _are_plain(messages: Iterable[Gathered]) -> bool:
    return {*map(type, messages)} == {bytes}


def records_of(messages: Sequence[Gathered]) -> Single | Batch:
    """Join packed messages into the records of one append."""
    if len(messages) == 1:
        message = messages[0]
        return (
            Single(message, None, NO_HEADERS, None)
            if isinstance(message, bytes)
            else message.record
        )
    if _are_plain(messages):
        columns, metadata = blocks.encode_metadata(timestamps=None, keys=None, headers=None)
        payload = blocks.encode_values(messages)  # type: ignore[arg-type]
        return batch_of(len(messages), payload, columns, metadata, None)
    records = [NOTHING if isinstance(message, bytes) else message.record for message in messages]
    values = [
        message if isinstance(message, bytes) else message.record.value or b""
        for message in messages
    ]
    keys = [record.key for record in records]
    headers = [record.headers for record in records]
    timestamps: list[Any] | None = [record.timestamp_ms for record in records]
    if timestamps == [None] * len(records):  # all messages of a block have a timestamp, or none
        timestamps = None
    columns, metadata = blocks.encode_metadata(
        timestamps=timestamps,
        keys=keys if keys.count(None) < len(keys) else None,
        headers=headers if any(headers) else None,
        valid=[record.value is not None for record in records],
    )
    return batch_of(len(messages), blocks.encode_values(values), columns, metadata, None)
