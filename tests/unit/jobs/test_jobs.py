"""Jobs on a store in a file: put, run, end."""

from __future__ import annotations

import asyncio
import contextlib
import queue
import threading
from collections.abc import Callable, Iterator
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pytest

import millstream
from millstream import JobContext, JobFailed, JobFinished, Jobs, JobStarted
from millstream.command import Command
from millstream.errors import CannotOpen, InvalidInput
from millstream.jobs.runner import JobAttempt, Runner
from millstream.jobs.shares import shares_of

pytestmark = pytest.mark.embedded


@pytest.fixture
def jobs(tmp_path: Path) -> Iterator[Jobs]:
    with Jobs(tmp_path / "jobs.db") as jobs:
        yield jobs


def drained(jobs: Jobs, **options: Any) -> list[Any]:
    reports: list[Any] = []
    jobs.worker(on_job=reports.append, **options).run(drain=True)
    return reports


def test_a_task_is_called_as_the_function_it_was(jobs: Jobs) -> None:
    @jobs.task(name="add")
    def add(a: int, b: int = 2) -> int:
        """Add."""
        return a + b

    assert add(1) == 3
    assert add.__doc__ == "Add."
    assert add.__name__ == "add"


def test_a_worker_runs_plain_and_coroutine_functions(jobs: Jobs) -> None:
    called = []

    @jobs.task(name="plain")
    def plain(n: int) -> None:
        called.append(("plain", n, threading.current_thread().name))

    @jobs.task(name="coroutine")
    async def coroutine(n: int) -> None:
        await asyncio.sleep(0)
        called.append(("coroutine", n, threading.current_thread().name))

    first, second = plain.put(1), coroutine.put(n=2)
    assert (first.id, first.state()) == ("jobs-0", "waiting")
    drained(jobs, concurrency=2)
    assert [(kind, n) for kind, n, _ in sorted(called)] == [("coroutine", 2), ("plain", 1)]
    assert (first.state(), second.state()) == ("done", "done")
    assert second.result(timeout=5) is None


class Size(msgspec.Struct):
    width: int
    height: int


def test_a_result_is_kept_and_has_the_type_of_the_annotation(jobs: Jobs) -> None:
    @jobs.task(name="measure")
    def measure(n: int) -> Size:
        return Size(n, n + 1)

    @jobs.task(name="measure_later")
    async def measure_later(ctx: JobContext, n: int) -> Size:
        ctx.tx.append("sizes", n)
        return Size(n, n + 2)

    first, second = measure.put(1), measure_later.put(1)
    drained(jobs)
    assert (first.result(timeout=5), second.result()) == (Size(1, 2), Size(1, 3))
    assert jobs.get(first.id).result() == {"width": 1, "height": 2}


def test_a_result_that_cannot_be_encoded_fails_the_job_at_once(jobs: Jobs) -> None:
    @jobs.task(name="opens")
    def opens(ctx: JobContext) -> object:
        ctx.tx.append("never", 1)
        return object()

    job = opens.put()
    drained(jobs)
    with pytest.raises(JobFailed, match=r"returned a value \(object\) which cannot be encoded"):
        job.result(timeout=5)
    assert [info.name for info in jobs.opened().logs() if info.name == "never"] == []


def test_a_result_with_a_number_that_json_does_not_have_fails_the_job(jobs: Jobs) -> None:
    job = jobs.task(name="mean")(lambda: [None, float("nan")]).put()
    drained(jobs)
    with pytest.raises(JobFailed, match="'mean' returned NaN or an infinite number"):
        job.result(timeout=5)


def test_put_many_puts_all_jobs_in_order(jobs: Jobs) -> None:
    called = []
    task = jobs.task(name="note")(lambda n: called.append(n))
    handles = task.put_many([(1,), {"n": 2}, (3,)])
    assert [job.id for job in handles] == ["jobs-0", "jobs-1", "jobs-2"]
    drained(jobs)
    assert called == [1, 2, 3]
    assert task.put_many([]) == []
    with pytest.raises(InvalidInput, match="put_many takes a tuple of arguments"):
        task.put_many([4])  # type: ignore[list-item]


def test_a_job_for_later_is_scheduled(jobs: Jobs) -> None:
    task = jobs.task(name="later")(lambda: None)
    job = task.put_in(timedelta(hours=1))
    assert job.state() == "scheduled"
    assert job.cancel()
    assert job.state() == "cancelled"
    with pytest.raises(millstream.JobCancelled):
        job.result(timeout=5)


