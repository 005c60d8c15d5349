"""The backend of Django's tasks framework: tasks run as jobs, in or after the caller's transaction.

Django has one configuration per process, so each test is a program of its own. The framework is
`django.tasks` where Django has it, and the package `django-tasks` otherwise.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import millstream

pytestmark = pytest.mark.timeout(120)

Run = Callable[..., str]

FRAMEWORK = """
from importlib.util import find_spec
ROOT = "django.tasks" if find_spec("django.tasks") else "django_tasks"
"""

TASKS = (
    FRAMEWORK
    + """
from importlib import import_module
task = import_module(ROOT).task

@task()
def add(a, b=1):
    return {"sum": a + b}

@task(priority=10)
async def double(n):
    return n * 2

@task()
def explode(n):
    raise LookupError(f"no {n}")

@task(takes_context=True)
def attempt(context, n):
    return [context.attempt, context.task_result.id, n]

@task()
def retried():
    from shop_state import attempts
    attempts.append(1)
    if len(attempts) < 3:
        raise ConnectionError("again")
    return len(attempts)

@task()
def count_customers():
    from django.contrib.contenttypes.models import ContentType
    return ContentType.objects.count()

@task()
def unstorable():
    return object()
"""
)

SETUP = (
    FRAMEWORK
    + """
import asyncio, sys, threading
from datetime import timedelta
from importlib import import_module
import django
from django.conf import settings

db, store = sys.argv[1], sys.argv[2]
APPS = ["django.contrib.contenttypes", "millstream.django"]
settings.configure(
    DATABASES={
        "default": {
            "ENGINE": "django.db.backends.sqlite3",
            "NAME": db,
            "OPTIONS": {"timeout": 60},
        },
    },
    TASKS={
        "default": {
            "BACKEND": "millstream.django.MillstreamBackend",
            "QUEUES": ["default", "mail"],
            "OPTIONS": {"store": store, "retry_on": ["ConnectionError"], "max_attempts": 4},
        },
    },
    INSTALLED_APPS=APPS + (["django_tasks"] if ROOT == "django_tasks" else []),
    USE_TZ=True,
)
django.setup()

from django.core.management import call_command
from django.db import connection, transaction
from django.utils import timezone
framework = import_module(ROOT)
TaskResultDoesNotExist = import_module(ROOT + ".exceptions").TaskResultDoesNotExist
import shop_tasks
from shop_tasks import add, attempt, count_customers, double, explode, retried, unstorable

def work(**options):
    call_command("millstream_worker", drain=True, verbosity=0, **options)

def ready(result):
    result.refresh()
    return result.status.value
"""
)


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """Run a program of Django, and return its output. `same` makes the database the store."""
    pytest.importorskip("django")
    (tmp_path / "shop_tasks.py").write_text(TASKS)
    (tmp_path / "shop_state.py").write_text("attempts = []\n")

    def run(program: str, *, same: bool = False) -> str:
        database = tmp_path / "db.sqlite3"
        store = database if same else tmp_path / "jobs.db"
        done = subprocess.run(
            [sys.executable, "-c", SETUP + program, str(database), str(store)],
            env=environment(tmp_path),
            capture_output=True,
            text=True,
            timeout=100,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    return run


def environment(folder: Path) -> dict[str, str]:
    source = Path(millstream.__file__).parents[1]
    return {**os.environ, "PYTHONPATH": f"{source}{os.pathsep}{folder}"}


def adopted(tmp_path: Path) -> None:
    """Make a database that is a store as well, as `millstream adopt` does."""
    millstream.open(tmp_path / "db.sqlite3").close()


def test_tasks_run_and_their_results_are_read(run: Run) -> None:
    shown = run("""
first = add.enqueue(1, b=2)
second = double.enqueue(21)
third = attempt.enqueue("x")
bad = explode.enqueue(7)
wrong = unstorable.enqueue()
print(first.status.value, first.args, first.kwargs, first.attempts, ready(first))
work(concurrency=2)
for result in (first, second, third, bad, wrong):
    result.refresh()
