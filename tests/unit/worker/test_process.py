"""A worker that is told to end finishes what it began; one that is killed loses nothing."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import millstream
from millstream import Millstream, Queue

pytestmark = pytest.mark.embedded

LABOURER = Path(__file__).with_name("labourer.py")
MESSAGES = 300
KILLS = 4


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "work.db"


@pytest.fixture
def ms(path: Path) -> Iterator[Millstream]:
    with millstream.open(path) as store:
        yield store


@contextmanager
def labourer(
    path: Path, handler: str, *, concurrency: int = 1, batch: int = 1
) -> Iterator[subprocess.Popen[bytes]]:
    command = [sys.executable, str(LABOURER), str(path), handler, str(concurrency), str(batch)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        try:
            yield process
        finally:
            process.kill()


def lines(process: subprocess.Popen[bytes], count: int = 1) -> list[str]:
    assert process.stdout is not None
    return [process.stdout.readline().decode().strip() for _ in range(count)]


def done_once(queue: Queue, messages: int) -> None:
    """Every message is done, and exactly one of its attempts was acknowledged."""
    info = queue.info()
    assert info is not None
    assert (info.done, info.failed, info.in_flight, info.delayed) == (messages, 0, 0, 0)
    for message in queue.peek(messages, state="done"):
        outcomes = [one.outcome for one in queue.attempts(message)]
        assert outcomes.count("done") == 1
        assert outcomes[-1] == "done"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_finishes_what_runs_and_leaves_the_rest(
    ms: Millstream, path: Path, number: signal.Signals
) -> None:
    jobs = ms.queue("jobs", max_attempts=5)
    jobs.put_many(str(n) for n in range(10))
    with labourer(path, "until_stopped", concurrency=3) as process:
        assert sorted(lines(process, 3)) == ["0", "1", "2"]
        process.send_signal(number)
        assert lines(process) == ["ended 3 0 0 0 0"]
        assert process.wait() == 0
    info = jobs.info()
    assert info is not None
    assert (info.done, info.in_flight, info.available) == (3, 0, 7)


def test_what_was_claimed_and_not_begun_is_back_at_once(ms: Millstream, path: Path) -> None:
    jobs = ms.queue("jobs", max_attempts=5, lease=3600)
    jobs.put_many(str(n) for n in range(10))
    with labourer(path, "until_stopped", batch=10) as process:
        assert lines(process) == ["0"]
        process.terminate()
        assert lines(process) == ["ended 1 0 0 0 0"]
    assert sorted(m.text for m in jobs.claim(20)) == [str(n) for n in range(1, 10)]


@pytest.mark.crash
@pytest.mark.parametrize(
    ("handler", "concurrency", "batch"),
    [("count", 1, 1), ("count", 4, 20), ("record", 4, 1), ("count_async", 8, 1)],
)
def test_killed_over_and_over_everything_is_done_once(
    ms: Millstream, path: Path, handler: str, concurrency: int, batch: int
) -> None:
    jobs = ms.queue("jobs", max_attempts=100, lease=0.3, backoff=0)
    for round_number in range(KILLS):
        # It does not wait for us: all that is there may be done before it is killed.
        first, end = (MESSAGES * n // KILLS for n in (round_number, round_number + 1))
        jobs.put_many(str(n) for n in range(first, end))
        with labourer(path, handler, concurrency=concurrency, batch=batch) as process:
            lines(process, 5 + 7 * round_number)
            process.kill()

    if handler == "record":
        jobs.worker(lambda m, tx: tx.append("results", m.value)).run(drain=True)
        results = [record.text for record in ms.log("results").read()]
        assert sorted(results, key=int) == [str(n) for n in range(MESSAGES)]
    else:
        jobs.worker(lambda m: None, batch=50).run(drain=True)
    done_once(jobs, MESSAGES)
