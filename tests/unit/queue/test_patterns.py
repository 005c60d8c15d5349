"""Patterns: any number of logs behind a queue, and no more work than there is news."""

from __future__ import annotations

from typing import Any

import pytest

import millstream
from millstream import Limits, Millstream
from millstream.format import keys
from millstream.queue.rules import sources
from millstream.queue.rules.sources import facts_of
from millstream.queue.service.bulk_reads import ListPositions
from millstream.store.state.state import State
from millstream.testing import Probe
from millstream.threads.queue import Queue

from .conftest import Reopen, counts, fold_all, upkeep, values

MANY = 1_003
KINDS: dict[str, dict[str, Any]] = {
    "plain": {},
    "grouped": {"group_by": "g", "group_in_flight": 0},
    "ranked": {"priority_by": "p"},
    "without repeats": {"dedup_by": "n"},
}


def fill(ms: Millstream, count: int, prefix: str = "dev") -> None:
    """One record in each of many logs."""
    for start in range(0, count, 500):
        with ms.transaction() as tx:
            for number in range(start, min(count, start + 500)):
                tx.append(f"{prefix}.{number:06}", b"%d" % number, headers={"n": number})


def drain(queue: Queue) -> list[bytes]:
    found = []
    while more := queue.claim(1_000):
        found += values(more)
        queue.ack(more)
    return found


def store_of(ms: Millstream) -> Any:
    return Probe(ms).store


@pytest.mark.embedded
@pytest.mark.parametrize("kind", KINDS)
def test_every_log_is_found(reopen: Reopen, kind: str) -> None:
    ms = reopen(Limits(entities_cached_max=500))
    queue = ms.queue("jobs", sources="dev.*", **KINDS[kind])
    fill(ms, MANY)
    info = queue.info()
    assert info is not None
    assert info.available + info.unrouted == MANY
    assert sorted(map(int, drain(queue))) == list(range(MANY))
    ms.log("dev.zzz").append(b"-1")
    ms.log("dev.000000").append(b"-2")
    ms.log("other").append(b"")
    assert drain(queue) == [b"-1", b"-2"] or kind != "plain"
    assert len(ms.session.execute(ListPositions("jobs"))) == MANY + 1
    queue = reopen().queue("jobs")
    assert drain(queue) == []
    assert counts(queue) == {"done": MANY + 2}


@pytest.mark.embedded
def test_names_that_do_not_match_are_in_nobodys_way(ms: Millstream) -> None:
    queue = ms.queue("jobs", sources="dev.*.last")
    fill(ms, MANY)
    ms.log("dev.zzz.last").append(b"z")
    assert drain(queue) == [b"z"]


@pytest.mark.embedded
def test_bytes_of_the_last_log_are_kept_and_let_go(ms: Millstream, clock: Any) -> None:
    queue = ms.queue("jobs", sources="dev.*")
    fill(ms, MANY)
    last = ms.log(f"dev.{MANY - 1:06}")
    last.truncate(before=1)
    last.enforce_retention()
    info = last.info()
    assert info is not None
    assert info.bytes
    assert len(drain(queue)) == MANY
    fold_all(ms)
    clock.advance(10)
    last.enforce_retention()
    upkeep(ms)
    info = last.info()
    assert info is not None
    assert info.bytes == 0


def asked_for(ms: Millstream, monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    """The names and heads that are asked for from now on, not by the background."""
    Probe(ms).pause_keeper()
    found: list[bytes] = []
    entity, find = State.entity, State.find

    def watched(self: State, key: bytes, snapshot: Any) -> Any:
        if key[1] in (keys.NAME, keys.HEAD):
            found.append(key)
        return entity(self, key, snapshot)

    def searched(self: State, start: bytes, stop: bytes, snapshot: Any, *, limit: int) -> Any:
        assert start[1] != keys.NAME, "names were searched"
        return find(self, start, stop, snapshot, limit=limit)

    monkeypatch.setattr(State, "entity", watched)
    monkeypatch.setattr(State, "find", searched)
    return found


@pytest.mark.embedded
@pytest.mark.parametrize("kind", KINDS)
def test_only_what_is_new_is_looked_at(
    ms: Millstream, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    queue = ms.queue("jobs", sources="dev.*", **KINDS[kind])
    fill(ms, 300)
    assert len(drain(queue)) == 300
    found = asked_for(ms, monkeypatch)
    assert queue.claim(1) == []
    assert queue.exists()
    assert len(found) < 30
    ms.log("dev.000007").append(b"new")
    assert values(queue.claim(1)) == [b"new"]
    ms.log("dev.new").append(b"newer")
    assert values(queue.claim(1)) == [b"newer"]
    assert len(found) < 120


@pytest.mark.embedded
def test_logs_that_go_and_come_again(ms: Millstream) -> None:
    queue = ms.queue("jobs", sources=["dev.*", "more.?"])
    fill(ms, 3)
    assert len(drain(queue)) == 3
    ms.log("dev.000001").delete()
    assert drain(queue) == []
    ms.log("dev.000001").append(b"again")
    ms.log("more.1").append(b"more")
    ms.log("more.12").append(b"not this one")
    assert sorted(drain(queue)) == [b"again", b"more"]
    ms.queue("jobs").alter(sources=["other.*"])
    ms.log("dev.000002").append(b"nobody's")
    ms.log("other.1").append(b"new")
    assert drain(queue) == [b"new"]
    queue.delete()
    queue = ms.queue("jobs", sources="dev.*")
    ms.log("dev.000002").append(b"mine")
    assert drain(queue) == [b"mine"]


def test_what_another_handle_does_is_seen(reopen: Reopen, tmp_path: Any, clock: Any) -> None:
    ms = reopen()
    queue = ms.queue("jobs", sources="dev.*")
    assert drain(queue) == []
    path = tmp_path / "store.db"
    with millstream.open(path, clock=clock, durability="relaxed") as other:
        for number in range(3):
            fill(other, 5, f"dev.{number}")
            other.fold()
            assert len(drain(queue)) == 5
            other.log("dev.0.000001").append(b"more")
            assert drain(queue) == [b"more"]
            assert drain(other.queue("jobs")) == []


@pytest.mark.embedded
def test_a_plain_queue_is_told_some_logs_at_a_time(ms: Millstream) -> None:
    queue = ms.queue("jobs", sources="dev.*")
    fill(ms, sources.SOURCES_PER_LOOK + 20)
    assert queue.claim(0) == []
    facts = store_of(ms).view(lambda view: facts_of(view, "jobs"))
    assert len(facts.sources) == sources.SOURCES_PER_LOOK
    assert not facts.partial
    assert len(drain(queue)) == sources.SOURCES_PER_LOOK + 20
