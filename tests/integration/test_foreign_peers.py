"""Messages of the real RQ and Celery, in a real Redis server, move into queues by the command line."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

import millstream
from millstream import Message

pytestmark = [pytest.mark.slow, pytest.mark.timeout(120)]

FAR = datetime(2999, 1, 1, tzinfo=UTC)


@pytest.fixture
def address(tmp_path: Path) -> Iterator[str]:
    """The address of a Redis server of this test."""
    pytest.importorskip("redis")
    program = shutil.which("redis-server")
    if program is None:
        pytest.skip("no redis-server")
    socket = tmp_path / "redis.sock"
    command = [program, "--port", "0", "--unixsocket", str(socket), "--save", ""]
    with subprocess.Popen(
        [*command, "--dir", str(tmp_path)], stdout=subprocess.PIPE, text=True
    ) as server:
        assert server.stdout is not None
        for line in server.stdout:
            if "Ready to accept connections" in line or "ready to accept connections" in line:
                break
        yield f"unix://{socket}"
        server.terminate()


def client_of(address: str) -> Any:
    import redis

    return redis.Redis.from_url(address)


def moved(tmp_path: Path, system: str, address: str, queue: str) -> list[Message]:
    """Import a queue twice, as a cautious operator does, and claim what has arrived."""
    store = str(tmp_path / "store.db")
    command = [sys.executable, "-m", "millstream", "import", "--from", system, address]
    for _ in range(2):
        ran = subprocess.run(
            [*command, "--queue", "mail", "--source-queue", queue, "--store", store],
            capture_output=True,
            text=True,
            timeout=100,
            check=False,
        )
        assert ran.returncode == 0, ran.stderr
    with millstream.open(store) as ms:
        return ms.queue("mail").claim(100)


def test_jobs_of_rq_move_and_scheduled_jobs_stay(tmp_path: Path, address: str) -> None:
    rq = pytest.importorskip("rq")
    with client_of(address) as client:
        queue = rq.Queue("shop", connection=client)
        jobs = [queue.enqueue("shop.send", name, job_timeout=9) for name in ("ada", "bob")]
        later = queue.enqueue_at(FAR, "shop.send", "later")
        messages = moved(tmp_path, "rq", address, "shop")
        assert queue.job_ids == []
        assert rq.registry.ScheduledJobRegistry(queue=queue).get_job_ids() == [later.id]
    assert [message.headers["rq-job"] for message in messages] == [job.id for job in jobs]
    for message, job in zip(messages, jobs, strict=True):
        assert message.headers["rq-description"] == job.description
        assert message.value == job.data


def test_tasks_of_celery_move_with_priority_and_due_time(tmp_path: Path, address: str) -> None:
    celery = pytest.importorskip("celery")
    app = celery.Celery("shop", broker=address.replace("unix://", "redis+socket://"))
    task = app.signature("shop.send")
    sent = [task.apply_async((number,)) for number in range(3)]
    last = task.apply_async((9,), priority=9)
    task.apply_async((7,), eta=FAR)
    app.close()
    messages = moved(tmp_path, "celery-redis", address, "celery")
    assert [message.json()[0] for message in messages] == [[0], [1], [2], [9]]
    assert [message.headers["celery-id"] for message in messages] == [
        result.id for result in (*sent, last)
    ]
    with client_of(address) as client:
        assert client.llen("celery") == 0
    with millstream.open(tmp_path / "store.db") as ms:
        assert ms.queue("mail").info().delayed == 1
