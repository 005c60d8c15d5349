"""Celery and kombu with `sqs://`: a worker process on a server of ours, from the first task to a kill.

The worker holds its messages by SQS alone; nothing here is told to Celery but the address.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from millstream.server.serving import Serving, running
from millstream.server.settings import Settings

celery = pytest.importorskip("celery")
kombu = pytest.importorskip("kombu")
pytest.importorskip("pycurl")

LONG_S = 600
"""A visibility timeout that no task of a slow machine exceeds."""

SHORT_S = 15
PATIENCE_S = 120.0

APPLICATION = """
import os, time
from celery import Celery

app = Celery("trial", broker=os.environ["TRIAL_BROKER"])
app.conf.update(
    broker_transport_options={
        "region": "us-east-1",
        "is_secure": False,
        "visibility_timeout": int(os.environ["TRIAL_VISIBILITY"]),
        "polling_interval": 0.1,
        "wait_time_seconds": 1,
    },
    task_ignore_result=True,
    task_acks_late=True,
    task_reject_on_worker_lost=True,
    worker_prefetch_multiplier=1,
    worker_enable_remote_control=False,
)

def note(text):
    descriptor = os.open(os.environ["TRIAL_NOTES"], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(descriptor, (text + "\\n").encode())
    os.close(descriptor)

@app.task
def plain(number):
    note(f"plain {number}")

@app.task(bind=True, max_retries=5)
def flaky(self, number):
    note(f"flaky {number} {self.request.retries}")
    if self.request.retries < 2:
        raise self.retry(countdown=0)

@app.task
def late(number):
    note(f"late {number}")

@app.task
def slow(number):
    note(f"begun {number}")
    while not os.path.exists(os.environ["TRIAL_NOTES"] + ".go"):
        time.sleep(0.05)
    note(f"ended {number}")
"""


class Trial:
    """An application of Celery in a folder, its worker processes, and what their tasks noted."""

    def __init__(self, folder: Path, server: Serving, visibility_s: int) -> None:
        address = urlsplit(server.url)
        self._folder = folder
        self.notes_path = folder / "notes"
        self._variables = {
            **os.environ,
            "TRIAL_BROKER": f"sqs://any:any@127.0.0.1:{address.port}//",
            "TRIAL_VISIBILITY": str(visibility_s),
            "TRIAL_NOTES": str(self.notes_path),
            "AWS_EC2_METADATA_DISABLED": "true",
        }
        (folder / "trial.py").write_text(APPLICATION)
        self._workers: list[subprocess.Popen[bytes]] = []

    def send(self, code: str) -> None:
        """Run a program that sends tasks."""
        program = f"from trial import *\n{code}"
        subprocess.run(
            [sys.executable, "-c", program],
            cwd=self._folder,
            env=self._variables,
            check=True,
            timeout=90,
        )

    def start_worker(self) -> subprocess.Popen[bytes]:
        """Start a worker with two processes, in a process group of its own."""
        options = [
            "--concurrency",
            "2",
            "--without-gossip",
            "--without-mingle",
            "--loglevel",
            "INFO",
        ]
        with open(self._folder / f"worker-{len(self._workers)}.log", "wb") as output:
            worker = subprocess.Popen(
                [sys.executable, "-m", "celery", "-A", "trial", "worker", *options],
                cwd=self._folder,
                env=self._variables,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self._workers.append(worker)
        return worker

    def notes(self) -> list[str]:
        """Return the notes of all tasks so far."""
        return self.notes_path.read_text().splitlines() if self.notes_path.exists() else []

    def await_notes(self, reached: Callable[[list[str]], bool]) -> list[str]:
        """Return the notes once they are as expected."""
        ends = time.monotonic() + PATIENCE_S
        while not reached(notes := self.notes()):
            if time.monotonic() > ends:
                logs = "\n".join(path.read_text() for path in self._folder.glob("worker-*.log"))
                raise AssertionError(f"{notes[-5:]}\n{logs[-5_000:]}")
            time.sleep(0.1)
        return notes

    def close(self) -> None:
        """End all workers."""
        for worker in self._workers:
            if worker.poll() is None:
                os.killpg(worker.pid, signal.SIGKILL)
            worker.wait()


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Serving]:
    with running(tmp_path / "a.db", Settings(port=0, stop_s=5.0)) as serving:
        yield serving


@pytest.fixture
def trial(tmp_path: Path, server: Serving, request: pytest.FixtureRequest) -> Iterator[Trial]:
    trial = Trial(tmp_path, server, request.param)
    yield trial
    trial.close()


@pytest.mark.parametrize("trial", [LONG_S], indirect=True)
def test_two_hundred_tasks_and_their_retries_run_once_each(trial: Trial) -> None:
    trial.send(
        "for number in range(200): plain.delay(number)\nfor number in range(5): flaky.delay(number)"
    )
    trial.start_worker()
    notes = trial.await_notes(lambda notes: len(notes) >= 215)
    expected = [f"plain {number}" for number in range(200)]
    expected += [f"flaky {number} {tries}" for number in range(5) for tries in range(3)]
    assert Counter(notes) == Counter(expected)


@pytest.mark.parametrize("trial", [SHORT_S], indirect=True)
def test_a_delay_longer_than_the_visibility_timeout_runs_once(trial: Trial) -> None:
    trial.start_worker()
    trial.send("plain.delay(0)")
    trial.await_notes(lambda notes: notes == ["plain 0"])
    trial.send(f"late.apply_async((1,), delay_seconds={SHORT_S + 5})\nplain.delay(1)")
    trial.await_notes(lambda notes: len(notes) >= 3)
    trial.send(f"plain.apply_async((2,), delay_seconds={SHORT_S + 5})")
    notes = trial.await_notes(lambda notes: "plain 2" in notes)
    assert Counter(notes) == Counter(["plain 0", "plain 1", "late 1", "plain 2"])


@pytest.mark.parametrize("trial", [SHORT_S], indirect=True)
def test_the_task_of_a_killed_worker_runs_again(trial: Trial) -> None:
    first = trial.start_worker()
    trial.send("slow.delay(7)")
    trial.await_notes(lambda notes: notes == ["begun 7"])
    os.killpg(first.pid, signal.SIGKILL)
    first.wait()
    Path(f"{trial.notes_path}.go").touch()
    trial.start_worker()
    notes = trial.await_notes(lambda notes: "ended 7" in notes)
    assert Counter(notes) == Counter(["begun 7", "begun 7", "ended 7"])


def test_kombu_sends_the_groups_of_fair_queues(server: Serving) -> None:
    import boto3

    address = urlsplit(server.url)
    options: dict[str, Any] = {"region": "us-east-1", "is_secure": False}
    broker = f"sqs://any:any@127.0.0.1:{address.port}//"
    with (
        kombu.Connection(broker, transport_options=options) as connection,
        connection.SimpleQueue("fair") as queue,
    ):
        for tenant in ["noisy"] * 60 + ["quiet"] * 5:
            queue.put({"tenant": tenant}, properties={}, MessageGroupId=tenant)
    sqs = boto3.client(
        "sqs",
        endpoint_url=server.url,
        region_name="us-east-1",
        aws_access_key_id="any",
        aws_secret_access_key="any",
    )
    url = sqs.get_queue_url(QueueName="fair")["QueueUrl"]
    groups: list[str] = []
    for _ in range(4):
        received = sqs.receive_message(
            QueueUrl=url, MaxNumberOfMessages=10, MessageSystemAttributeNames=["MessageGroupId"]
        )
        groups += [each["Attributes"]["MessageGroupId"] for each in received["Messages"]]
    assert groups == ["noisy"] * 30 + ["quiet"] * 5 + ["noisy"] * 5
