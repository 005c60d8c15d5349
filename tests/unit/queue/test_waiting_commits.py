"""A claim that waits is made by the commit that brings its messages, whichever thread commits."""

from __future__ import annotations

import multiprocessing
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

import millstream
from millstream import Millstream
from millstream.engine.memory.engine import MemoryEngine
from millstream.engine.memory.faults import Faults, Pause
from millstream.errors import Conflict, WriteFailed
from millstream.queue.commands import ClaimMessages
from millstream.queue.service.thread_lines import ThreadLines, WaitingThread
from millstream.store.commit.ticket import Ticket
from millstream.testing import Probe, SimulatedClock, memory_store
from millstream.threads.queue import Queue

from .conftest import counts, values
from .lining import until_standing

LONG_S = 120

Ask = Callable[..., Future[Any]]


@pytest.fixture
def ask() -> Iterator[Ask]:
    with ThreadPoolExecutor(4) as pool:
        yield pool.submit


@pytest.fixture
def here() -> Iterator[Millstream]:
    """A store in memory; the claims of threads wait in its own process."""
    with memory_store() as found:
        yield found


def commits(ms: Millstream) -> int:
    found: int = ms.stats()["commits"]
    return found


def jobs(ms: Millstream, **spec: Any) -> Queue:
    return ms.queue("jobs", sources="events", start="earliest", lease=60, **spec)


@pytest.mark.parametrize("source", ["log", "batch", "queue"])
def test_one_commit_brings_a_message_and_claims_it(here: Millstream, ask: Ask, source: str) -> None:
    queue, log = jobs(here), here.log("events")
    log.append(b"first")
    queue.ack(queue.claim(1))
    waiting = ask(queue.claim, 1, wait=LONG_S)
    until_standing(here, 1)
    before = commits(here)

    if source == "log":
        log.append(b"a")
    elif source == "batch":
        log.append_many([b"a"])
    else:
        queue.put(b"a")

    [message] = waiting.result(LONG_S / 2)
    assert message.value == b"a"
    assert message.attempt == 1
    assert commits(here) == before + 1
    assert counts(queue) == {"in_flight": 1, "done": 1}
    queue.ack(message)
    assert counts(queue) == {"done": 2}


@pytest.mark.parametrize("batch", [1, 3])
def test_one_commit_brings_messages_with_priorities_and_claims_the_best(
    here: Millstream, ask: Ask, batch: int
) -> None:
    queue = here.queue("jobs", lease=60, priority_by="p")
    waiting = ask(queue.claim, 1, wait=LONG_S)
    until_standing(here, 1)
    before = commits(here)
    queue.put_many([str(n) for n in range(batch)], headers=[{"p": n} for n in range(batch)])
    [message] = waiting.result(LONG_S / 2)
    assert commits(here) == before + 1
    assert message.text == str(batch - 1)
    assert [m.text for m in queue.claim(3)] == [str(n) for n in reversed(range(batch - 1))]


def test_a_pop_is_done_by_the_commit_that_brings_its_message(here: Millstream, ask: Ask) -> None:
    queue = jobs(here)
    waiting = ask(queue.pop, 1, wait=LONG_S)
    until_standing(here, 1)
    before = commits(here)
    here.log("events").append(b"a")
    assert values(waiting.result(LONG_S / 2)) == [b"a"]
    assert commits(here) == before + 1
    assert counts(queue) == {"done": 1}


def test_those_behind_in_the_line_wait_on(here: Millstream, ask: Ask) -> None:
    queue, log = jobs(here), here.log("events")
    claims = []
    for count in (1, 2, 3):
        claims.append(ask(queue.claim, 1, wait=LONG_S))
        until_standing(here, count)
    for number, waiting in enumerate(claims):
        log.append(b"%d" % number)
        assert values(waiting.result(LONG_S / 2)) == [b"%d" % number]
        until_standing(here, len(claims) - number - 1)


def test_a_batch_serves_all_that_wait(here: Millstream, ask: Ask) -> None:
    queue = jobs(here)
    claims = []
    for count in (1, 2, 3):
        claims.append(ask(queue.claim, 1, wait=LONG_S))
        until_standing(here, count)
    here.log("events").append_many([b"0", b"1", b"2"])
    found = [value for waiting in claims for value in values(waiting.result(LONG_S / 2))]
    assert sorted(found) == [b"0", b"1", b"2"]