def test_a_transaction_puts_jobs_with_its_other_steps(jobs: Jobs) -> None:
    called = []
    task = jobs.task(name="note")(lambda n: called.append(n))
    ms = jobs.opened()
    with ms.transaction() as tx:
        tx.append("orders", {"id": 1})
        later = tx.put(task, 1)
        tx.put(task.using(priority=9), n=2)
    assert jobs.get(later.result).state() == "waiting"
    assert ms.log("orders").end_offset() == 1
    with contextlib.suppress(ZeroDivisionError), ms.transaction() as tx:
        tx.put(task, 3)
        raise ZeroDivisionError
    drained(jobs)
    assert sorted(called) == [1, 2]


def test_a_job_is_tried_again_and_fails_after_its_last_attempt(jobs: Jobs) -> None:
    @jobs.task(name="broken", max_attempts=3, backoff=0)
    def broken() -> None:
        raise LookupError("no such order")

    job = broken.put()
    reports = drained(jobs)
    outcomes = [r.outcome for r in reports if isinstance(r, millstream.JobFinished)]
    assert outcomes == ["retried", "retried", "failed"]
    with pytest.raises(JobFailed, match="LookupError: no such order") as failure:
        job.result(timeout=5)
    assert failure.value.kind == "LookupError"
    assert "in broken" in failure.value.trace
    assert "runner.py" not in failure.value.trace


def raising(error: BaseException) -> Callable[[], None]:
    def fail() -> None:
        raise error

    return fail


@pytest.mark.parametrize(
    "error", [millstream.Reject("wrong address"), KeyError("not in retry_on"), SystemExit(1)]
)
def test_some_errors_fail_a_job_at_once(jobs: Jobs, error: BaseException) -> None:
    task = jobs.task(name="fails", retry_on=ValueError, backoff=0)(raising(error))
    job = task.put()
    drained(jobs)
    assert job.state() == "failed"


@pytest.mark.parametrize("is_async", [True, False])
def test_a_task_that_raises_a_cancelled_error_alone_uses_up_its_attempts(
    jobs: Jobs, is_async: bool
) -> None:
    def plain() -> None:
        raise asyncio.CancelledError

    async def coroutine() -> None:
        waiting = asyncio.create_task(asyncio.sleep(60))
        waiting.cancel()
        await waiting

    task = jobs.task(name="t", max_attempts=3, backoff=0)(coroutine if is_async else plain)
    job = task.put()
    outcomes = [r.outcome for r in drained(jobs) if isinstance(r, JobFinished)]
    assert outcomes == ["retried", "retried", "failed"]
    assert job.state() == "failed"


def test_retry_names_the_delay_and_counts_as_an_attempt(jobs: Jobs) -> None:
    attempts = []

    @jobs.task(name="again")
    def again(ctx: JobContext) -> None:
        attempts.append(ctx.attempt)
        if ctx.attempt < 3:
            raise millstream.Retry(after=0)

    job = again.put()
    drained(jobs)
    assert attempts == [1, 2, 3]
    assert job.state() == "done"


def test_the_context_names_the_job_and_its_transaction_commits_with_it(jobs: Jobs) -> None:
    @jobs.task(name="writes", backoff=0, timeout=60)
    def writes(ctx: JobContext, value: str) -> None:
        assert jobs.current() is ctx
        assert ctx.deadline is not None
        ctx.tx.append("results", {"id": ctx.id, "value": value, "attempt": ctx.attempt})
        if ctx.attempt == 1:
            raise OSError("before the end")

    writes.put("x")
    drained(jobs)
    stored = [record.json() for record in jobs.opened().log("results").read()]
    assert stored == [{"id": "jobs-0", "value": "x", "attempt": 2}]
    with pytest.raises(InvalidInput, match="no job runs here"):
        jobs.current()


