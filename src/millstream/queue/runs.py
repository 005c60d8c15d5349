"""Claimed messages as runs: the form in which commands name several claims."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from msgspec.structs import replace

from millstream.errors import InvalidInput
from millstream.log.model.block import pack_headers
from millstream.queue.commands import CancelMessage, Run
from millstream.queue.model.message import Lot, Message
from millstream.queue.model.note import Result

Messages = Message | Iterable[Message]
"""A message, or several messages of a single queue."""


def claims_of(messages: Messages) -> tuple[str, list[Run]]:
    """Return the queue of messages, and their runs. Without messages the queue is ''."""
    chosen = chosen_of(messages)
    queues = {message.queue for message in chosen}
    if len(queues) > 1:
        raise InvalidInput(f"a step is about messages of one queue, not of {sorted(queues)}")
    queue = queues.pop() if queues else ""
    return queue, runs_of(chosen, queue)


def chosen_of(messages: Any) -> list[Message]:
    """Return a message, or several, as a list; refuse other types."""
    if isinstance(messages, Message):
        return [messages]
    chosen = list(messages) if isinstance(messages, Iterable) else [messages]
    for message in chosen:
        if not isinstance(message, Message):
            raise InvalidInput(
                f"a claimed message, or several, is expected, not {type(message).__name__}: {message!r:.100}"
            )
    return chosen


def runs_of(messages: Messages, queue: str | None = None) -> list[Run]:
    """Return claims of a single queue as the fewest runs: adjacent claim ids of the same attempt."""
    try:
        chosen = [messages] if isinstance(messages, Message) else list(messages)
        if len(chosen) == 1 and (label := chosen[0].label).queue == queue:
            return [(label.claim_id + chosen[0].index, 1, label.attempt)]
        if not chosen:
            return []
        return _joined(chosen, queue)
    except (AttributeError, TypeError):
        chosen_of(messages)  # raises an error that names the wrong argument
        raise


def lots_claimed(lots: Iterable[Lot]) -> list[Run]:
    """Return the claims of an answered claim, a run per lot."""
    return [(lot.label.claim_id, len(lot.values), lot.label.attempt) for lot in lots]


def lots_within(lots: list[Lot], bytes_max: int) -> tuple[list[Lot], list[Lot]]:
    """Split lots by the size of their values: the first messages, one at least, and the others."""
    size = 0
    for number, lot in enumerate(lots):
        lot_size = sum(map(len, filter(None, lot.values)))
        if size + lot_size > bytes_max:
            for index, value in enumerate(lot.values):
                size += len(value or b"")
                if size > bytes_max and (number or index):
                    taken, left = _split(lot, index)
                    return [*lots[:number], *taken], [*left, *lots[number + 1 :]]
        else:
            size += lot_size
    return lots, []


def _split(lot: Lot, count: int) -> tuple[list[Lot], list[Lot]]:
    """Return the first messages of a lot as a lot, and the others; no lot for no message."""
    if not count:
        return [], [lot]
    return [_part(lot, 0, count)], [_part(lot, count, len(lot.values))]


def _part(lot: Lot, start: int, stop: int) -> Lot:
    """Return some neighbouring messages of a lot as a lot."""
    label = lot.label
    offsets, timestamps, keys = label.offsets, label.timestamps, label.keys
    part = replace(
        label,
        claim_id=label.claim_id + start,
        offsets=offsets + start if isinstance(offsets, int) else offsets[start:stop],
        timestamps=timestamps if isinstance(timestamps, int) else timestamps[start:stop],
        keys=None if keys is None else keys[start:stop],
        packed_headers=pack_headers(label.headers[start:stop]),
    )
    return Lot(part, lot.values[start:stop])


def _joined(chosen: list[Message], queue: str | None) -> list[Run]:
    label, first, count = chosen[0].label, chosen[0].index, len(chosen)
    together = [message.index for message in chosen if message.label is label]
    if label.queue == queue and together == list(range(first, first + count)):
        return [(label.claim_id + first, count, label.attempt)]
    strangers = {message.queue for message in chosen} - {queue}
    if queue is not None and strangers:
        raise InvalidInput(f"a message of queue {strangers.pop()!r} was handed to {queue!r}")
    return joined_claims((message.claim_id, message.attempt) for message in chosen)


def joined_claims(claims: Iterable[tuple[int, int]]) -> list[Run]:
    """Join adjacent claim ids with the same attempt to runs."""
    runs: list[Run] = []
    for claim_id, attempt in claims:
        first, count, before = runs[-1] if runs else (0, 0, 0)
        if count and claim_id == first + count and attempt == before:
            runs[-1] = (first, count + 1, attempt)
        else:
            runs.append((claim_id, 1, attempt))
    return runs


def results_of(messages: Messages, result: bytes | Sequence[bytes | None] | None) -> list[Result]:
    """Return the results of messages by claim id.

    `result` is the result of a single message, or a list with an entry for each message.
    """
    if result is None:
        return []
    chosen = chosen_of(messages)
    if isinstance(result, bytes):
        if len(chosen) != 1:
            raise InvalidInput(
                f"one result came with {len(chosen):,} messages: give a list with the result of "
                "each message"
            )
        return [(chosen[0].claim_id, result)]
    if not isinstance(result, list | tuple):
        raise InvalidInput(f"a result is bytes, not {type(result).__name__}: encode it first")
    if len(result) != len(chosen):
        raise InvalidInput(
            f"{len(result):,} results came with {len(chosen):,} messages: each message needs a "
            "result, or None"
        )
    return [
        (message.claim_id, message_result)
        for message, message_result in zip(chosen, result, strict=True)
        if message_result is not None
    ]


def cancel_command(queue: str, message: Message | int, *, running: bool) -> CancelMessage:
    """Return the command that cancels a message: by its id, or a record of a source by its claim."""
    if isinstance(message, Message) and message.id is None:
        return CancelMessage(queue, None, message.claim_id, running)
    return CancelMessage(
        queue, message.id if isinstance(message, Message) else message, None, running
    )
