"""A worker: every message is handled, and what becomes of it afterwards."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

import millstream
from millstream import Message, Millstream, Queue
from millstream.clock import SystemClock
from millstream.errors import Closed, InvalidInput, NotFound, WriteFailed
from millstream.queue.model.message import Reject, Retry
from millstream.testing import Faults, MemoryEngine, memory_store
from millstream.worker.worker import TimeLimitExceeded, WorkerStats

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


@pytest.mark.parametrize(("concurrency", "batch"), [(1, None), (4, None), (1, 7), (4, 50)])
def test_every_message_is_handled_once(jobs: Queue, concurrency: int, batch: int | None) -> None:
    jobs.put_many(range(100))
    seen: list[int] = []
    worker = jobs.worker(lambda m: seen.append(m.json()), concurrency=concurrency, batch=batch)
    assert worker.run(drain=True) == WorkerStats(done=100)
    assert sorted(seen) == list(range(100))
    assert counts(jobs) == {"left": 0, "done": 100, "failed": 0}


def test_coroutines_run_side_by_side_on_one_loop(jobs: Queue) -> None:
    jobs.put_many(range(20))
    running: list[int] = []
    together = []
    loops = set()

    async def handle(message: Message) -> None:
        loops.add(id(asyncio.get_running_loop()))
        running.append(message.claim_id)
        await asyncio.sleep(0)
        together.append(len(running))
        await asyncio.sleep(0)
        running.remove(message.claim_id)

    stats = jobs.worker(handle, concurrency=5).run(drain=True)
    assert (stats.done, len(loops)) == (20, 1)
    assert 1 < max(together) <= 5


def test_no_more_is_claimed_than_can_begin(jobs: Queue) -> None:
    jobs.put_many(range(10))
    claimed = []

    def handle(message: Message) -> None:
        info = jobs.info()
        assert info is not None
        claimed.append(info.in_flight)

    jobs.worker(handle, concurrency=2).run(drain=True)
    assert max(claimed) <= 2


def test_an_error_is_tried_again_and_its_text_is_kept(jobs: Queue) -> None:
    jobs.put("work")
    errors: list[tuple[int, str]] = []

    def handle(message: Message) -> None:
        if message.attempt < 3:
            raise ValueError(f"no luck {message.attempt}")

    worker = jobs.worker(handle, on_error=lambda m, e: errors.append((m.attempt, str(e))))
    assert worker.run(drain=True) == WorkerStats(done=1, retried=2)
    assert errors == [(1, "no luck 1"), (2, "no luck 2")]
    (message,) = jobs.peek(state="done")
    tries = jobs.attempts(message)
    assert [t.outcome for t in tries] == ["again", "again", "done"]
    assert tries[0].reason == "ValueError: no luck 1"


def test_without_attempts_left_it_has_failed(jobs: Queue) -> None:
    jobs.put("work")

    async def handle(message: Message) -> None:
        raise RuntimeError("never")

    assert jobs.worker(handle).run(drain=True) == WorkerStats(failed=1, retried=2)
    (failed,) = jobs.failed()
    assert (failed.attempt, failed.reason) == (3, "RuntimeError: never")


def test_a_rejected_message_fails_at_once(jobs: Queue) -> None:
    jobs.put("work")

    def handle(message: Message) -> None:
        raise Reject("not for us")

    assert jobs.worker(handle).run(drain=True) == WorkerStats(failed=1)
    (failed,) = jobs.failed()
    assert (failed.attempt, failed.reason) == (1, "not for us")


@pytest.mark.parametrize("kind", [SystemExit, KeyboardInterrupt])
def test_a_handler_cannot_end_the_worker(jobs: Queue, kind: type[BaseException]) -> None:
    jobs.put_many([1, 2])

    def handle(message: Message) -> None:
        if message.json() == 1:
            raise kind

    assert jobs.worker(handle).run(drain=True) == WorkerStats(done=1, failed=1, retried=2)


def test_a_lease_is_renewed_while_its_handler_runs(jobs: Queue) -> None:
    jobs.put("slow")
    begun, release = threading.Event(), threading.Event()

    def handle(message: Message) -> None:
        begun.set()
        assert release.wait(PATIENCE_S)

    with jobs.worker(handle, lease=0.6) as worker:
        assert begun.wait(PATIENCE_S)
        seen: set[datetime | None] = set()
        while len(seen) < 5:  # until it was renewed four times: twice as long as the lease
            seen |= {m.until for m in jobs.peek(state="in_flight")}
            assert jobs.claim() == []
        release.set()
        while worker.stats.done + worker.stats.lost == 0:
            pass
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


def test_a_coroutine_over_its_time_is_cancelled_and_tried_again(jobs: Queue) -> None:
    jobs.put("slow")
    errors: list[BaseException] = []

    async def handle(message: Message) -> None:
        if message.attempt == 1:
            await asyncio.Event().wait()

    worker = jobs.worker(handle, time_limit=0.01, on_error=lambda _, e: errors.append(e))
    assert worker.run(drain=True) == WorkerStats(done=1, retried=1)
    assert [type(e) for e in errors] == [TimeLimitExceeded]


def test_a_handlers_own_timeout_is_an_error_like_others(jobs: Queue) -> None:
    jobs.put("slow")

    async def handle(message: Message) -> None:
        if message.attempt == 1:
            raise TimeoutError("theirs")

    assert jobs.worker(handle, time_limit=60).run(drain=True) == WorkerStats(done=1, retried=1)
    (message,) = jobs.peek(state="done")
    assert jobs.attempts(message)[0].reason == "TimeoutError: theirs"


def test_a_thread_over_its_time_is_left_behind_and_its_result_dropped(jobs: Queue) -> None:
    jobs.put("stuck")
    release, ended = threading.Event(), threading.Event()

    def handle(message: Message) -> None:
        if message.attempt == 1:
            release.wait(PATIENCE_S)
            ended.set()

    worker = jobs.worker(handle, lease=0.6, time_limit=0.3)
    assert worker.run(drain=True) == WorkerStats(done=1, lost=1)
    release.set()
    assert ended.wait(PATIENCE_S)
    (message,) = jobs.peek(state="done")
    assert [t.reason for t in jobs.attempts(message)] == ["lease expired", ""]


def test_effects_and_acknowledgement_are_one_commit(ms: Millstream, jobs: Queue) -> None:
    jobs.put_many(range(5))

    def handle(message: Message, tx: Any) -> None:
        tx.append("results", message.json() * 10)
        if message.attempt == 1:
            raise RuntimeError("after the append")

    stats = jobs.worker(handle, concurrency=2).run(drain=True)
    assert (stats.done, stats.retried) == (5, 5)
    assert sorted(r.json() for r in ms.log("results").read()) == [0, 10, 20, 30, 40]


def test_a_lost_lease_undoes_the_handlers_transaction(ms: Millstream, jobs: Queue) -> None:
    jobs.put("work")

    async def handle(message: Message, tx: Any) -> None:
        tx.append("results", message.attempt)
        if message.attempt == 1:
            jobs.nack(message, delay=0)
            jobs.nack(jobs.claim(), delay=0)

    assert jobs.worker(handle).run(drain=True) == WorkerStats(done=1, lost=1)
    assert [r.json() for r in ms.log("results").read()] == [3]


def test_a_second_parameter_with_a_default_asks_for_no_transaction(jobs: Queue) -> None:
    jobs.put("work")
    seen = []

    def handle(message: Message, verbose: bool = False) -> None:
        seen.append(verbose)

    jobs.worker(handle).run(drain=True)
    assert seen == [False]


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


def test_a_last_attempt_is_worked_on_rather_than_given_back(ms: Millstream) -> None:
    jobs = ms.queue("once", max_attempts=1)
    jobs.put_many(range(3))

    def handle(message: Message) -> None:
        worker.stop()

    worker = jobs.worker(handle, batch=3)
    assert worker.run() == WorkerStats(done=3)


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


def test_progress_is_told(jobs: Queue) -> None:
    jobs.put_many(range(3))
    told: list[WorkerStats] = []
    jobs.worker(lambda m: None, on_progress=told.append).run(drain=True)
    assert told[-1] == WorkerStats(done=3)
    assert [s.done for s in told] == sorted(s.done for s in told)


def test_an_error_of_a_hook_ends_the_worker_after_what_runs(jobs: Queue) -> None:
    jobs.put_many(range(3))

    def hook(stats: WorkerStats) -> None:
        if stats.done == 1:
            raise ZeroDivisionError

    worker = jobs.worker(lambda m: None, on_progress=hook)
    with pytest.raises(ZeroDivisionError):
        worker.run(drain=True)
    assert counts(jobs)["done"] == worker.stats.done
    assert len(jobs.peek(5, state="in_flight")) == 0


@pytest.mark.parametrize("hook", ["on_error", "on_progress"])
def test_hooks_that_always_raise_lose_no_acknowledgement(jobs: Queue, hook: str) -> None:
    jobs.put_many(range(4))
    all_begun = threading.Barrier(4)

    def handle(message: Message) -> None:
        all_begun.wait(PATIENCE_S)
        if message.json() == 0 and hook == "on_error":
            raise ValueError

    def raises(*facts: Any) -> None:
        raise ZeroDivisionError

    hooks: dict[str, Any] = {hook: raises}
    with pytest.raises(ZeroDivisionError):
        jobs.worker(handle, concurrency=4, **hooks).run()
    assert counts(jobs)["done"] == (3 if hook == "on_error" else 4)
    assert jobs.peek(5, state="in_flight") == []


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


def test_a_handlers_transaction_puts_only_to_a_queue_that_is_there(
    ms: Millstream, jobs: Queue
) -> None:
    jobs.put(b"x")

    def handle(message: Message, tx: Any) -> None:
        tx.put("out", message.value)

    assert jobs.worker(handle).run(drain=True).failed == 1
    (failed,) = jobs.peek(state="failed")
    assert "create_queue" in failed.reason
    out = ms.create_queue("out")
    jobs.redrive()
    assert jobs.worker(handle).run(drain=True).done == 1
    assert [message.value for message in out.claim(10)] == [b"x"]


def test_a_retry_comes_after_a_while_of_its_own(ms: Millstream) -> None:
    jobs = ms.queue("patient", max_attempts=3, backoff=3600)
    jobs.put("work")

    def handle(message: Message) -> None:
        if message.attempt == 1:
            raise Retry("too early", after=timedelta(milliseconds=1))

    assert jobs.worker(handle).run(drain=True) == WorkerStats(done=1, retried=1)
    (message,) = jobs.peek(state="done")
    assert jobs.attempts(message)[0].reason == "too early"


def test_a_while_that_no_queue_keeps_is_an_error_of_the_handler(jobs: Queue) -> None:
    jobs.put("work")

    def handle(message: Message) -> None:
        raise Retry("too early", after=-1)

    assert jobs.worker(handle).run(drain=True) == WorkerStats(failed=1, retried=2)
    (failed,) = jobs.failed()
    assert "after must be from 0 to" in failed.reason
