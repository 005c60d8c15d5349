"""What holds for both shells of a worker, that of threads and that of tasks: one text for both."""

from __future__ import annotations

import asyncio
import threading
from datetime import timedelta
from typing import Any

import pytest

from millstream import Message, Reject, Retry
from millstream.worker.shift import TimeLimitExceeded
from millstream.worker.stats import WorkerStats
from tests.unit.surfaces import bare

PATIENCE_S = 60


def counts(queue: Any) -> dict[str, int]:
    info = queue.info()
    return {
        "left": info.available + info.unrouted + info.delayed + info.in_flight,
        "done": info.done,
        "failed": info.failed,
    }


@pytest.mark.parametrize(("concurrency", "batch"), [(1, None), (4, None), (1, 7), (4, 50)])
def test_every_message_is_handled_once(jobs: Any, concurrency: int, batch: int | None) -> None:
    jobs.put_many(range(100))
    seen: list[int] = []
    worker = jobs.worker(lambda m: seen.append(m.json()), concurrency=concurrency, batch=batch)
    assert worker.run(drain=True) == WorkerStats(done=100)
    assert sorted(seen) == list(range(100))
    assert counts(jobs) == {"left": 0, "done": 100, "failed": 0}


def test_coroutines_run_side_by_side_on_one_loop(jobs: Any) -> None:
    jobs.put_many(range(20))
    running: list[int] = []
    together = []
    loops = set()
    met = asyncio.Event()

    async def handle(message: Message) -> None:
        loops.add(id(asyncio.get_running_loop()))
        running.append(message.claim_id)
        together.append(len(running))
        if len(running) > 1:
            met.set()
        await asyncio.wait_for(met.wait(), 60)  # alone on the loop, the first would wait in vain
        running.remove(message.claim_id)

    stats = jobs.worker(handle, concurrency=5).run(drain=True)
    assert (stats.done, len(loops)) == (20, 1)
    assert 1 < max(together) <= 5


def test_an_error_is_tried_again_and_its_text_is_kept(jobs: Any) -> None:
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
    told, *frames = tries[0].reason.splitlines()
    assert told == "ValueError: no luck 1"
    assert len(frames) == 1  # none of the worker's own
    assert frames[0].endswith("in handle")
    assert "test_shells.py" in frames[0]


def test_without_attempts_left_it_has_failed(jobs: Any) -> None:
    jobs.put("work")

    async def handle(message: Message) -> None:
        raise RuntimeError("never")

    assert jobs.worker(handle).run(drain=True) == WorkerStats(failed=1, retried=2)
    (failed,) = jobs.failed()
    assert (failed.attempt, failed.reason.splitlines()[0]) == (3, "RuntimeError: never")


def test_a_rejected_message_fails_at_once(jobs: Any) -> None:
    jobs.put("work")

    def handle(message: Message) -> None:
        raise Reject("not for us")

    assert jobs.worker(handle).run(drain=True) == WorkerStats(failed=1)
    (failed,) = jobs.failed()
    assert (failed.attempt, failed.reason) == (1, "not for us")


@pytest.mark.parametrize("kind", [SystemExit, KeyboardInterrupt])
def test_a_handler_cannot_end_the_worker(jobs: Any, kind: type[BaseException]) -> None:
    jobs.put_many([1, 2])

    def handle(message: Message) -> None:
        if message.json() == 1:
            raise kind

    assert jobs.worker(handle).run(drain=True) == WorkerStats(done=1, failed=1, retried=2)


def test_a_coroutine_over_its_time_is_cancelled_and_tried_again(jobs: Any) -> None:
    jobs.put("slow")
    errors: list[BaseException] = []

    async def handle(message: Message) -> None:
        if message.attempt == 1:
            await asyncio.Event().wait()

    worker = jobs.worker(handle, time_limit=0.01, on_error=lambda _, e: errors.append(e))
    assert worker.run(drain=True) == WorkerStats(done=1, retried=1)
    assert [type(e) for e in errors] == [TimeLimitExceeded]


def test_a_handlers_own_timeout_is_an_error_like_others(jobs: Any) -> None:
    jobs.put("slow")

    async def handle(message: Message) -> None:
        if message.attempt == 1:
            raise TimeoutError("theirs")

    assert jobs.worker(handle, time_limit=60).run(drain=True) == WorkerStats(done=1, retried=1)
    (message,) = jobs.peek(state="done")
    assert jobs.attempts(message)[0].reason.splitlines()[0] == "TimeoutError: theirs"


def test_a_thread_over_its_time_is_left_behind_and_its_result_dropped(jobs: Any) -> None:
    jobs.alter(max_attempts=100)  # of which a slow machine may need more than two
    jobs.put("stuck")
    release, ended = threading.Event(), threading.Event()

    def handle(message: Message) -> None:
        if message.attempt == 1:
            release.wait(PATIENCE_S)
            ended.set()

    worker = jobs.worker(handle, lease=0.6, time_limit=0.3)
    stats = worker.run(drain=True)
    assert stats == WorkerStats(done=1, lost=max(1, stats.lost))
    release.set()
    assert ended.wait(PATIENCE_S)
    (message,) = jobs.peek(state="done")
    *left_behind, last = [attempt.reason for attempt in jobs.attempts(message)]
    assert last == ""
    assert set(left_behind) == {"lease expired"}


