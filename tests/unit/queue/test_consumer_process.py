"""A consumer in a process of its own: it ends cleanly by signals, and a kill loses no message."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import millstream
from millstream import Millstream, Queue
from millstream.errors import Closed

pytestmark = pytest.mark.embedded

CONSUMING = Path(__file__).with_name("consuming.py")
PER_ROUND = 300
"""More than a test reads of a process before it ends the process."""
ROUNDS = 4
LEASE_S = 1.0


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "work.db"


@pytest.fixture
def ms(path: Path) -> Iterator[Millstream]:
    with millstream.open(path, durability="relaxed") as store:
        yield store


@contextmanager
def consuming(place: Path, mode: str, *, prefetch: int) -> Iterator[subprocess.Popen[bytes]]:
    command = [sys.executable, str(CONSUMING), str(place), mode, str(prefetch)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        try:
            yield process
        finally:
            process.kill()


def lines(process: subprocess.Popen[bytes], count: int = 1) -> list[str]:
    assert process.stdout is not None
    return [process.stdout.readline().decode().strip() for _ in range(count)]


def counts(queue: Queue) -> tuple[int, int, int, int]:
    """Return how many messages wait, are in flight, done and failed."""
    info = queue.info()
    return info.available + info.unrouted + info.delayed, info.in_flight, info.done, info.failed


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_the_loop_after_the_present_message(
    ms: Millstream, path: Path, number: signal.Signals
) -> None:
    jobs = ms.queue("jobs", lease=3600, max_attempts=1)
    jobs.put_many(map(str, range(20)))
    with consuming(path, "slow", prefetch=8) as process:
        assert lines(process, 2) == ["begun", "0"]
        process.send_signal(number)
        assert lines(process) == ["ended True 0"]
        assert process.wait() == 0
    assert counts(jobs) == (19, 0, 1, 0)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_a_loop_that_waits(
    ms: Millstream, path: Path, number: signal.Signals
) -> None:
    jobs = ms.create_queue("jobs")
    with consuming(path, "fast", prefetch=8) as process:
        assert lines(process) == ["begun"]
        process.send_signal(number)
        assert lines(process) == ["ended True 0"]
        assert process.wait() == 0
    assert counts(jobs) == (0, 0, 0, 0)


def test_a_signal_at_any_moment_leaves_nothing_claimed(ms: Millstream, path: Path) -> None:
    jobs = ms.queue("jobs", lease=3600, max_attempts=1)
    chance = random.Random(7)
    consumed = 0
    for round_number in range(1, ROUNDS + 1):
        jobs.put_many(map(str, range(PER_ROUND)))
        with consuming(path, "fast", prefetch=64) as process:
            assert lines(process) == ["begun"]
            seen = lines(process, chance.randrange(1, 200))
            process.send_signal(chance.choice([signal.SIGTERM, signal.SIGINT]))
            assert process.stdout is not None
            seen += process.stdout.read().decode().split("\n")[:-1]
            assert seen.pop() == "ended True 0"
            assert process.wait() == 0
        consumed += len(seen)
        assert counts(jobs) == (round_number * PER_ROUND - consumed, 0, consumed, 0)


@pytest.mark.crash
def test_a_killed_consumer_loses_no_message_and_acknowledges_none_twice(
    ms: Millstream, path: Path
) -> None:
    jobs = ms.queue("jobs", lease=LEASE_S, max_attempts=100, backoff=0)
    chance = random.Random(11)
    for _ in range(ROUNDS):
        jobs.put_many(map(str, range(PER_ROUND)))
        with consuming(path, "fast", prefetch=64) as process:
            lines(process, 1 + chance.randrange(50, 200))
            process.kill()
    while jobs.info().done < ROUNDS * PER_ROUND:
        with jobs.consumer(timeout=LEASE_S) as consumer:
            for message in consumer:
                consumer.ack(message)
    assert counts(jobs) == (0, 0, ROUNDS * PER_ROUND, 0)
    for message in jobs.peek(ROUNDS * PER_ROUND, state="done"):
        outcomes = [attempt.outcome for attempt in jobs.attempts(message)]
        assert outcomes.count("done") == 1


@pytest.mark.skipif(not hasattr(os, "fork"), reason="the platform has no fork")
def test_a_child_process_gets_no_message_of_its_parent(ms: Millstream) -> None:
    jobs = ms.queue("jobs", lease=3600)
    jobs.put_many(map(str, range(4)))
    with jobs.consumer() as consumer:
        loop = iter(consumer)
        message = next(loop)
        child = os.fork()
        if child == 0:
            is_refused = False
            try:
                next(loop)
            except Closed:
                is_refused = True
            consumer.close()  # does nothing here
            os._exit(0 if is_refused else 1)
        assert os.waitpid(child, 0)[1] == 0
        consumer.ack(message)
        assert next(loop).text == "1"
    assert counts(jobs) == (3, 0, 1, 0)


def test_memory_stays_flat_while_a_slow_loop_reads_a_deep_queue(ms: Millstream) -> None:
    jobs = ms.queue("jobs", lease=3600)
    for _ in range(5):
        jobs.put_many(map(str, range(1_000)))
    flights = set()
    with jobs.consumer(prefetch=16, linger=0, timeout=0) as consumer:
        for number, message in enumerate(consumer):
            if number % 100 == 0:
                threading.Event().wait(0.005)  # the keeper claims ahead meanwhile
                flights.add(jobs.info().in_flight)
            consumer.ack(message)
    assert max(flights) <= 16
    assert counts(jobs) == (0, 0, 5_000, 0)
