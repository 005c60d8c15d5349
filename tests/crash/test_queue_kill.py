"""Consumers of a queue are killed while they work, over and over, for every kind of queue.

- Every message is done in the end; none is acknowledged twice.
- No attempt is handed out twice.
- What belongs together is acknowledged in order, where the queue promises it.
- The log of changes, of a queue that has one, tells each claim and each end once.
- The doctor finds the store healthy: no payload missing, none left over.
"""

from __future__ import annotations

import os
import random
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

import millstream
from millstream import MessageChange
from millstream.doctor import examine
from tests.crash import consumer

pytestmark = [pytest.mark.crash, pytest.mark.slow]

MESSAGES = 400
GROUPS = 12
KILLS = 8
KINDS: dict[str, dict[str, Any]] = {
    "plain": {},
    "ordered": {"group_by": "group"},
    "fair": {"group_by": "group", "group_in_flight": 0},
    "priority": {"priority_by": "priority"},
    "changes": {"changes": "changes"},
}


@pytest.fixture
def seed() -> int:
    chosen = int(os.environ["MILLSTREAM_SEED"])
    print(f"replay with MILLSTREAM_SEED={chosen}")  # shown by pytest if the test fails
    return chosen


@pytest.mark.parametrize("kind", KINDS)
def test_consumers_that_are_killed_lose_and_double_nothing(
    tmp_path: Path, seed: int, kind: str
) -> None:
    path = tmp_path / "store.db"
    chance = random.Random(f"{seed}.{kind}")
    with millstream.open(path) as ms:
        ms.queue(
            "jobs",
            sources="events",
            bucket_exponent=1,
            max_attempts=1_000,
            backoff=0,
            **KINDS[kind],
        )
        for start in range(0, MESSAGES, 20):
            numbers = range(start, start + 20)
            ms.log("events").append_many(
                [f"m{number}" for number in numbers],
                headers=[{"group": f"g{n % GROUPS}", "priority": n % 10} for n in numbers],
            )
    heard = _killed(path, seed, chance)
    with millstream.open(path) as ms:
        queue = ms.queue("jobs")
        rest = []
        while True:
            info = queue.info()
            assert info is not None
            if info.done == MESSAGES:
                break
            found = queue.claim(50, lease=30, wait=5, consumer="last")
            assert found, f"nothing comes any more, though only {info.done} are done"
            queue.ack(found)
            rest += [("acked", m.claim_id, m.attempt, m.text) for m in found]
            rest += [("held", m.claim_id, m.attempt, m.text) for m in found]
    facts = heard + rest
    held = Counter(fact[1:3] for fact in facts if fact[0] == "held")
    acked = Counter(fact[3] for fact in facts if fact[0] == "acked")
    assert max(held.values()) == 1, "an attempt was given out twice"
    assert max(acked.values()) == 1, "an acknowledgement was accepted twice"
    if "changes" in KINDS[kind]:
        _changes_are_told_once(path, held, acked)
    report = examine(path)
    assert report.healthy, report.problems


def _changes_are_told_once(path: Path, held: Counter[tuple[Any, ...]], acked: Counter[str]) -> None:
    with millstream.open(path) as ms:
        told = list(ms.log("changes").read(type=MessageChange))
    claimed = Counter((each.message, each.attempt) for each in told if each.change == "claimed")
    ended = Counter((each.message, each.attempt) for each in told if each.attempt) - claimed
    assert max(claimed.values()) == 1
    assert held.keys() <= claimed.keys()
    assert ended == claimed, "each claim has one end"
    assert Counter(each.change for each in told)["put"] == MESSAGES
    done = {each.log_offset for each in told if each.change == "done"}
    assert done == set(range(MESSAGES)) >= {int(text[1:]) for text in acked}


def _killed(path: Path, seed: int, chance: random.Random) -> list[tuple[str, int, int, str]]:
    """What consumers said until they were killed."""
    environment = {**os.environ, "PYTHONPATH": str(Path(millstream.__file__).parents[1])}
    facts: list[tuple[str, int, int, str]] = []
    running: list[subprocess.Popen[str]] = []
    for number in range(KILLS):
        while len(running) < 2:
            name = f"c{number}.{len(running)}"
            running.append(
                subprocess.Popen(
                    [sys.executable, consumer.__file__, path, name, str(seed)],
                    stdout=subprocess.PIPE,
                    text=True,
                    env=environment,
                )
            )
        victim = running.pop(0)
        assert victim.stdout is not None
        for _ in range(chance.randint(1, 60)):
            line = victim.stdout.readline()
            if not line:
                break
            facts.append(_fact(line))
        victim.kill()
        facts += [_fact(line) for line in victim.stdout if line.endswith("\n")]
        victim.stdout.close()
        victim.wait()
    for process in running:
        process.kill()
        assert process.stdout is not None
        facts += [_fact(line) for line in process.stdout if line.endswith("\n")]
        process.stdout.close()
        process.wait()
    return facts


def _fact(line: str) -> tuple[str, int, int, str]:
    what, claim_id, attempt, text = line.split()
    return what, int(claim_id), int(attempt), text