def test_effects_and_acknowledgement_are_one_commit(ms: Any, jobs: Any) -> None:
    jobs.put_many(range(5))

    def handle(message: Message, tx: Any) -> None:
        tx.append("results", message.json() * 10)
        if message.attempt == 1:
            raise RuntimeError("after the append")

    stats = jobs.worker(handle, concurrency=2).run(drain=True)
    assert (stats.done, stats.retried) == (5, 5)
    assert sorted(r.json() for r in ms.log("results").read()) == [0, 10, 20, 30, 40]


def test_a_second_parameter_with_a_default_asks_for_no_transaction(jobs: Any) -> None:
    jobs.put("work")
    seen = []

    def handle(message: Message, verbose: bool = False) -> None:
        seen.append(verbose)

    jobs.worker(handle).run(drain=True)
    assert seen == [False]


def test_a_last_attempt_is_worked_on_rather_than_given_back(ms: Any) -> None:
    jobs = ms.queue("once", max_attempts=1)
    jobs.put_many(range(3))

    def handle(message: Message) -> None:
        bare(worker).stop()  # whichever thread it is called on

    worker = jobs.worker(handle, batch=3)
    assert worker.run() == WorkerStats(done=3)


def test_progress_is_told(jobs: Any) -> None:
    jobs.put_many(range(3))
    told: list[WorkerStats] = []
    jobs.worker(lambda m: None, on_progress=told.append).run(drain=True)
    assert told[-1] == WorkerStats(done=3)
    assert [s.done for s in told] == sorted(s.done for s in told)


def test_an_error_of_a_hook_ends_the_worker_after_what_runs(jobs: Any) -> None:
    jobs.put_many(range(3))

    def hook(stats: WorkerStats) -> None:
        if stats.done == 1:
            raise ZeroDivisionError

    worker = jobs.worker(lambda m: None, on_progress=hook)
    with pytest.raises(ZeroDivisionError):
        worker.run(drain=True)
    assert counts(jobs)["done"] == worker.stats.done
    assert len(jobs.peek(5, state="in_flight")) == 0


def test_an_error_of_a_hook_before_a_claim_loses_no_acknowledgement_of_the_claim(jobs: Any) -> None:
    jobs.put_many(range(3))

    def hook(stats: WorkerStats) -> None:
        if stats.done and not stats.running:  # the next claim carries the second acknowledgement
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        jobs.worker(lambda m: None, on_progress=hook, batch=1).run(drain=True)
    assert counts(jobs) == {"left": 1, "done": 2, "failed": 0}
    assert jobs.peek(5, state="in_flight") == []


@pytest.mark.parametrize("hook", ["on_error", "on_progress"])
def test_hooks_that_always_raise_lose_no_acknowledgement(jobs: Any, hook: str) -> None:
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


def test_a_handlers_transaction_puts_only_to_a_queue_that_is_there(ms: Any, jobs: Any) -> None:
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


@pytest.mark.parametrize("end", ["fail", "nack", "ack"])
def test_a_handler_may_end_its_attempt_in_its_transaction(ms: Any, jobs: Any, end: str) -> None:
    jobs.put(b"x")

    def handle(message: Message, tx: Any) -> None:
        tx.append("results", message.attempt)
        if message.attempt == 1:
            getattr(tx, end)(message, **({} if end == "ack" else {"reason": "of its own"}))

    jobs.worker(handle).run(drain=True)
    info = jobs.info()
    assert (info.done, info.failed) == ((0, 1) if end == "fail" else (1, 0))
    assert len(ms.log("results")) == (2 if end == "nack" else 1)
    (message,) = jobs.peek(state="failed" if end == "fail" else "done")
    assert jobs.attempts(message)[0].reason == ("" if end == "ack" else "of its own")


def test_a_retry_comes_after_a_while_of_its_own(ms: Any) -> None:
    jobs = ms.queue("patient", max_attempts=3, backoff=3600)
    jobs.put("work")

    def handle(message: Message) -> None:
        if message.attempt == 1:
            raise Retry("too early", after=timedelta(milliseconds=1))

    assert jobs.worker(handle).run(drain=True) == WorkerStats(done=1, retried=1)
    (message,) = jobs.peek(state="done")
    assert jobs.attempts(message)[0].reason == "too early"


def test_a_while_that_no_queue_keeps_is_an_error_of_the_handler(jobs: Any) -> None:
    jobs.put("work")

    def handle(message: Message) -> None:
        raise Retry("too early", after=-1)

    assert jobs.worker(handle).run(drain=True) == WorkerStats(failed=1, retried=2)
    (failed,) = jobs.failed()
    assert "after must be from 0 to" in failed.reason
