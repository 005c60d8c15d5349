"""A call over the line to NATS ends in time, whatever becomes of what it has asked for."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from millstream.cluster.nats.access import parse_nats
from millstream.cluster.nats.connection import NatsConnection

pytest.importorskip("nats")


@pytest.fixture
def line() -> Iterator[NatsConnection]:
    """A line that finds no server: nothing listens on port 1."""
    found = NatsConnection(parse_nats("nats://127.0.0.1:1"), name="test")
    yield found
    found.close()


@pytest.mark.timeout(60)
def test_a_call_ends_in_time_though_its_work_misses_that_it_was_cancelled(
    line: NatsConnection,
) -> None:
    missed, told_again = [], asyncio.Event()

    async def work() -> None:
        while True:
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                if missed:
                    told_again.set()
                    raise
                missed.append(1)

    async def end() -> None:
        await told_again.wait()

    with pytest.raises(TimeoutError):
        line.call(work(), timeout_s=0.05)
    line.call(end(), timeout_s=50)  # the work is told again until it ends


def test_a_call_gives_the_answer_or_the_error_of_its_work(line: NatsConnection) -> None:
    async def answer() -> int:
        await asyncio.sleep(0)
        return 7

    async def fail() -> None:
        raise LookupError("as the work said")

    assert line.call(answer(), timeout_s=30) == 7
    with pytest.raises(LookupError, match="as the work said"):
        line.call(fail(), timeout_s=30)