def test_the_context_is_any_parameter_with_its_annotation(jobs: Jobs) -> None:
    def inner(a: int, ctx: JobContext, b: int = 2) -> list[Any]:
        return [a, ctx.id, b]

    def optional(a: int = 1, ctx: JobContext | None = None, b: int = 2) -> list[Any]:
        return [a, ctx and ctx.id, b]

    inside: Any = jobs.task(name="inner")(inner)
    at_will: Any = jobs.task(name="optional")(optional)
    puts = [inside.put(1), inside.put(1, b=3), inside.put(1, 4)]
    puts += [at_will.put(), at_will.put(b=3), at_will.put(5, 4)]
    drained(jobs)
    results = [job.result(timeout=5) for job in puts]
    expected = [(1, 2), (1, 3), (1, 4), (1, 2), (1, 3), (5, 4)]
    assert results == [[a, f"jobs-{n}", b] for n, (a, b) in enumerate(expected)]
    assert at_will(7) == [7, None, 2]


@pytest.mark.parametrize("is_async", [False, True])
def test_an_attempt_over_its_timeout_fails(jobs: Jobs, is_async: bool) -> None:
    released = threading.Event()
    if is_async:

        @jobs.task(name="slow", timeout=0.05, max_attempts=1)
        async def slow() -> None:
            await asyncio.Event().wait()

    else:

        @jobs.task(name="slow", timeout=0.05, max_attempts=1)
        def slow() -> None:
            released.wait()

    job = slow.put()
    try:
        drained(jobs)
    finally:
        released.set()
    with pytest.raises(JobFailed, match=r"took longer than 0\.05 s"):
        job.result(timeout=5)


def test_an_error_while_an_attempt_is_given_up_leaves_the_worker_whole(jobs: Jobs) -> None:
    released, reports, contexts = threading.Event(), list[Any](), list[JobContext]()

    @jobs.task(name="slow", timeout=0.05, max_attempts=2, backoff=0)
    def slow(ctx: JobContext) -> None:
        contexts.append(ctx)
        released.wait()

    def note(report: Any) -> None:
        if isinstance(report, JobFinished):
            reports.append(report)
            if len(reports) == 1:
                raise RuntimeError("the hook failed")

    job = slow.put()
    jobs.opened().queue("jobs").alter(backoff=0)
    try:
        jobs.worker(on_job=note).run(drain=True)
        assert [context.cancelled for context in contexts] == [True] * len(contexts)
    finally:
        released.set()
    assert len(reports) > 1
    assert job.state() == "failed"


def test_a_plain_function_is_given_up_although_its_store_is_away(jobs: Jobs) -> None:
    released, contexts, attempts = threading.Event(), list[JobContext](), list[JobAttempt]()
    reports: queue.SimpleQueue[Any] = queue.SimpleQueue()

    @jobs.task(name="slow", timeout=60, max_attempts=1)
    def slow(ctx: JobContext) -> None:
        contexts.append(ctx)
        reports.put(ctx)
        released.wait()

    def away(command: Command[Any]) -> Any:
        raise CannotOpen("the server is away", again=True)

    slow.put()
    session, (message,) = jobs.opened().session, jobs.opened().queue("jobs").claim()
    runner = Runner(jobs.tasks, session.limits, session.clock, on_job=reports.put)
    runner.on_timed = attempts.append
    thread = threading.Thread(target=runner.run, args=(message, away, lambda dropped: True))
    thread.start()
    try:
        assert isinstance(reports.get(timeout=10), JobStarted)
        assert reports.get(timeout=10) is contexts[0]
        with pytest.raises(CannotOpen):
            runner.overdue(attempts[0], away)
        assert contexts[0].cancelled
        runner.cancel([message.claim_id])  # the attempt has ended: no report
    finally:
        released.set()
        thread.join()
    assert reports.get(timeout=10).outcome == "dropped"


def test_a_worker_leaves_jobs_of_unknown_tasks_waiting(
    jobs: Jobs, caplog: pytest.LogCaptureFixture
) -> None:
    others = Jobs(jobs.opened())
    others.task(name="elsewhere")(lambda: None)
    known = jobs.task(name="known")(lambda: None)
    unknown = [others.task(name=f"other{n}")(lambda: None).put() for n in range(2)]
    known.put()
    worker = jobs.worker()
    with worker:
        assert jobs.get("jobs-2").result(timeout=10) is None
    assert worker.unknown_tasks == {"other0": 1, "other1": 1}
    assert [job.state() for job in unknown] == ["scheduled", "scheduled"]
    assert caplog.text.count("job_of_unknown_task") == 2


