"""Claimed messages as runs: what a consumer names when it finishes or renews several at once."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from millstream.errors import InvalidInput
from millstream.queue.commands import Run
from millstream.queue.model.message import Lot, Message

Messages = Message | Iterable[Message]
"""One message, or several of one queue."""


def claims_of(messages: Messages) -> tuple[str, list[Run]]:
    """The one queue that messages belong to, and their runs; without any, none of a queue ''."""
    chosen = chosen_of(messages)
    queues = {message.queue for message in chosen}
    if len(queues) > 1:
        raise InvalidInput(f"a step is about messages of one queue, not of {sorted(queues)}")
    queue = queues.pop() if queues else ""
    return queue, runs_of(chosen, queue)


def chosen_of(messages: Any) -> list[Message]:
    """One message, or several, as a list; anything else is refused."""
    if isinstance(messages, Message):
        return [messages]
    chosen = list(messages) if isinstance(messages, Iterable) else [messages]
    for one in chosen:
        if not isinstance(one, Message):
            raise InvalidInput(
                f"a claimed message, or several, is expected, not {type(one).__name__}: {one!r:.100}"
            )
    return chosen


def runs_of(messages: Messages, queue: str | None = None) -> list[Run]:
    """Claims, all of one queue, as the fewest runs: adjacent claim ids of the same attempt."""
    try:
        chosen = [messages] if isinstance(messages, Message) else list(messages)
        if len(chosen) == 1 and (label := chosen[0].label).queue == queue:
            return [(label.claim_id + chosen[0].index, 1, label.attempt)]
        if not chosen:
            return []
        return _joined(chosen, queue)
    except (AttributeError, TypeError):
        chosen_of(messages)  # says what is wrong
        raise


def lots_claimed(lots: Iterable[Lot]) -> list[Run]:
    """The claims of what a claim was answered, a run for each lot."""
    return [(lot.label.claim_id, len(lot.values), lot.label.attempt) for lot in lots]


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
    """Claim ids and their attempts as runs: those that stand side by side are one."""
    runs: list[Run] = []
    for claim_id, attempt in claims:
        first, count, before = runs[-1] if runs else (0, 0, 0)
        if count and claim_id == first + count and attempt == before:
            runs[-1] = (first, count + 1, attempt)
        else:
            runs.append((claim_id, 1, attempt))
    return runs
