"""Limits per key: jobs of one customer that run at a time, and start per minute."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import UUID

import msgspec
import pytest

from millstream import Jobs, Retry, gather
from millstream.errors import Conflict, InvalidInput
from millstream.jobs.key_limits import KEY_HEADER, KeyLimit
from millstream.testing import JobsRunner

pytestmark = pytest.mark.embedded

WAIT_S = 60


@pytest.fixture
def jobs(tmp_path: Path) -> Iterator[Jobs]:
    with Jobs(tmp_path / "jobs.db") as jobs:
        yield jobs


class Gate:
    """Holds jobs of one key, and counts how many of each key run."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.running: Counter[str] = Counter()
        self.most: Counter[str] = Counter()
        self.begun = threading.Semaphore(0)
        self.open = threading.Event()

    def run(self, key: str, *, is_held: bool) -> None:
        with self.lock:
            self.running[key] += 1
            self.most[key] = max(self.most[key], self.running[key])
        if is_held:
            self.begun.release()
            assert self.open.wait(WAIT_S)
        with self.lock:
            self.running[key] -= 1

    def await_begun(self, count: int) -> None:
        for _ in range(count):
            assert self.begun.acquire(timeout=WAIT_S)


def test_several_workers_hold_a_limit_that_changes_while_they_run(jobs: Jobs) -> None:
    gate = Gate()

    @jobs.task(name="mail", limits={"key": "customer", "running": 2})
    def mail(customer: str) -> None:
        gate.run(customer, is_held=customer == "acme")

    held = mail.put_many([("acme",)] * 9)
    with jobs.worker(concurrency=8), jobs.worker(concurrency=8):
        gate.await_begun(2)
        for job in mail.put_many([("other",)] * 30):
            job.result(timeout=WAIT_S)
        assert gate.most == {"acme": 2, "other": gate.most["other"]}
        assert gate.most["other"] <= 2
        assert gate.running["acme"] == 2

        jobs.limit("acme", running=5)
        gate.await_begun(3)
        for job in mail.put_many([("other",)] * 30):
            job.result(timeout=WAIT_S)
        assert gate.running["acme"] == 5

        gate.open.set()
        for job in held:
            job.result(timeout=WAIT_S)
    assert gate.most["acme"] <= 5


def test_jobs_of_a_dead_worker_count_until_their_lease_ends(jobs: Jobs) -> None:
    runs: list[str] = []

    @jobs.task(name="mail", limits={"key": "customer", "running": 2})
    def mail(customer: str) -> None:
        runs.append(customer)

    with JobsRunner(jobs) as runner:
        mail.put_many([("acme",)] * 4)
        dead_worker = runner.ms.queue("jobs.mail").claim(10, lease=30)
        assert len(dead_worker) == 2
        mail.put("other")
        runner.run_due()
        assert runs == ["other"]
        runner.clock.advance(31)
        runner.run_due()
        assert runs == ["other", *["acme"] * 4]


def test_jobs_of_a_key_start_at_a_rate(jobs: Jobs) -> None:
    runs: list[str] = []

    @jobs.task(name="call", limits={"key": "customer", "per_minute": 30})
    def call(customer: str) -> None:
        runs.append(customer)

    with JobsRunner(jobs) as runner:
        call.put_many([("acme",)] * 100 + [("other",)])
        runner.run_due()
        assert Counter(runs) == {"acme": 1, "other": 1}
        runner.advance(60)
        assert 29 <= Counter(runs)["acme"] <= 31
        jobs.limit("acme", per_minute=600)
        runner.advance(3)
        assert 50 <= Counter(runs)["acme"] <= 75
        jobs.remove_limit("acme")
        runner.advance(300)
        assert Counter(runs)["acme"] == 100


def test_a_burst_starts_at_once_after_a_pause(jobs: Jobs) -> None:
    runs: list[str] = []

    @jobs.task(name="call", limits={"key": "customer", "per_minute": 60, "burst": 5})
    def call(customer: str) -> None:
        runs.append(customer)

    with JobsRunner(jobs) as runner:
        call.put_many([("acme",)] * 20)
        runner.run_due()
        assert len(runs) == 5
        runner.advance(5)
        assert 9 <= len(runs) <= 11


def test_a_job_before_its_next_attempt_holds_up_no_other_job_of_its_key(jobs: Jobs) -> None:
    runs: list[int] = []

    @jobs.task(name="mail", limits={"key": "customer", "running": 1})
    def mail(customer: str, n: int) -> None:
        if n == 0 and not runs:
            runs.append(n)
            raise Retry("later", after=3600)
        runs.append(n)

    with JobsRunner(jobs) as runner:
        mail.put_many([("acme", n) for n in range(3)])
        mail.put_in(7200, "acme", 3)
        mail.put("acme", 4)
        runner.run_due()
        assert runs == [0, 1, 2, 4]
        runner.advance(3601)
        assert runs == [0, 1, 2, 4, 0]
        runner.advance(3600)
        assert runs == [0, 1, 2, 4, 0, 3]


