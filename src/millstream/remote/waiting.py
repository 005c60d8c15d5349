"""Waits over a server: as many requests as a wait takes, as a generator without I/O.

The server bounds how long a request may wait. A longer wait is made of several requests, and its
caller sees what a caller of an open file sees.
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
"""A pause after an answer that came long before its time: the server is about to stop."""

WaitStep = Command[Any] | float
"""What the caller does next: ask this, or rest for so many seconds."""


def pieces_of(
    command: Command[T], wait_ms: Callable[[], int], retry_for_s: float
) -> Generator[WaitStep, Raw | None, T]:
    """The requests of a wait, one after the other, each told its answer; returns the last result.

    `wait_ms` says how long a request may wait now. `Interrupted` is thrown in if its connection was
    lost, or if the cluster has no leader or no quorum: that is borne for `retry_for_s`.
    """
    clock = SystemClock()
    wait = command.traits.waits
    assert wait is not None
    wanted_ms = getattr(command, wait.field)
    deadline_s = math.inf if wanted_ms is None else clock.seconds() + wanted_ms / 1000
    refused_since_s: float | None = None
    while True:
        asked_s, most_ms = clock.seconds(), wait_ms()
        left_ms = max(0.0, deadline_s - asked_s) * 1000
        piece_ms = most_ms if left_ms > most_ms else math.ceil(left_ms)
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
        found = result_of(piece, answer)
        if found or clock.seconds() >= deadline_s:
            return found
        if wait.once:
            command = replace(command, **{wait.once: []})
        if (clock.seconds() - asked_s) * 1000 < piece_ms / 2:
            yield EARLY_S
