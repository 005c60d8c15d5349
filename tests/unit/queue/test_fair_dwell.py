"""Fair queues: how long a quiet group waits beside a noisy one, on a simulated clock."""

from __future__ import annotations

import pytest

from millstream import Millstream
from millstream.queue.model.message import Message
from millstream.testing import SimulatedClock
from millstream.threads.queue import Queue

WORKERS = 100
WORK_S = 10
"""How long a worker works on a message."""


def dwells(
    ms: Millstream, clock: SimulatedClock, *, noisy: int, batch: int, name: str
) -> list[int]:
    """Return the seconds from the put to the ack of ten quiet messages that meet a working crew.

    The workers begin in turns, so in each second a tenth of them end their work and claim again.
    """
    queue = ms.queue(name, group_by="g", group_in_flight=0, lease=600)
    if noisy:
        queue.put_many(["a"] * noisy, headers=[{"g": "a"}] * noisy)
    held: list[list[Message]] = [[] for _ in range(WORKERS // batch)]
    for second in range(WORK_S):  # until the crew is busy
        turn(queue, held, second)
        clock.advance(1)
    queue.put_many(["b"] * 10, headers=[{"g": "b"}] * 10)
    seconds: list[int] = []
    for second in range(1_000):
        ended = turn(queue, held, second)
        seconds += [second] * ended.count("b")
        if len(seconds) == 10:
            return seconds
        clock.advance(1)
    raise AssertionError(f"after {second} seconds {len(seconds)} quiet messages are done")


def turn(queue: Queue, held: list[list[Message]], second: int) -> list[str]:
    """Let the workers of one second end their work and claim again; return the ended messages."""
    ended: list[str] = []
    batch = WORKERS // len(held)
    for worker in range(second % WORK_S, len(held), WORK_S):
        ended += [message.text for message in held[worker]]
        queue.ack(held[worker])
        held[worker] = queue.claim(batch)
    return ended


@pytest.mark.parametrize("batch", [1, 10])
def test_a_quiet_group_waits_at_most_twice_as_long_beside_ten_thousand_messages(
    ms: Millstream, clock: SimulatedClock, batch: int
) -> None:
    alone = dwells(ms, clock, noisy=0, batch=batch, name="alone")
    beside = dwells(ms, clock, noisy=10_000, batch=batch, name="beside")
    assert max(beside) <= 2 * max(alone), (alone, beside)
    assert sum(beside) <= 2 * sum(alone), (alone, beside)
    waiting = ms.queue("beside").info()
    assert waiting.available + waiting.unrouted > 9_000  # the noisy group was still there