def test_priorities_choose_among_keys_with_limits(jobs: Jobs) -> None:
    runs: list[str] = []

    @jobs.task(name="mail", limits={"key": "customer", "running": 10})
    def mail(customer: str) -> None:
        runs.append(customer)

    with JobsRunner(jobs) as runner:
        mail.put("low")
        mail.using(priority=9).put("high")
        runner.run_due()
    assert runs == ["high", "low"]


class Order(msgspec.Struct):
    customer: str


def keys_of(jobs: Jobs, queue: str) -> list[Any]:
    return [
        message.headers.get(KEY_HEADER)
        for message in jobs.opened().queue(queue).peek(100, state="available")
    ]


def test_the_key_is_an_argument_a_part_of_one_or_a_default(jobs: Jobs) -> None:
    @jobs.task(name="by_number", limits={"key": "customer", "running": 1})
    def by_number(order: int, customer: int | None = 7) -> None: ...

    @jobs.task(name="by_part", limits={"key": "order.customer", "running": 1})
    def by_part(order: Order) -> None: ...

    by_number.put(1)
    by_number.put(1, 8)
    by_number.put_many([(1, None), (1, 9), {"order": 1}])
    by_part.put(Order("acme"))
    assert keys_of(jobs, "jobs.by_number") == ["7", "8", None, "9", "7"]
    assert keys_of(jobs, "jobs.by_part") == ["acme"]


def test_chains_groups_schedules_and_transactions_put_jobs_with_their_key(jobs: Jobs) -> None:
    @jobs.task(name="find")
    def find(name: str) -> str:
        return name.upper()

    @jobs.task(name="mail", limits={"key": "customer", "running": 1})
    def mail(customer: str, text: str = "") -> None: ...

    @jobs.task(name="report", limits={"key": "title", "running": 1})
    def report(results: list[None], title: str) -> None: ...

    jobs.schedules.put("nightly", mail, 3600, args=["night"])
    with jobs.opened().transaction() as tx:
        tx.put(mail, "tx")
    find.s("chain").then(mail.s()).put()
    gather([mail.s("member")], then=report.s(title="group")).put()
    jobs.schedules.trigger("nightly")
    jobs.worker(queues=["jobs"]).run(drain=True)
    keys = keys_of(jobs, "jobs.mail")
    assert sorted(keys) == ["CHAIN", "member", "night", "tx"]
    jobs.worker(queues=["jobs.mail"]).run(drain=True)
    assert keys_of(jobs, "jobs.report") == ["group"]
    with pytest.raises(InvalidInput, match="this parameter takes the list of results"):
        gather([find.s("a")], then=mail.s())


def test_limits_of_keys_are_stored_listed_and_removed(tmp_path: Path) -> None:
    def declared() -> Jobs:
        jobs = Jobs(tmp_path / "jobs.db")

        @jobs.task(name="mail", limits={"key": "customer", "running": 2})
        def mail(customer: str) -> None: ...

        @jobs.task(name="call", limits={"key": "customer", "per_minute": 60})
        def call(customer: str) -> None: ...

        @jobs.task(name="free")
        def free() -> None: ...

        return jobs

    with declared() as jobs:
        assert jobs.limits() == []
        jobs.limit("acme", running=10)
        jobs.limit(7, per_minute=90, task="call")
    with declared() as jobs:
        assert jobs.limits() == [
            KeyLimit(key="7", queue="jobs.call", per_minute=90),
            KeyLimit(key="acme", queue="jobs.call", running=10),
            KeyLimit(key="acme", queue="jobs.mail", running=10),
        ]
        assert jobs.remove_limit("acme", task="mail")
        assert not jobs.remove_limit("acme", task="mail")
        assert jobs.remove_limit(7)
        assert [limit.key for limit in jobs.limits()] == ["acme"]
        with pytest.raises(InvalidInput, match="task 'free' has no limits"):
            jobs.limit("acme", running=1, task="free")
        with pytest.raises(InvalidInput, match="these jobs have no task 'fax'"):
            jobs.limit("acme", running=1, task="fax")
        with pytest.raises(InvalidInput, match="need running, per_minute, or both"):
            jobs.limit("acme")
        with pytest.raises(InvalidInput, match="running is a whole number of jobs from 1"):
            jobs.limit("acme", running=0)
        with pytest.raises(InvalidInput, match="per_minute is a number of jobs above 0"):
            jobs.limit("acme", per_minute=-1)
        with pytest.raises(InvalidInput, match="from 1 to 200 characters"):
            jobs.limit("", running=1)
        with pytest.raises(InvalidInput, match="is text, or another value of JSON, not <object"):
            jobs.limit(object(), running=1)


