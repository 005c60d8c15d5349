"""Handlers: signature, transaction, and the log of failures."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable
from typing import Any

from millstream.command import Transact
from millstream.embedded.steps import DeferredSteps
from millstream.errors import InvalidInput
from millstream.queue.commands import FinishClaims
from millstream.queue.model.message import Message, Reject, Retry
from millstream.worker.effects import Complain

WANTED = (
    "a handler is `handler(message)` or `handler(message, tx)`, a function or coroutine function"
)
_logger = logging.getLogger("millstream.worker")
_POSITIONAL = inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD


class HandlerTransaction(DeferredSteps):
    """The steps of a handler, committed with the acknowledgement once the handler returns."""

    def closing(self, message: Message, result: bytes | None = None) -> Transact:
        """Return the steps and the acknowledgement as one commit, which fails if the lease is lost."""
        if not self._ends(message):
            self.ack(message, result=result)
        self._ended = True
        return Transact(self._steps)

    def _ends(self, message: Message) -> bool:
        """Whether the handler has ended the attempt itself, by `tx.nack` or `tx.fail`."""
        return any(
            isinstance(step, FinishClaims)
            and step.queue == message.queue
            and attempt == message.attempt
            and first <= message.claim_id < first + count
            for step in self._steps
            for first, count, attempt in getattr(step, "claims", ())
        )

    def committed(self, answers: list[Any]) -> None:
        """Hand the answers to the steps."""
        self._settle(answers)


Handler = Callable[[Message], Any] | Callable[[Message, HandlerTransaction], Any]
"""Takes a message, or a message and a transaction; a function or a coroutine function."""


def is_async(handler: Callable[..., Any]) -> bool:
    """Whether a call returns a coroutine."""
    call = getattr(handler, "__call__", None)  # noqa: B004
    return inspect.iscoroutinefunction(handler) or inspect.iscoroutinefunction(call)


def wants_transaction(handler: Callable[..., Any]) -> bool:
    """Whether the handler needs a transaction: a second positional parameter without a default."""
    return len(_needed(_parameters(handler) or [])) == 2


def check_handler(handler: Any) -> None:
    """Refuse an unusable handler, before any message is claimed."""
    if not callable(handler):
        raise InvalidInput(f"{WANTED}, got {type(handler).__name__}")
    name = getattr(handler, "__qualname__", type(handler).__qualname__)
    call = getattr(handler, "__call__", None)  # noqa: B004
    if any(map(_yields, (handler, call))):
        raise InvalidInput(f"{WANTED}; {name} yields, so a call of it would run nothing")
    parameters = _parameters(handler)
    if parameters is None:
        return
    named = [p.name for p in parameters if p.kind is p.KEYWORD_ONLY and p.default is p.empty]
    if named:
        raise InvalidInput(f"{WANTED}; {name} needs the keyword {named[0]!r}: give it a default")
    takes_any = any(p.kind is p.VAR_POSITIONAL for p in parameters)
    accepted = sum(p.kind in _POSITIONAL for p in parameters)
    needed = len(_needed(parameters))
    if needed > 2 or not (takes_any or accepted):
        count = needed if needed > 2 else "no"
        raise InvalidInput(f"{WANTED}; {name} takes {count} parameters")


def _yields(call: Any) -> bool:
    return inspect.isgeneratorfunction(call) or inspect.isasyncgenfunction(call)


def _parameters(handler: Callable[..., Any]) -> list[inspect.Parameter] | None:
    """Return the parameters; None for a builtin without a signature."""
    try:
        return list(inspect.signature(handler).parameters.values())
    except (TypeError, ValueError):
        return None


def _needed(parameters: list[inspect.Parameter]) -> list[inspect.Parameter]:
    return [p for p in parameters if p.kind in _POSITIONAL and p.default is p.empty]


def log_failure(complaint: Complain) -> None:
    """Log the failure of a handler and the next step; only an error has a traceback.

    The log names the message, and never contains its contents.
    """
    message, error = complaint.message, complaint.error
    level, outcome = logging.ERROR, "failed"
    trace: BaseException | None = error
    if isinstance(error, Reject | Retry):
        level, trace = logging.INFO, None
        outcome = "rejected" if isinstance(error, Reject) else "retried"
    text = "handler_%s queue=%s claim_id=%d attempt=%d next=%s"
    facts = outcome, message.queue, message.claim_id, message.attempt, complaint.then
    _logger.log(level, text, *facts, exc_info=trace)
