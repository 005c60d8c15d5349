"""Jobs in programs that fork after the store was opened: gunicorn with `--preload`, and `os.fork`.

Each case is a program of its own: pytest itself should not be forked.
"""

from __future__ import annotations

import importlib.util
import os
import re
import signal
import subprocess
import sys
import urllib.request
from collections import Counter
from pathlib import Path

import pytest

from millstream import Jobs

pytestmark = pytest.mark.slow

FORKS = 3
PUTS = 20

FORKING = f"""
import os, sys
from millstream import Jobs

jobs = Jobs(sys.argv[1])

@jobs.task(name="add")
def add(a: int, b: int) -> int:
    return a + b

before = add.put(1, 1)  # the store is open before the fork
children = []
for number in range({FORKS}):
    child = os.fork()
    if child == 0:
        handles = [add.put(number, n) for n in range({PUTS})]
        with jobs.worker(concurrency=2):
            results = [handle.result(timeout=60) for handle in handles]
        assert results == [number + n for n in range({PUTS})], results
        os._exit(0)
    children.append(child)
assert [os.waitpid(child, 0)[1] for child in children] == [0] * {FORKS}
assert before.result(timeout=60) == 2
add.put(2, 2)
jobs.worker().run(drain=True)
"""

WEB = """
import os
from millstream import Jobs

jobs = Jobs(os.environ["SHOP_STORE"])

@jobs.task(name="add")
def add(a: int, b: int) -> int:
    return a + b

add.put(1, 1)  # the store is open before gunicorn forks

def app(environ, start_response):
    job = add.put(os.getpid(), 1)
    start_response("200 OK", [("Content-Type", "text/plain"), ("Connection", "close")])
    return [f"{os.getpid()} {job.id}".encode()]
"""


def run_all(path: Path) -> Counter[str]:
    """Run the waiting jobs; return the states of all jobs."""
    with Jobs(path) as jobs:

        @jobs.task(name="add")
        def add(a: int, b: int) -> int:
            return a + b

        jobs.worker().run(drain=True)
        info = jobs.opened().queue("jobs").info()
        assert info is not None
        return Counter(done=info.done, failed=info.failed, in_flight=info.in_flight)


def test_children_of_a_fork_put_and_run_jobs(tmp_path: Path) -> None:
    path = tmp_path / "shop.db"
    subprocess.run([sys.executable, "-c", FORKING, str(path)], check=True, timeout=300)
    assert run_all(path) == Counter(done=FORKS * PUTS + 2)


def test_workers_of_gunicorn_share_a_preloaded_application(tmp_path: Path) -> None:
    if importlib.util.find_spec("gunicorn") is None:
        pytest.skip("gunicorn is not installed")
    (tmp_path / "web.py").write_text(WEB)
    path = tmp_path / "shop.db"
    command = [sys.executable, "-m", "gunicorn", "--preload", "--workers", "2"]
    with subprocess.Popen(
        [*command, "--bind", "127.0.0.1:0", "web:app"],
        cwd=tmp_path,
        env={**os.environ, "SHOP_STORE": str(path)},
        stderr=subprocess.PIPE,
        text=True,
    ) as server:
        try:
            assert server.stderr is not None
            lines = iter(server.stderr)
            address = next(
                match[0] for line in lines if (match := re.search(r"http://[\d.]+:\d+", line))
            )
            answers = [ask(address) for _ in range(PUTS)]
        finally:
            server.send_signal(signal.SIGTERM)
            server.communicate(timeout=60)
    assert len({answer.split()[1] for answer in answers}) == PUTS
    assert run_all(path) == Counter(done=PUTS + 1)


def ask(address: str) -> str:
    with urllib.request.urlopen(address, timeout=60) as answer:
        return str(answer.read().decode())