print(first.status.value, first.return_value, first.attempts, bool(first.finished_at))
print(second.return_value, third.return_value == [1, third.id, "x"])
print(bad.status.value, bad.errors[0].exception_class is LookupError, "no 7" in bad.errors[0].traceback)
print(wrong.status.value, wrong.errors[0].exception_class.__name__)
again = add.get_result(first.id)
print(again.return_value, again.started_at <= again.finished_at, again.task.func is add.func)
for id in ("tasks.default-99", "tasks.default-0-t0123456789abcdef", "nonsense", "other-1"):
    try:
        framework.default_task_backend.get_result(id)
    except TaskResultDoesNotExist:
        print("none")
try:
    add.enqueue(1, b=float("nan"))
except ValueError as error:
    print(error)
""")
    assert shown.splitlines() == [
        "READY [1] {'b': 2} 0 READY",
        "SUCCESSFUL {'sum': 3} 1 True",
        "42 True",
        "FAILED True True",
        "FAILED TypeError",
        "{'sum': 3} True True",
        *["none"] * 4,
        "task 'shop_tasks:add': an argument has NaN or an infinite number, which JSON does not have",
    ]


def test_priority_defer_async_and_retries(run: Run) -> None:
    shown = run("""
order = []
signals = import_module(ROOT + ".signals")
ended = []
signals.task_started.connect(lambda **k: order.append(k["task_result"].args), weak=False)
signals.task_finished.connect(lambda **k: ended.append(k["task_result"].status.value), weak=False)
for n, priority in enumerate((-100, 0, 100)):
    add.using(priority=priority).enqueue(n)
later = add.using(run_after=timezone.now() + timedelta(seconds=0.3)).enqueue(9)
print(later.status.value, ready(later))

async def main():
    result = await double.aenqueue(4)
    return await double.aget_result(result.id)

waiting = asyncio.run(main())
again = retried.enqueue()
posted = add.using(queue_name="mail").enqueue(5)
print(waiting.status.value, posted.id)
work()
print([args for args in order if args in ([0], [1], [2])])
print(ready(later), ready(waiting), waiting.return_value, ready(posted))
again.refresh()
print(again.return_value, again.attempts, ended.count("FAILED"))
""")
    assert shown.splitlines() == [
        "READY READY",
        "READY tasks.mail-0",
        "[[2], [1], [0]]",
        "SUCCESSFUL SUCCESSFUL 8 SUCCESSFUL",
        "3 3 0",
    ]


def test_with_another_database_the_job_is_put_on_commit(run: Run) -> None:
    shown = run("""
with transaction.atomic():
    kept = add.enqueue(1)
    try:
        add.get_result(kept.id)
    except TaskResultDoesNotExist:
        print("not yet")
try:
    with transaction.atomic():
        dropped = add.enqueue(2)
        raise ZeroDivisionError
except ZeroDivisionError:
    pass
print(ready(kept), kept.id[:17])
work()
print(ready(kept), kept.return_value)
try:
    dropped.refresh()
except TaskResultDoesNotExist:
    print("rolled back")
""")
    assert shown.splitlines() == [
        "not yet",
        "READY tasks.default-0-t",
        "SUCCESSFUL {'sum': 2}",
        "rolled back",
    ]


def test_in_one_file_the_job_is_part_of_the_transaction(run: Run, tmp_path: Path) -> None:
    adopted(tmp_path)
    shown = run(
        """
call_command("migrate", verbosity=0)
from django.contrib.contenttypes.models import ContentType
ContentType.objects.all().delete()
with transaction.atomic():
    ContentType.objects.create(app_label="a", model="m")
    kept = count_customers.enqueue()
    later = add.using(run_after=timezone.now() + timedelta(seconds=0.1), priority=7).enqueue(3)
    print(ready(kept), ready(later))
try:
    with transaction.atomic():
        dropped = add.enqueue(2)
        raise ZeroDivisionError
except ZeroDivisionError:
    pass
with transaction.atomic():
    try:
        with transaction.atomic():
            partly = add.enqueue(2)
            raise ZeroDivisionError
    except ZeroDivisionError:
        pass
