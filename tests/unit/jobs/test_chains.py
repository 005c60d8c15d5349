"""Chains and groups: what the end of a job sets going, once."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import date
from pathlib import Path
from typing import Any

import pytest

import millstream
from millstream import JobCancelled, JobFailed, Jobs, Retry, gather
from millstream.errors import InvalidInput, NotFound
from millstream.jobs.chore_steps import chore_steps
from millstream.jobs.chores import Chore, ExpireGroup, SettleMember, decode_chore
from millstream.jobs.driving import drive
from millstream.testing import JobsRunner, Probe, SimulatedClock
from millstream.threads.stored_jobs import StoredJobs

pytestmark = pytest.mark.embedded


@pytest.fixture
def jobs(tmp_path: Path) -> Iterator[Jobs]:
    with Jobs(tmp_path / "jobs.db") as jobs:
        yield jobs


@pytest.fixture
def add(jobs: Jobs) -> millstream.Task[[int, int], int, int]:
    @jobs.task(name="add", queue="numbers")
    def add(a: int, b: int) -> int:
        return a + b

    return add


def double(n: int) -> int:
    """Be a function at the top of a module."""
    return 2 * n


def drain(jobs: Jobs) -> None:
    jobs.worker(concurrency=2).run(drain=True)


def test_a_chain_hands_each_result_to_the_next_call(jobs: Jobs, add: Any) -> None:
    twice = jobs.task(double)
    chain = add.s(1, 2).then(twice.s()).then(add.s(b=10)).put()
    drain(jobs)
    assert chain.result(timeout=5) == 16
    assert jobs.gathered(chain.id).result() == 16


def test_a_chain_ends_with_the_first_call_that_fails(jobs: Jobs, add: Any) -> None:
    called = []

    @jobs.task(name="fails", max_attempts=1)
    def fails(n: int) -> None:
        raise LookupError(f"no {n}")

    last = jobs.task(name="last")(lambda n: called.append(n))
    chain = add.s(1, 2).then(fails.s()).then(last.s()).put()
    drain(jobs)
    with pytest.raises(JobFailed, match="LookupError: no 3"):
        chain.result(timeout=5)
    assert called == []


def test_a_group_returns_its_results_in_order(jobs: Jobs, add: Any) -> None:
    twice = jobs.task(double)
    group = gather([add.s(1, 1), add.s(2, 2).then(twice.s()), twice.s(8)]).put()
    drain(jobs)
    assert group.result(timeout=5) == [2, 8, 16]
    assert group.done() == 3


def test_the_last_member_puts_the_callback_once(jobs: Jobs, add: Any) -> None:
    called = []

    @jobs.task(name="total")
    def total(numbers: list[int], start: int = 0) -> int:
        called.append(numbers)
        return start + sum(numbers)

    group = gather([add.s(n, n) for n in range(20)], then=total.s(start=5)).put()
    jobs.worker(concurrency=8).run(drain=True)
    assert group.result(timeout=5) == 5 + 380
    assert called == [[2 * n for n in range(20)]]


def failing_group(jobs: Jobs, on_failure: Any) -> tuple[Any, list[Any]]:
    called: list[Any] = []

    @jobs.task(name="check", max_attempts=1)
    def check(n: int) -> int:
        if n == 1 and "repaired" not in called:
            raise ValueError("one is wrong")
        return n

    note = jobs.task(name="note")(lambda results: called.append(results))
    group = gather([check.s(n) for n in range(3)], on_failure=on_failure, then=note.s()).put()
    drain(jobs)
    return group, called


def test_a_failed_member_fails_its_group(jobs: Jobs) -> None:
    group, called = failing_group(jobs, "fail")
    with pytest.raises(JobFailed, match="ValueError: one is wrong"):
        group.result(timeout=5)
    assert called == []


def test_a_group_that_collects_hands_errors_to_the_callback(jobs: Jobs) -> None:
    group, called = failing_group(jobs, "collect")
    assert group.result(timeout=5) is None
    [[first, second, third]] = called
    assert (first, third) == (0, 2)
    assert (second["kind"], second["message"]) == ("ValueError", "one is wrong")


def test_a_member_that_is_redriven_counts_once(jobs: Jobs) -> None:
    group, called = failing_group(jobs, "collect")
    called.append("repaired")
    assert jobs.opened().queue("jobs").redrive() == 1
    drain(jobs)
    assert len(called) == 2
    assert group.done() == 4


@pytest.mark.parametrize("how", ["handle", "filter", "operator"])
def test_a_member_that_is_cancelled_before_it_starts_ends_its_group(
    jobs: Jobs, add: Any, how: str
) -> None:
    @jobs.task(name="count")
    def count(results: list[Any], base: int) -> list[Any]:
        return [base, *results]

    failing = gather([add.s(1, 1), add.s(2, 2)]).put()
    collecting = gather([add.s(n, n) for n in (1, 2)], on_failure="collect", then=count.s(7)).put()
    chain = add.s(1, 2).then(add.s(3)).put()
    for id in ("numbers-1", "numbers-3", "numbers-4"):  # no worker has run yet
        if how == "handle":
            assert jobs.get(id).cancel()
        elif how == "operator":
            assert StoredJobs(jobs.opened().session).cancel(id) is True
    if how == "filter":
        assert jobs.cancel("task = 'add'", dry_run=True) == 5
        assert jobs.cancel("task = 'add'") == 5
    assert jobs.get("numbers-1").state() == "cancelled"
    for handle in (failing, chain):
        with pytest.raises(JobCancelled, match="a job was cancelled before it started"):
            handle.result(timeout=5)
    drain(jobs)
    results: Any = collecting.result(timeout=5)
    cancelled = {"kind": "JobCancelled", "message": "cancelled before it started"}
    if how == "filter":
        assert results == [7, cancelled, cancelled]
    else:
        assert results == [7, 2, cancelled]
    assert not jobs.get("jobs-0").cancel()


def test_a_member_that_has_waited_behind_many_jobs_ends_its_group(tmp_path: Path) -> None:
    clock = SimulatedClock()
    with millstream.open(tmp_path / "jobs.db", clock=clock) as ms, Jobs(ms) as jobs:
        twice = jobs.task(double)
        group = gather([twice.s(1)]).put()
        (first,) = jobs.opened().queue("jobs").peek(1)
        twice.put_many([(n,) for n in range(40)])
        queue = ms.queue("jobs")
        member, *others = queue.claim(100)
        queue.nack(member, delay=40 * 86_400)
        queue.ack(others)
        for _ in range(31):
            clock.advance(86_400)
            Probe(ms).upkeep()
        start = ms.log(member.log).info().start_offset
        assert start > member.offset, "the log does not hold its record any more"
        stored = StoredJobs(ms.session).get(f"jobs-{first.id}")
        assert (stored.state, bytes(stored.arguments)) == ("scheduled", b'{"n":1}')
        assert jobs.get(f"jobs-{first.id}").cancel()
        with pytest.raises(JobCancelled):
            group.result(timeout=5)


def test_a_cancelled_callback_ends_its_group(jobs: Jobs, add: Any) -> None:
    total = jobs.task(name="total")(lambda results: sum(results))
    group = gather([add.s(1, 1)], then=total.s()).put()
    jobs.worker(queues=["numbers"]).run(drain=True)
    assert jobs.get("jobs-0").cancel()
    with pytest.raises(JobCancelled):
        group.result(timeout=5)


def test_a_member_ends_whose_worker_died_after_a_cancel(jobs: Jobs, add: Any) -> None:
    with JobsRunner(jobs) as runner:
        group = gather([add.s(1, 1)], on_failure="collect").put()
        runner.ms.queue("numbers").claim(1, lease=30)  # by a worker that dies
        assert jobs.get("numbers-0").cancel()
        settle = chore_of(runner, SettleMember)
        with pytest.raises(Retry, match="has not ended"):
            settle()
        runner.clock.advance(31)
        assert runner.run_due() == []
        settle()
        settle()  # a second time changes nothing
        assert group.done() == 1
        result: Any = group.result(timeout=0)
        assert result == [{"kind": "JobCancelled", "message": "cancelled while it ran"}]


def test_a_failed_callback_is_redriven_alone(jobs: Jobs, add: Any) -> None:
    broken = [True]

    @jobs.task(name="report", max_attempts=1)
    def report(numbers: list[int]) -> int:
        if broken:
            raise OSError("disk full")
        return sum(numbers)

    group = gather([add.s(1, 1), add.s(2, 2)], then=report.s()).put()
    drain(jobs)
    with pytest.raises(JobFailed, match="OSError: disk full"):
        group.result(timeout=5)
    broken.clear()
    assert jobs.opened().queue("jobs").redrive() == 1
    drain(jobs)
    assert group.result(timeout=5) == 6


def test_the_result_of_a_redriven_callback_is_waited_for(jobs: Jobs, add: Any) -> None:
    report = jobs.task(name="report", max_attempts=1)(failing_once())
    group = gather([add.s(1, 1)], then=report.s()).put()
    drain(jobs)
    with pytest.raises(JobFailed, match="OSError: disk full"):
        group.result(timeout=5)
    assert jobs.opened().queue("jobs").redrive() == 1
    with pytest.raises(TimeoutError):  # the failure of the first time is no result any more
        group.result(timeout=0)
    with jobs.worker():
        assert group.result(timeout=30) == [2]


def test_a_chain_goes_on_when_its_failed_job_is_tried_again(jobs: Jobs, add: Any) -> None:
    check = jobs.task(name="check", max_attempts=1)(failing_once())
    chain = add.s(1, 1).then(check.s()).then(jobs.task(name="show")(str_of).s()).put()
    drain(jobs)
    with pytest.raises(JobFailed, match="OSError: disk full"):
        chain.result(timeout=5)
    assert jobs.opened().queue("jobs").redrive() == 1
    jobs.worker(queues=["jobs"]).run(drain=True)
    assert chain.result(timeout=5) == "2"
    assert jobs.gathered(chain.id).done() == 2


def test_a_cancelled_chain_notes_its_cancel_once(jobs: Jobs, add: Any) -> None:
    with JobsRunner(jobs) as runner:
        chain = add.s(1, 1).then(add.s(2)).put()
        runner.ms.queue("numbers").claim(1, lease=30)  # by a worker that dies
        assert jobs.get("numbers-0").cancel()
        settle = chore_of(runner, SettleMember)
        runner.clock.advance(31)
        assert runner.run_due() == []
        settle()
        settle()
        with pytest.raises(JobCancelled):
            chain.result(timeout=0)
        assert chain.done() == 1


def chore_of(runner: JobsRunner, kind: type[Chore]) -> Callable[[], None]:
    """Return a function that does the only chore of a kind."""
    session = runner.ms.session
    values = [message.value for message in runner.ms.queue("jobs.chores").peek(9, state="delayed")]
    (value,) = (value for value in values if isinstance(decode_chore(value), kind))
    return lambda: drive(
        chore_steps(value, session.limits, session.clock.wall_ms()), session.execute
    )


def test_the_log_of_a_group_is_deleted_when_its_result_has_expired(jobs: Jobs, add: Any) -> None:
    with JobsRunner(jobs) as runner:
        group = gather([add.s(1, 1), add.s(2, 2)]).put()
        expire = chore_of(runner, ExpireGroup)
        runner.clock.advance(8 * 86_400)
        with pytest.raises(Retry, match="the group has not ended"):
            expire()
        runner.run_due()
        assert group.result(timeout=0) == [2, 4]
        with pytest.raises(Retry, match="the result has not expired"):
            expire()
        runner.clock.advance(7 * 86_400 + 1)
        expire()
        expire()  # a second time changes nothing
        with pytest.raises(NotFound, match="or its result has expired"):
            group.result(timeout=0)


def test_a_group_is_kept_until_its_callback_has_ended(jobs: Jobs, add: Any) -> None:
    report = jobs.task(name="report", backoff=8 * 86_400)(failing_once())
    with JobsRunner(jobs) as runner:
        group = gather([add.s(1, 1)], then=report.s()).put()
        expire = chore_of(runner, ExpireGroup)
        runner.run_due()
        runner.clock.advance(8 * 86_400)
        with pytest.raises(Retry, match="the group has not ended"):
            expire()
        runner.run_due()
        runner.clock.advance(8 * 86_400)
        expire()
        with pytest.raises(NotFound):
            group.result(timeout=0)


def test_the_largest_group_is_put_at_once(jobs: Jobs, add: Any) -> None:
    twice = jobs.task(double)
    gather([add.s(1, 1), *[twice.s(n) for n in range(9_999)]]).put()
    assert jobs.opened().queue("jobs").info().available == 9_999


def failing_once() -> Callable[[Any], Any]:
    """Return a function that fails at its first call, and then returns its argument."""
    errors = [OSError("disk full")]

    def task(value: Any) -> Any:
        if errors:
            raise errors.pop()
        return value

    return task


def str_of(value: Any) -> str:
    return str(value)


def test_a_transaction_puts_chains_and_groups(jobs: Jobs, add: Any) -> None:
    with jobs.opened().transaction() as tx:
        chain = tx.put(add.s(1, 2).then(add.s(3)))
        group = tx.put(gather([add.s(1, 1)]))
    drain(jobs)
    assert jobs.gathered(chain.result).result(timeout=5) == 6
    assert jobs.gathered(group.result).result(timeout=5) == [2]


def test_wrong_chains_and_groups_are_refused(jobs: Jobs, add: Any) -> None:
    unique = jobs.task(name="unique", unique=True)(lambda n: None)
    with pytest.raises(InvalidInput, match="its first argument is the result of the job before"):
        add.s(1, 2).then(add.s(1, 2, 3))
    with pytest.raises(InvalidInput, match="argument 'a': expected `int`"):
        add.s("1", 2).put()
    with pytest.raises(InvalidInput, match="argument 'b': expected `int`, got `str`"):
        add.s(1, 2).then(add.s("2"))
    with pytest.raises(InvalidInput, match="argument 'when' contains"):
        add.s(1, 2).then(jobs.task(name="plain")(lambda n, when=0: None).s(date(2026, 1, 1)))
    with pytest.raises(InvalidInput, match="a call of a task follows"):
        add.s(1, 2).then(add)
    with pytest.raises(InvalidInput, match="is unique, so it can only be the first of a chain"):
        add.s(1, 2).then(unique.s())
    with pytest.raises(InvalidInput, match="a group has from 1 to 10,000 members"):
        gather([])
    with pytest.raises(InvalidInput, match="a member is a call of a task"):
        gather([add])
    with pytest.raises(InvalidInput, match="on_failure is 'fail' or 'collect'"):
        gather([add.s(1, 2)], on_failure="ignore")  # type: ignore[arg-type]
    with pytest.raises(NotFound, match="there is no chain or group 'x'"):
        jobs.gathered("x").result()