def test_an_append_that_is_refused_brings_nothing(here: Millstream, ask: Ask) -> None:
    queue, log = jobs(here), here.log("events")
    waiting = ask(queue.claim, 1, wait=LONG_S)
    until_standing(here, 1)
    with pytest.raises(Conflict):
        log.append(b"a", expect_end=7)
    until_standing(here, 1)
    log.append(b"b")
    assert values(waiting.result(LONG_S / 2)) == [b"b"]


def test_a_commit_that_fails_brings_nothing(ask: Ask) -> None:
    faults = Faults()
    with memory_store(MemoryEngine(faults=faults)) as ms:
        queue, log = jobs(ms), ms.log("events")
        log.append(b"first")
        queue.ack(queue.claim(1))
        waiting = ask(queue.claim, 1, wait=LONG_S)
        until_standing(ms, 1)
        faults.on("begin", WriteFailed("no"))
        with pytest.raises(WriteFailed):
            log.append(b"a")
        until_standing(ms, 1)
        log.append(b"b")
        assert values(waiting.result(LONG_S / 2)) == [b"b"]


def test_a_claim_whose_time_is_up_while_its_message_is_on_its_way_gets_it(ask: Ask) -> None:
    faults, clock = Faults(), SimulatedClock()
    with memory_store(MemoryEngine(faults=faults), clock=clock) as ms:
        queue, log = jobs(ms), ms.log("events")
        log.append(b"first")
        queue.ack(queue.claim(1))
        waiting = ask(queue.claim, 1, wait=LONG_S)
        until_standing(ms, 1)
        with Pause() as pause:
            faults.on("sent", pause)
            appending = ask(log.append, b"a")
            pause.wait_until_reached()
            clock.advance(2 * LONG_S)
        appending.result(LONG_S)
        assert values(waiting.result(LONG_S)) == [b"a"]
        assert counts(queue) == {"in_flight": 1, "done": 1}


@pytest.mark.parametrize("is_early", [True, False])
def test_what_a_commit_brings_a_claim_that_has_left_goes_back(
    here: Millstream, *, is_early: bool
) -> None:
    queue, store = jobs(here), Probe(here).store
    here.log("events").append(b"a")
    waiter = WaitingThread(ThreadLines(store), ClaimMessages("jobs", 1, None, "", 0, []))
    claim = waiter.claim()
    if is_early:
        waiter.leave()
    store.run(lambda tx: setattr(claim, "result", claim.operation(tx)))
    assert counts(queue) == {"in_flight": 1}
    claim.done = True
    claim.wake()
    waiter.leave()

    [again] = queue.claim(1, wait=LONG_S)
    assert again.value == b"a"


def test_a_claim_that_was_never_told_its_outcome_looks_itself(
    here: Millstream, ask: Ask, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue = jobs(here)
    arriving = ThreadLines.claims_for

    def interrupted(lines: ThreadLines, group: list[Ticket[Any]]) -> list[Ticket[Any]]:
        arriving(lines, group)
        return []

    monkeypatch.setattr(ThreadLines, "claims_for", interrupted)
    waiting = ask(queue.claim, 1, wait=LONG_S)
    until_standing(here, 1)
    here.log("events").append(b"a")
    assert values(waiting.result(LONG_S / 2)) == [b"a"]


@pytest.mark.skipif(sys.platform == "win32", reason="no forks there")
def test_a_child_process_claims_nothing_for_a_claim_that_waits_in_its_parent(
    tmp_path: Path, ask: Ask
) -> None:
    with millstream.open(tmp_path / "a.db", durability="relaxed") as ms:
        queue = jobs(ms)
        waiting = ask(queue.claim, 1, wait=LONG_S)
        until_standing(ms, 1)
        child = multiprocessing.get_context("fork").Process(target=_append_in_child, args=(ms,))
        child.start()
        assert values(waiting.result(LONG_S)) == [b"a"]
        child.join(LONG_S)
        assert child.exitcode == 0


def _append_in_child(ms: Millstream) -> None:
    assert not Probe(ms).store.listeners.group
    ms.log("events").append(b"a")
