"""A worker: every message is handled, and what becomes of it afterwards."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

import millstream
from millstream import Message, Millstream, Queue
from millstream.clock import SystemClock
from millstream.errors import Closed, InvalidInput, NotFound, WriteFailed
from millstream.queue.model.message import Reject
from millstream.testing import Faults, MemoryEngine, Probe, memory_store
from millstream.worker.stats import WorkerStats

pytestmark = pytest.mark.embedded

PATIENCE_S = 60


@pytest.fixture
def ms() -> Iterator[Millstream]:
    with memory_store(clock=SystemClock()) as store:
        yield store


@pytest.fixture
def jobs(ms: Millstream) -> Queue:
    return ms.queue("jobs", max_attempts=3, backoff=0)


def counts(queue: Queue) -> dict[str, int]:
    info = queue.info()
    assert info is not None
    return {
        "left": info.available + info.unrouted + info.delayed + info.in_flight,
        "done": info.done,
        "failed": info.failed,
    }


def test_no_more_is_claimed_than_can_begin(jobs: Queue) -> None:
    jobs.put_many(range(10))
    claimed = []

    def handle(message: Message) -> None:
        info = jobs.info()
        assert info is not None
        claimed.append(info.in_flight)

    jobs.worker(handle, concurrency=2).run(drain=True)
    assert max(claimed) <= 2


def test_a_worker_whose_queue_is_deleted_ends(ms: Millstream, jobs: Queue) -> None:
    jobs.put("of the first queue")
    handled = []

    def handle(message: Message) -> None:
        handled.append(message.text)
        jobs.delete()

    with pytest.raises(NotFound, match="there is no queue 'jobs'"):
        jobs.worker(handle).run(drain=True)
    ms.create_queue("jobs").put("of the second queue")
    assert handled == ["of the first queue"]
    assert [message.text for message in jobs.claim(2)] == ["of the second queue"]


def test_a_lease_is_renewed_while_its_handler_runs(ms: Millstream, jobs: Queue) -> None:
    jobs.put("slow")
    begun, release = threading.Event(), threading.Event()

    def handle(message: Message) -> None:
        begun.set()
        assert release.wait(PATIENCE_S)

    worker = jobs.worker(handle, lease=3).start(drain=True)
    assert begun.wait(PATIENCE_S)
    seen: set[datetime | None] = set()

    def is_renewed_for_long() -> bool:
        """Four times: that is longer than the lease."""
        seen.update(m.until for m in jobs.peek(state="in_flight"))
        return len(seen) >= 5

    Probe(ms).until(is_renewed_for_long)
    assert jobs.claim() == []
    release.set()
    worker.join()
    assert worker.stats == WorkerStats(done=1)


def test_a_lost_lease_is_counted_and_the_others_are_acknowledged(jobs: Queue) -> None:
    jobs.put_many(["stolen", "kept"])
    both = threading.Barrier(3)

    def handle(message: Message) -> None:
        if message.attempt == 1:
            both.wait(PATIENCE_S)
            both.wait(PATIENCE_S)

    worker = jobs.worker(handle, concurrency=2).start(drain=True)
    both.wait(PATIENCE_S)
    (stolen, _) = jobs.peek(2, state="in_flight")
    jobs.fail(stolen, reason="an operator")
    both.wait(PATIENCE_S)
    worker.join()
    assert worker.stats == WorkerStats(done=1, lost=1)
    assert counts(jobs) == {"left": 0, "done": 1, "failed": 1}


def test_a_lost_lease_undoes_the_handlers_transaction(ms: Millstream, jobs: Queue) -> None:
    jobs.put("work")

    async def handle(message: Message, tx: Any) -> None:
        tx.append("results", message.attempt)
        if message.attempt == 1:
            jobs.nack(message, delay=0)
            jobs.nack(jobs.claim(), delay=0)

    assert jobs.worker(handle).run(drain=True) == WorkerStats(done=1, lost=1)
    assert [r.json() for r in ms.log("results").read()] == [3]


def test_a_stop_finishes_what_runs_and_gives_back_what_has_not_begun(jobs: Queue) -> None:
    jobs.put_many(range(10))
    begun, release = threading.Event(), threading.Event()

    def handle(message: Message) -> None:
        begun.set()
        assert release.wait(PATIENCE_S)

    worker = jobs.worker(handle, batch=10).start()
    assert begun.wait(PATIENCE_S)
    worker.stop()
    assert not worker.join(timeout=0)
    while counts(jobs)["left"] and len(jobs.peek(20, state="in_flight")) > 1:
        pass  # the rest comes back while the first still runs
    release.set()
    worker.join()
    assert worker.stats == WorkerStats(done=1)
    assert len(jobs.claim(20)) == 9


def test_messages_that_come_later_are_handled_too(jobs: Queue) -> None:
    came = threading.Event()
    with jobs.worker(lambda m: came.set()) as worker:
        jobs.put("later")
        assert came.wait(PATIENCE_S)
    assert worker.stats == WorkerStats(done=1)


def test_a_free_thread_takes_what_comes_while_another_is_busy(jobs: Queue) -> None:
    jobs.put("first")
    first, second = threading.Event(), threading.Event()

    def handle(message: Message) -> None:
        if message.text == "first":
            first.set()
            assert second.wait(PATIENCE_S)
        else:
            second.set()

    with jobs.worker(handle, concurrency=2) as worker:
        assert first.wait(PATIENCE_S)
        jobs.put("second")
        assert second.wait(PATIENCE_S)
    assert worker.stats == WorkerStats(done=2)


def test_a_write_that_fails_for_a_while_is_repeated() -> None:
    faults = Faults()
    with memory_store(MemoryEngine(faults=faults), clock=SystemClock()) as ms:
        jobs = ms.queue("jobs", max_attempts=3)
        jobs.put_many(range(3))

        def handle(message: Message) -> None:
            for nth in (1, 2):
                faults.on("commit", WriteFailed("the disk is full"), nth=nth)
            raise Reject("no")

        assert jobs.worker(handle).run(drain=True) == WorkerStats(failed=3)
        assert counts(jobs) == {"left": 0, "done": 0, "failed": 3}


def test_a_store_closed_under_a_worker_is_told_by_join(tmp_path: Path) -> None:
    ms = millstream.open(tmp_path / "a.db")
    jobs = ms.queue("jobs", max_attempts=3)
    worker = jobs.worker(lambda m: None).start()
    ms.close()
    with pytest.raises(Closed):
        worker.join()


def test_what_makes_no_sense_is_refused(ms: Millstream, jobs: Queue) -> None:
    with pytest.raises(NotFound):
        ms.queue("nowhere").worker(print).run(drain=True)
    for wrong in ({"concurrency": 0}, {"batch": 0}, {"time_limit": 0}):
        with pytest.raises(InvalidInput, match=f"{next(iter(wrong))} must be .*, got 0"):
            jobs.worker(print, **wrong)
    worker = jobs.worker(print).start()
    with pytest.raises(InvalidInput):
        worker.start()
    worker.stop()
    worker.join()


def test_two_workers_share_a_queue(jobs: Queue) -> None:
    jobs.put_many(range(200))
    seen: list[int] = []
    workers = [
        jobs.worker(lambda m: seen.append(m.json()), concurrency=2).start(drain=True)
        for _ in range(2)
    ]
    for worker in workers:
        worker.join()
    assert sorted(seen) == list(range(200))
    assert sum(w.stats.done for w in workers) == 200
