"""Telling: the calls to waiting callers and callbacks, after messages are settled."""

from __future__ import annotations

import logging
from _thread import allocate_lock, get_ident
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any

from millstream.errors import InvalidInput

Call = tuple[Callable[..., object], tuple[Any, ...]]
"""A function, and its arguments."""

_logger = logging.getLogger("millstream.producer")


class Teller:
    """Makes calls without the lock of the producer; an error of a call harms no other call."""

    def __init__(self) -> None:
        self._calls: deque[Call] = deque()
        self._turn = allocate_lock()
        """Held by the thread that makes calls: a sender, or a caller with a refused message."""
        self._thread: int | None = None

    def add(self, calls: Iterable[Call]) -> None:
        """Queue calls; under the lock of the producer, so that they are made in order."""
        self._calls.extend(calls)

    def tell(self) -> None:
        """Make all queued calls, in order, unless another thread does so now."""
        while self._calls and self._turn.acquire(blocking=False):
            self._thread = get_ident()
            try:
                self._make_calls()
            finally:
                self._thread = None
                self._turn.release()

    def _make_calls(self) -> None:
        while self._calls:
            call, arguments = self._calls.popleft()
            try:
                call(*arguments)
            except Exception:  # of a callback: the messages of others go on
                _logger.exception("producer.callback_failed")

    def refuse_callback(self) -> None:
        """Raise if a callback would wait for the sender that is calling it."""
        if get_ident() == self._thread:
            raise InvalidInput(
                "a callback of a producer must not wait for the producer: it may append or put while "
                "there is room, and ask for handles that are done"
            )