print(ready(kept))
work()
from millstream.testing import Probe
ms = framework.default_task_backend.jobs.opened()
Probe(ms).until(lambda: ms.queue("tasks.default").info().done >= 2)
print(ready(kept), kept.return_value, ready(later), later.return_value)
for result in (dropped, partly):
    try:
        result.refresh()
    except TaskResultDoesNotExist:
        print("rolled back")
""",
        same=True,
    )
    assert shown.splitlines() == [
        "READY READY",
        "READY",
        "SUCCESSFUL 1 SUCCESSFUL {'sum': 4}",
        "rolled back",
        "rolled back",
    ]


def test_a_task_that_waits_longer_than_its_log_keeps_records_has_a_result(run: Run) -> None:
    shown = run("""
import millstream
from millstream.testing import Probe, SimulatedClock
clock = SimulatedClock()
ms = millstream.open(store, clock=clock)
backend = framework.default_task_backend
backend.jobs.bind(ms)
first = add.enqueue(1)
with transaction.atomic():
    second = add.enqueue(2)
for n in range(40):
    add.enqueue(n)
queue = ms.queue("tasks.default")
messages = queue.claim(100)
queue.nack(messages[:2], delay=40 * 86_400)
queue.ack(messages[2:])
for _ in range(31):
    clock.advance(86_400)
    Probe(ms).upkeep()
print(ms.log(messages[0].log).info().start_offset > messages[1].offset)
print(ready(first), first.args, ready(second), second.args)
""")
    assert shown.splitlines() == ["True", "READY [1] READY [2]"]


def test_a_task_that_a_worker_cannot_import_stays_waiting(run: Run) -> None:
    shown = run("""
result = add.enqueue(1)
backend = framework.default_task_backend
queue = backend.jobs.opened().queue("tasks.default")
queue.put(b"{}", headers={"task": "os:getcwd"})
queue.put(b"{}", headers={"task": "no_such_module:f"})
worker = backend.jobs.worker(queues=["tasks.default"], on_job=lambda report: (
    worker.stop() if len(worker.unknown_tasks) == 2 else None))
with worker:
    worker.join()
print(sorted(worker.unknown_tasks), ready(result), queue.info().delayed)
""")
    assert shown == "['no_such_module:f', 'os:getcwd'] SUCCESSFUL 2\n"


def test_wrong_options_are_refused_by_name(run: Run) -> None:
    shown = run("""
from django.core.exceptions import ImproperlyConfigured
from millstream.django import MillstreamBackend
from millstream.django.backend_options import millstream_priority
for options in ({}, {"store": "a", "stor": 1}, {"store": "a", "retry_on": ["shop.No"]},
                {"store": "a", "max_attempts": 0}, {"store": "a", "retry_on": [int]}):
    try:
        MillstreamBackend("default", {"OPTIONS": options})
    except ImproperlyConfigured as error:
        print(error)
print([millstream_priority(p) for p in (-100, -50, 0, 50, 100)])
""")
    *errors, priorities = shown.splitlines()
    expected = ["needs the option 'store'", "has no option 'stor'", "names 'shop.No'"]
    expected += ["max_attempts is from 1", "is no exception class"]
    assert len(errors) == len(expected)
    for error, part in zip(errors, expected, strict=True):
        assert error.startswith("the backend 'default' of TASKS")
        assert part in error
    assert priorities == "[0, 2, 4, 6, 9]"


def test_the_worker_command_ends_its_tasks_after_sigterm(run: Run, tmp_path: Path) -> None:
    run('add.enqueue(1); call_command("migrate", verbosity=0)')
    program = SETUP + 'call_command("millstream_worker", "--queues", "default")'
    with subprocess.Popen(
        [
            sys.executable,
            "-u",
            "-c",
            program,
            str(tmp_path / "db.sqlite3"),
            str(tmp_path / "jobs.db"),
        ],
        env=environment(tmp_path),
        stdout=subprocess.PIPE,
        text=True,
    ) as worker:
        assert worker.stdout is not None
        assert worker.stdout.readline().startswith("running tasks of tasks.default in ")
        assert "tasks.default-0 shop_tasks:add done in" in worker.stdout.readline()
        worker.send_signal(signal.SIGTERM)
        assert worker.stdout.readline() == "1 done, 0 retried, 0 failed\n"
    assert worker.returncode == 0