@pytest.mark.parametrize("states", [("running",), ("scheduled",), ("waiting", "running")])
def test_a_unique_job_keeps_its_repeats_away_in_any_named_states(
    jobs: Jobs, states: tuple[str, ...]
) -> None:
    inside: list[bool] = []

    @jobs.task(name="report", unique=states)
    def report(customer: str) -> None:
        inside.append(report.put("acme").was_duplicate)

    is_dropped = report.put("acme").state() == "waiting" and report.put("acme").was_duplicate
    assert is_dropped is ("waiting" in states)
    later = [report.put_in(3600, "other").was_duplicate for _ in range(2)]
    assert later == [False, "scheduled" in states]
    with jobs.worker() as worker:
        while not inside:
            assert not worker.join(timeout=0.01)
    assert inside[0] is ("running" in states)


def test_a_second_put_of_a_unique_job_returns_the_first(jobs: Jobs) -> None:
    @jobs.task(name="report", unique=True, unique_by="customer")
    def report(customer: str, day: int = 0) -> None: ...

    first, second, other = report.put("acme"), report.put("acme", day=2), report.put("umbrella")
    assert (second.id, second.was_duplicate) == (first.id, True)
    assert not first.was_duplicate
    assert other.id != first.id
    drained(jobs)
    assert not report.put("acme").was_duplicate


def test_equal_arguments_are_repeats_in_any_order_and_with_defaults(jobs: Jobs) -> None:
    @jobs.task(name="report", unique=True)
    def report(
        sums: dict[str, int], days: frozenset[str] = frozenset(), at: object = object(), **more: int
    ) -> None: ...

    days = [f"day {n}" for n in range(50)]
    first = report.put({"a": 1, "b": 2}, frozenset(days), x=1, y=2)
    assert report.put({"b": 2, "a": 1}, frozenset(days[::-1]), y=2, x=1).was_duplicate
    assert not report.put({"a": 2, "b": 1}, frozenset(days), x=1, y=2).was_duplicate
    assert not report.put({"a": 1}).was_duplicate
    assert report.put(sums={"a": 1}, days=frozenset()).was_duplicate
    assert first.id != report.put({"a": 1}).id


def test_a_worker_shares_its_concurrency_among_queues(jobs: Jobs) -> None:
    called = []
    mail = jobs.task(name="mail", queue="mail")(lambda: called.append("mail"))
    note = jobs.task(name="note")(lambda: called.append("note"))
    mail.put()
    note.put()
    jobs.worker(queues={"mail": 3, "jobs": 1}, concurrency=4).run(drain=True)
    assert sorted(called) == ["mail", "note"]


@pytest.mark.parametrize(
    ("shares", "concurrency", "expected"),
    [
        (None, 8, {"jobs": 6, "jobs.mail": 1, "jobs.report": 1}),  # by the number of their tasks
        (None, 2, {"jobs": 1, "jobs.mail": 1, "jobs.report": 1}),
        ({"a": 3, "b": 1}, 8, {"a": 6, "b": 2}),
        (["a", "b", "c"], 8, {"a": 3, "b": 3, "c": 2}),  # all of it is used
        ("a", 8, {"a": 8}),
    ],
)
def test_shares_use_the_whole_concurrency(
    shares: Any, concurrency: int, expected: dict[str, int]
) -> None:
    served = {"jobs": 6, "jobs.mail": 1, "jobs.report": 1}
    assert shares_of(shares, served, concurrency) == expected


def test_a_worker_refuses_a_queue_that_does_not_exist(jobs: Jobs) -> None:
    jobs.task(name="note")(lambda: None)
    jobs.task(name="mail", queue="mail")(lambda: None)
    worker = jobs.worker(queues={"jobs": 3, "mial": 1}, concurrency=4)
    with pytest.raises(
        InvalidInput, match="no queue 'mial'; the queues of the tasks are jobs, mail"
    ):
        worker.run(drain=True)


def outer() -> Callable[[], None]:
    def inner() -> None: ...

    return inner


def test_a_function_that_cannot_be_imported_is_refused(jobs: Jobs) -> None:
    with pytest.raises(InvalidInput, match="a lambda cannot be a task"):
        jobs.task(lambda: None)
    with pytest.raises(InvalidInput, match=r"the local function .* cannot be a task"):
        jobs.task(outer())
    with pytest.raises(InvalidInput, match="a task is a function"):
        jobs.task(3)  # type: ignore[call-overload]


def module_task(n: int) -> None:
    """Be a function at the top of a module."""


