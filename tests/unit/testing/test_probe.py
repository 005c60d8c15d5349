"""The probe looks behind handles of threads and of coroutines, in a file and in memory."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import millstream
from millstream import aio
from millstream.errors import CorruptionError, InvalidInput
from millstream.format import keys
from millstream.server.serving import running
from millstream.server.settings import Settings
from millstream.store.store import Store
from millstream.testing import Probe, SimulatedClock
from millstream.testing.probe import lines_of

PATIENCE_S = 30


@pytest.fixture(params=["file", "memory"])
def ms(
    request: pytest.FixtureRequest, tmp_path: Path, clock: SimulatedClock
) -> Iterator[millstream.Millstream]:
    place = ":memory:" if request.param == "memory" else tmp_path / "a.db"
    with millstream.open(place, clock=clock) as one:
        yield one


def test_upkeep_is_done_when_it_is_asked_for(
    ms: millstream.Millstream, clock: SimulatedClock
) -> None:
    probe = Probe(ms)
    probe.pause_keeper()
    log = ms.log("x")
    log.append(b"old")
    log.retain(age=60)
    clock.advance(3_600)
    log.append(b"new")
    assert log.start_offset() == 0
    probe.upkeep()
    assert log.start_offset() == 1


def test_a_pause_ends_with_its_block_and_all_pauses_have_to_end() -> None:
    clock = SimulatedClock()
    with millstream.open(":memory:", clock=clock) as ms:
        probe, log = Probe(ms), ms.log("x")
        log.append(b"old")
        log.retain(age=60)
        with probe.pause_keeper():
            with probe.pause_keeper():
                clock.advance(3_600)
                log.append(b"new")
            assert log.start_offset() == 0
        pause = threading.Event()
        for _ in range(PATIENCE_S * 1_000):
            if log.start_offset() == 1:
                return
            pause.wait(0.001)
        pytest.fail("the keeper does not go on")


def test_rows_are_seen_whether_they_are_folded_or_not(ms: millstream.Millstream) -> None:
    probe, log = Probe(ms), ms.log("x")
    probe.pause_keeper()
    for n in range(2):
        log.append(b"%d" % n)
    assert len(probe.rows(keys.ENTRY)) == 2
    assert sorted(probe.rows(keys.PAYLOAD).values()) == [b"0", b"1"]
    ms.fold()  # of all but the newest commit
    log.append(b"2")
    assert sorted(probe.rows(keys.PAYLOAD).values()) == [b"0", b"1", b"2"]
    assert probe.rows(keys.MARKS) == {}


def test_a_damaged_row_is_noticed(ms: millstream.Millstream) -> None:
    probe, log = Probe(ms), ms.log("x")
    log.append(b"value")
    log.append(b"so that there is a newer commit")
    (first, _) = sorted(probe.rows(keys.PAYLOAD))
    ms.fold()
    probe.damage(first)
    with pytest.raises(CorruptionError):
        list(log.read())
    with pytest.raises(InvalidInput, match=r"no row .* to damage"):
        probe.damage(keys.payload(999))


def test_no_commit_begins_while_commits_are_held(ms: millstream.Millstream) -> None:
    log = ms.log("x")
    writer = threading.Thread(target=log.append, args=(b"x",))
    with Probe(ms).hold_commits():
        writer.start()
        writer.join(0.05)
        assert writer.is_alive()
        assert ms.stats()["commits"] == 1, "the one that made the store"
    writer.join(PATIENCE_S)
    assert log.end_offset() == 1


def test_waiting_claims_of_threads_are_counted(ms: millstream.Millstream) -> None:
    probe, queue = Probe(ms), ms.create_queue("jobs", lease=60)
    assert (probe.waiting(), probe.claims_waiting("jobs")) == (0, 0)
    callers = [threading.Thread(target=queue.claim, kwargs={"wait": 60}) for _ in range(3)]
    for caller in callers:
        caller.start()
    probe.until(lambda: probe.claims_waiting("jobs") == 3)
    assert probe.claims_waiting("others") == 0
    assert probe.waiting() > 0
    (lines,) = lines_of(probe.store)
    assert lines.count("jobs") == 3
    queue.put_many([b"x"] * 3)
    for caller in callers:
        caller.join(PATIENCE_S)
    assert (probe.waiting(), probe.claims_waiting("jobs")) == (0, 0)


def test_a_commit_of_another_thread_is_told_of(ms: millstream.Millstream) -> None:
    probe, log, asked = Probe(ms), ms.log("x"), threading.Event()
    probe.pause_keeper()
    appending = threading.Thread(target=lambda: asked.wait(PATIENCE_S) and log.append(b"a"))
    appending.start()

    def is_there() -> bool:
        found = log.end_offset() == 1
        asked.set()  # it is asked a second time because it was told of
        return found

    probe.until(is_there)
    appending.join(PATIENCE_S)
    assert log.end_offset() == 1


def test_what_never_comes_is_given_up(ms: millstream.Millstream) -> None:
    asked: list[bool] = []

    def never() -> bool:
        asked.append(False)
        return False

    with pytest.raises(TimeoutError, match=r"not so within 0\.01 s"):
        Probe(ms).until(never, timeout_s=0.01)
    assert asked
    before = len(asked)
    ms.log("x").append(b"a")
    assert len(asked) == before, "it is asked no more"

    async def never_async() -> bool:
        return never()

    with pytest.raises(TimeoutError, match=r"not so within 0\.01 s"):
        asyncio.run(Probe(ms).until_async(never_async, timeout_s=0.01))


def test_a_wait_for_a_log_is_told_of_when_it_begins_and_ends(tmp_path: Path) -> None:
    async def test() -> None:
        async with await aio.open(tmp_path / "a.db") as ms:
            probe, log = Probe(ms), ms.log("x")
            first = asyncio.create_task(log.wait(0))
            await probe.until_async(lambda: probe.waiting() == 1)
            second = asyncio.create_task(log.wait(0))  # it shares the watch of the first
            await probe.until_async(lambda: probe.waiting() == 2)
            second.cancel()
            await probe.until_async(lambda: probe.waiting() == 1)
            await log.append(b"a")
            assert await first

    asyncio.run(test())


def test_a_handle_of_coroutines_is_probed_alike(tmp_path: Path) -> None:
    async def test() -> None:
        async with await aio.open(tmp_path / "a.db") as ms:
            probe = Probe(ms)
            with probe.pause_keeper():
                await ms.log("x").append(b"a")
                assert list(probe.rows(keys.PAYLOAD).values()) == [b"a"]
                probe.upkeep()
            queue = await ms.create_queue("jobs", lease=60)
            claim = asyncio.create_task(queue.claim(wait=60))
            await probe.until_async(lambda: probe.claims_waiting("jobs") == 1)
            await queue.put(b"x")
            assert [one.value for one in await claim] == [b"x"]

    asyncio.run(test())


def test_a_store_can_be_handed_in_itself(ms: millstream.Millstream) -> None:
    store: Any = Probe(ms).store
    assert isinstance(store, Store)
    assert Probe(store).store is store


def test_a_handle_to_a_server_is_refused_with_words(tmp_path: Path) -> None:
    with (
        running(tmp_path / "a.db", Settings(port=0, stop_s=1.0)) as server,
        millstream.open(server.url) as ms,
        pytest.raises(InvalidInput, match=r"open in this process.*leads elsewhere; open its file"),
    ):
        Probe(ms)


def test_the_test_kit_needs_no_pytest() -> None:
    code = "import sys, millstream.testing; assert 'pytest' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)
