"""Waiting commands over a server: a wait as several requests, as a generator without I/O.

The server limits how long a request may wait. A longer wait consists of several requests, and its
caller sees the same result as the caller of an open file.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Generator
from typing import Any, TypeVar

from msgspec import Raw
from msgspec.structs import replace

from millstream.clock import SystemClock
from millstream.command import Command
from millstream.remote.repeats import Interrupted
from millstream.remote.results import result_of

T = TypeVar("T")

EARLY_S = 0.02
"""The pause after an answer that came long before its time: the server is about to stop."""

WaitStep = Command[Any] | float
"""The next step of the caller: send a request, or pause for some seconds."""


def pieces_of(
    command: Command[T], wait_ms: Callable[[], int], retry_for_s: float
) -> Generator[WaitStep, Raw | None, T]:
    """Yield the requests of a wait, receive their answers, and return the last result.

    `wait_ms` returns how long a request may wait at present. The caller throws `Interrupted` in if
    the connection was lost, or if the cluster has no leader or no quorum; the wait tolerates it for
    `retry_for_s`.
    """
    clock = SystemClock()
    wait = command.traits.waits
    assert wait is not None
    total_ms = getattr(command, wait.field)
    deadline_s = math.inf if total_ms is None else clock.seconds() + total_ms / 1000
    refused_since_s: float | None = None
    while True:
        asked_s, limit_ms = clock.seconds(), wait_ms()
        left_ms = max(0.0, deadline_s - asked_s) * 1000
        piece_ms = limit_ms if left_ms > limit_ms else math.ceil(left_ms)
        piece: Command[T] = replace(command, **{wait.field: piece_ms})
        try:
            answer = yield piece
        except Interrupted as error:
            refusal = error.data.get("refusal")
            if refusal is not None:
                refused_since_s = asked_s if refused_since_s is None else refused_since_s
                if clock.seconds() - refused_since_s >= retry_for_s:
                    raise refusal from None
            continue
        refused_since_s = None
        assert answer is not None
        result = result_of(piece, answer)
        if result or clock.seconds() >= deadline_s:
            return result
        if wait.once:
            command = replace(command, **{name: [] for name in wait.once})
        if (clock.seconds() - asked_s) * 1000 < piece_ms / 2:
            yield EARLY_S