def test_a_limit_finds_its_key_by_the_value_of_the_argument(jobs: Jobs) -> None:
    @jobs.task(name="mail", limits={"key": "customer", "running": 9})
    def mail(customer: UUID) -> None: ...

    jobs.limit(UUID(int=7), running=1)
    mail.put_many([(UUID(int=7),), (UUID(int=7),), (UUID(int=8),)])
    claimed = jobs.opened().queue("jobs.mail").claim(9)
    assert [job.headers[KEY_HEADER] for job in claimed] == [str(UUID(int=7)), str(UUID(int=8))]


def test_a_changed_limit_in_the_code_holds_once_a_worker_starts(tmp_path: Path) -> None:
    def program(limits: Any, queue: str | None = None) -> tuple[Jobs, Any]:
        jobs = Jobs(tmp_path / "jobs.db")

        @jobs.task(name="mail", limits=limits, queue=queue)
        def mail(customer: str) -> None: ...

        @jobs.task(name="free", queue="free")
        def free() -> None: ...

        return jobs, mail

    jobs, mail = program({"key": "customer", "running": 2})
    mail.put_many([("acme",)] * 9)
    assert len(jobs.opened().queue("jobs.mail").claim(9)) == 2
    jobs.close()

    jobs, mail = program({"key": "customer", "running": 4, "per_minute": 6e6})
    jobs.worker(queues=["free"]).run(drain=True)
    spec = jobs.opened().queue("jobs.mail").info().spec
    assert (spec.group_in_flight, spec.group_rate) == (4, 1e5)
    jobs.close()

    jobs, mail = program(None, queue="plain")
    mail.put("acme")
    jobs.close()
    jobs, mail = program({"key": "customer", "running": 4}, queue="plain")
    with pytest.raises(Conflict, match="holds jobs that were put without limits per key"):
        jobs.worker().run(drain=True)
    jobs.close()


@pytest.mark.parametrize(
    ("limits", "error"),
    [
        (
            {"key": "costumer", "running": 2},
            "no parameter of it; it has customer; did you mean 'customer'",
        ),
        ({"key": "ctx", "running": 2}, "'ctx' is no parameter of it"),
        ({"running": 2}, "limits needs a key"),
        ({"key": "a..b", "running": 2}, "limits needs a key"),
        ({"key": "customer"}, "limits needs running, per_minute, or both"),
        ({"key": "customer", "running": 0}, "running is a whole number of jobs from 1"),
        ({"key": "customer", "running": -1}, "not -1"),
        ({"key": "customer", "running": 1.5}, "not 1.5"),
        ({"key": "customer", "running": True}, "not True"),
        ({"key": "customer", "per_minute": 0}, "per_minute is a number of jobs above 0"),
        ({"key": "customer", "per_minute": "60"}, "not '60'"),
        ({"key": "customer", "per_minute": float("nan")}, "not nan"),
        ({"key": "customer", "runing": 2}, "no field 'runing': did you mean 'running'?"),
        ({"key": "customer", "zzz": 2}, "it has key, running, per_minute, burst"),
        ({"key": "customer", "running": 2, "burst": 2}, "burst has no effect without per_minute"),
        ({"key": "customer", "per_minute": 2, "burst": 0}, "burst is a whole number from 1"),
        ("customer", "limits is a dictionary such as"),
    ],
)
def test_wrong_limits_are_refused_where_they_are_written(
    jobs: Jobs, limits: Any, error: str
) -> None:
    with pytest.raises(InvalidInput, match=r"task 'mail': .*") as refused:

        @jobs.task(name="mail", limits=limits)
        def mail(customer: str) -> None: ...

    assert error in str(refused.value)
    assert "mail" not in jobs.tasks


def test_tasks_with_different_limits_need_queues_of_their_own(jobs: Jobs) -> None:
    @jobs.task(name="a", queue="q", limits={"key": "customer", "running": 2})
    def first(customer: str) -> None: ...

    with pytest.raises(InvalidInput, match="unique= and limits= are settings of a queue"):

        @jobs.task(name="b", queue="q", limits={"key": "customer", "running": 3})
        def second(customer: str) -> None: ...

    with pytest.raises(InvalidInput, match="no task has limits"):
        Jobs("unused.db").limit("acme", running=2)
