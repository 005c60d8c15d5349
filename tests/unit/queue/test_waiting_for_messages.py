"""Waiting for the end of a message, by the id that putting it returned."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import millstream
from millstream import Fate, Millstream, aio
from millstream.errors import InvalidInput, NotFound
from millstream.testing import Probe, SimulatedClock
from millstream.threads.queue import Queue

from .conftest import upkeep


def acknowledge(queue: Queue, id: int) -> None:
    queue.ack(queue.claim(9))


def give_up(queue: Queue, id: int) -> None:
    queue.fail(queue.claim(9), reason="no address")


def cancel(queue: Queue, id: int) -> None:
    assert queue.cancel(id)


ENDS: list[tuple[Callable[[Queue, int], None], str]] = [
    (acknowledge, "done"),
    (give_up, "failed"),
    (cancel, "cancelled"),
]


@pytest.mark.parametrize(("end", "state"), ENDS)
def test_a_waiter_is_told_how_a_message_ended(
    ms: Millstream, end: Callable[[Queue, int], None], state: str
) -> None:
    queue = ms.create_queue("q")
    id = queue.put(b"x")
    with ThreadPoolExecutor() as pool:
        waiter = pool.submit(queue.wait, id, timeout=60)
        end(queue, id)
        fate = waiter.result(60)
    assert fate is not None
    assert fate.state == state
    assert fate.is_over
    assert fate == queue.wait(id) == queue.message(id)


@pytest.mark.embedded
def test_a_waiter_sleeps_until_the_bucket_of_its_message_changes(ms: Millstream) -> None:
    queue = ms.create_queue("q", bucket_exponent=0)
    first, second = queue.put_many([b"0", b"1"])
    held = queue.claim(2)
    told: list[Fate | None] = []
    waiter = threading.Thread(target=lambda: told.append(queue.wait(second)))
    waiter.start()
    probe = Probe(ms)
    probe.until(lambda: probe.waiting() > 0)
    queue.ack(held[0])
    assert told == []
    queue.ack(held[1])
    waiter.join(60)
    assert [fate and fate.state for fate in told] == ["done"]
    assert queue.message(first).state == "done"


def test_a_message_that_ended_before_is_answered_at_once(ms: Millstream) -> None:
    queue = ms.create_queue("q")
    id = queue.put(b"x", delay=0)
    queue.ack(queue.claim())
    fate = queue.wait(id, timeout=0)
    assert fate is not None
    assert fate.state == "done"


def test_a_wait_ends_after_its_timeout(tmp_path: Path) -> None:
    with millstream.open(tmp_path / "q.db") as ms:
        queue = ms.create_queue("q")
        waits, held = queue.put(b"0"), queue.put(b"1", delay=3600)
        assert queue.wait(waits, timeout=0) is None
        assert queue.wait(held, timeout=0.01) is None


def test_a_waiter_follows_a_message_through_a_retry(ms: Millstream) -> None:
    queue = ms.create_queue("q", backoff=0)
    id = queue.put(b"x")
    with ThreadPoolExecutor() as pool:
        waiter = pool.submit(queue.wait, id, timeout=60)
        queue.nack(queue.claim())
        queue.ack(queue.claim())
        fate = waiter.result(60)
    assert fate is not None
    assert (fate.state, fate.attempts) == ("done", 2)


def test_an_unknown_message_raises(ms: Millstream, clock: SimulatedClock) -> None:
    queue = ms.create_queue("q", bucket_exponent=0, done_retention=60, dedup_by="d")
    with pytest.raises(NotFound, match="no put returned this id"):
        queue.wait(7)
    first, repeat = queue.put(b"0", dedup="x"), queue.put(b"1", dedup="x")
    queue.ack(queue.claim(9))
    with pytest.raises(NotFound, match="dropped as a repeat"):
        queue.wait(repeat)
    clock.advance(120)
    upkeep(ms)
    clock.advance(601)
    upkeep(ms)
    with pytest.raises(NotFound, match="longer ago than the queue remembers"):
        queue.wait(first)
    with pytest.raises(NotFound):
        ms.queue("other").wait(0)
    with pytest.raises(InvalidInput):
        queue.wait(-1)


def test_a_purge_ends_a_wait(ms: Millstream) -> None:
    queue = ms.create_queue("q")
    id = queue.put(b"x")
    with ThreadPoolExecutor() as pool:
        waiter = pool.submit(queue.wait, id, timeout=60)
        queue.purge()
        with pytest.raises(NotFound, match="was purged"):
            waiter.result(60)


def test_coroutines_wait_too(tmp_path: Path) -> None:
    async def main() -> None:
        async with await aio.open(tmp_path / "q.db") as ms:
            queue = await ms.create_queue("q")
            ids = await queue.put_many(range(3))
            later = await queue.put("later", delay=3600)
            waits = [asyncio.create_task(queue.wait(id)) for id in (*ids, later)]
            await queue.ack(await queue.claim(3))
            assert await queue.cancel(later)
            fates = await asyncio.gather(*waits)
            assert [fate and fate.state for fate in fates] == ["done"] * 3 + ["cancelled"]
            result = await queue.put("x", detail=True)
            assert not result.repeated
            assert await queue.wait(result.id or 0, timeout=0) is None

    asyncio.run(main())


FINISHES = """
import sys
import millstream
with millstream.open(sys.argv[1]) as ms:
    queue = ms.queue("q")
    queue.ack(queue.claim(9))
"""


@pytest.mark.embedded
def test_another_process_ends_the_wait(tmp_path: Path) -> None:
    path = tmp_path / "q.db"
    source = str(Path(millstream.__file__).parents[1])
    with millstream.open(path) as ms, ThreadPoolExecutor() as pool:
        queue = ms.create_queue("q")
        id = queue.put(b"x")
        waiter = pool.submit(queue.wait, id, timeout=60)
        probe = Probe(ms)
        probe.until(lambda: probe.waiting() > 0)
        subprocess.run(
            [sys.executable, "-c", FINISHES, str(path)],
            env={**os.environ, "PYTHONPATH": source},
            check=True,
        )
        fate = waiter.result(60)
        assert fate is not None
        assert fate.state == "done"