def test_a_callable_without_readable_annotations_is_refused(jobs: Jobs) -> None:
    with pytest.raises(
        InvalidInput, match=r"task 'once': the annotations of functools.partial.* cannot be"
    ):
        jobs.task(name="once")(partial(module_task, 1))


def test_a_name_with_a_line_break_is_refused(jobs: Jobs) -> None:
    with pytest.raises(InvalidInput, match="no line breaks or other control characters"):
        jobs.task(name="send\nmail")(dict.copy)
    assert jobs.tasks == {}


def test_a_time_that_is_no_time_is_refused(jobs: Jobs) -> None:
    task = jobs.task(name="later")(len)
    with pytest.raises(InvalidInput, match=r"when is a datetime with a time zone.*tomorrow"):
        task.put_at("tomorrow", [1])  # type: ignore[arg-type]


def test_a_job_of_an_unknown_queue_is_unknown(jobs: Jobs) -> None:
    assert jobs.get("nowhere-7").state() == "unknown"
    assert jobs.get("nowhere-7").progress() is None


@pytest.mark.parametrize("retry_on", [5, "ValueError", [ValueError, "OSError"], int, None])
def test_a_wrong_retry_on_is_refused_where_it_is_written(jobs: Jobs, retry_on: Any) -> None:
    with pytest.raises(InvalidInput, match="task 'x': retry_on is an exception class, or several"):
        jobs.task(name="x", retry_on=retry_on)(len)


@pytest.mark.parametrize("unique", [5, None, "often", ("waiting", "often"), [["waiting"]]])
def test_a_wrong_unique_is_refused_where_it_is_written(jobs: Jobs, unique: Any) -> None:
    with pytest.raises(InvalidInput, match="task 'mail': unique is True, or states of"):
        jobs.task(name="mail", unique=unique)(lambda to: None)


def test_unique_parameters_of_a_task_that_is_not_unique_are_refused(jobs: Jobs) -> None:
    with pytest.raises(InvalidInput, match="unique_by has no effect without unique or unique_for"):
        jobs.task(name="mail", unique_by="to")(lambda to: None)


def test_a_negative_time_to_keep_results_is_refused() -> None:
    with pytest.raises(InvalidInput, match="keep_results is 0 seconds or more, not -1"):
        Jobs(keep_results=-1)


def test_two_tasks_with_one_name_are_refused(jobs: Jobs) -> None:
    assert jobs.task(module_task).task_name == f"{__name__}:module_task"
    with pytest.raises(InvalidInput, match="two tasks have the name"):
        jobs.task(module_task)


def test_a_wrong_argument_is_refused_and_nothing_is_stored(jobs: Jobs) -> None:
    task = jobs.task(module_task)
    with pytest.raises(InvalidInput, match="argument 'n': expected `int`, got `str`"):
        task.put("3")  # type: ignore[arg-type]
    with pytest.raises(InvalidInput, match="a job is put with a delay, or at a time"):
        task.using(delay=1, at=5)
    assert not jobs.opened().queue("jobs").exists()


def test_jobs_without_a_store_say_so(tmp_path: Path) -> None:
    jobs = Jobs()
    task = jobs.task(module_task)
    with pytest.raises(InvalidInput, match="these jobs have no store"):
        task.put(1)
    jobs.bind(tmp_path / "late.db")
    assert task.put(1).id == "jobs-0"
    jobs.close()


@pytest.mark.parametrize("id", ["", "jobs", "jobs-", "-1", "jobs-x", 7, f"jobs-{2**63}"])
def test_a_wrong_id_is_refused(jobs: Jobs, id: Any) -> None:
    with pytest.raises(InvalidInput, match="the id of a job"):
        jobs.get(id)


def test_coroutines_put_and_run_jobs(tmp_path: Path) -> None:
    async def main() -> None:
        async with millstream.aio.Jobs(tmp_path / "jobs.db") as jobs:
            called = []

            @jobs.task(name="plain")
            def plain(n: int) -> None:
                called.append(n)

            @jobs.task(name="coroutine")
            async def coroutine(ctx: JobContext, n: int) -> None:
                ctx.tx.put(plain, n + 1)
                called.append(n)

            job = await coroutine.put(1)
            async with jobs.worker(concurrency=2):
                assert await job.result(timeout=10) is None
                assert await (await jobs.get("jobs-1")).result(timeout=10) is None
            assert called == [1, 2]

    asyncio.run(main())
