"""Several processes on one queue: no attempt belongs to two of them, and all is done in the end."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from contextlib import ExitStack
from datetime import timedelta
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

import millstream
from millstream.errors import Overloaded
from millstream.testing import Probe

from . import consumer
from .conftest import counts

pytestmark = pytest.mark.embedded

MESSAGES = 200
HANGS_S = 120


@pytest.fixture
def seed() -> int:
    chosen = int(os.environ["MILLSTREAM_SEED"])
    print(f"replay with MILLSTREAM_SEED={chosen}")  # shown by pytest if the test fails
    return chosen


def test_a_pop_that_is_refused_after_its_first_commit_returns_what_it_took(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "shared.db"
    with millstream.open(path) as ms, millstream.open(path) as other:
        queue, others_queue = ms.create_queue("jobs"), other.queue("jobs")
        queue.put_many(range(10))
        queue.ack(queue.claim(3))
        others_queue.ack(others_queue.claim(5))  # this handle still expects seven messages
        store, commits = Probe(ms).store, list[Any]()
        run = store.run

        def commit_once(operation: Any) -> Any:
            commits.append(operation)
            if len(commits) > 1:
                raise Overloaded("too many operations wait")
            return run(operation)

        with monkeypatch.context() as patch:
            patch.setattr(store, "run", commit_once)
            assert [message.json() for message in queue.pop(5)] == [8, 9]
            assert len(commits) > 1
            with pytest.raises(Overloaded):
                queue.pop()
        assert counts(queue) == {"done": 10}


def test_two_processes_share_a_queue(tmp_path: Path, seed: int) -> None:
    path = tmp_path / "shared.db"
    expected = [f"m{n}" for n in range(MESSAGES)]
    with millstream.open(path) as ms:
        queue = ms.queue("jobs", sources="events", bucket_exponent=1, max_attempts=99, backoff=0)
        for start in range(0, MESSAGES, 7):
            ms.log("events").append_many(expected[start : start + 7])

        source = str(Path(millstream.__file__).parents[1])
        environment = {**os.environ, "PYTHONPATH": source}
        with ExitStack() as stack:
            processes = []
            for name in ("ann", "bob"):
                process = subprocess.Popen(
                    [sys.executable, consumer.__file__, path, name, str(seed), str(MESSAGES)],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    text=True,
                    env=environment,
                )
                stack.enter_context(process)
                stack.callback(process.kill)
                processes.append(process)
            for process in processes:
                assert process.stdout is not None
                assert process.stdout.readline() == "ready\n"
            for process in processes:
                assert process.stdin is not None
                process.stdin.write("go\n")
                process.stdin.flush()
            reports = [json.loads(one.communicate(timeout=HANGS_S)[0]) for one in processes]

        held = Counter(tuple(one[:2]) for report in reports for one in report["held"])
        assert max(held.values()) == 1, "an attempt was given out twice"
        acked = Counter(one[2] for report in reports for one in report["acked"])
        assert acked == Counter(expected), "each acknowledgement is accepted once"
        assert counts(queue) == {"done": MESSAGES}
        for claim_id, _ in held:
            tries = queue.attempts(claim_id)
            for one, after in pairwise(tries):
                assert one.ended is not None
                assert one.ended <= after.claimed
                if one.reason == "lease expired":
                    assert after.claimed >= one.claimed + timedelta(seconds=consumer.LEASE_S)
