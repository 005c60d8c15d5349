"""Following: a sync that goes on, woken by what happens in either store."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import pytest

import millstream
import millstream.errors
from millstream import Millstream, aio
from millstream.errors import ForkDetected
from millstream.replica.sync.follow import PAUSE_S_MAX, Pace, WaitForChange
from millstream.replica.sync.outcome import LogOutcome, Outcome
from tests.unit.replica.copies import records, values

PATIENCE_S = 30.0


@pytest.fixture
def files(tmp_path: Path) -> Iterator[tuple[Millstream, Millstream]]:
    with millstream.open(tmp_path / "a.db") as a, millstream.open(tmp_path / "b.db") as b:
        yield a, b


@contextmanager
def following(own: Millstream, peer: Any, **options: Any) -> Iterator[list[Outcome]]:
    """Follow on another thread, until the block ends."""
    stop, told = threading.Event(), []

    def work() -> None:
        for outcome in own.follow(peer, stop=stop, **options):
            told.append(outcome)

    thread = threading.Thread(target=work)
    thread.start()
    try:
        yield told
    finally:
        stop.set()
        thread.join(PATIENCE_S)
        assert not thread.is_alive()


@pytest.mark.parametrize("direction", ["both", "push", "pull"])
def test_what_is_appended_arrives_by_itself(
    files: tuple[Millstream, Millstream], direction: str
) -> None:
    own, peer = files
    giver, taker = (peer, own) if direction == "pull" else (own, peer)
    giver.log("x").append(b"0")
    with following(own, peer, direction=direction) as told:
        for n in range(1, 4):
            assert taker.log("x").wait(n - 1, timeout=PATIENCE_S)
            assert values(taker, "x")[-1] == b"%d" % (n - 1)
            giver.log("x").append(b"%d" % n)
        assert taker.log("x").wait(3, timeout=PATIENCE_S)
    assert records(own, "x") == records(peer, "x")
    assert sum(outcome.pulled + outcome.pushed for outcome in told) == 4


def test_commits_of_other_processes_wake_it_too(tmp_path: Path) -> None:
    with (
        millstream.open(tmp_path / "a.db") as a,
        millstream.open(tmp_path / "a.db") as again,
        millstream.open(tmp_path / "b.db") as b,
        following(a, b, direction="push"),
    ):
        again.log("x").append(b"1")
        assert b.log("x").wait(0, timeout=PATIENCE_S)


def test_it_tells_of_a_first_round_without_news(files: tuple[Millstream, Millstream]) -> None:
    own, peer = files
    first = next(iter(own.follow(peer)))
    assert (first.looked_at, first.logs) == (0, [])


def test_a_log_that_cannot_be_brought_together_does_not_end_it(
    files: tuple[Millstream, Millstream],
) -> None:
    own, peer = files
    own.log("bad").append(b"1")
    peer.log("bad").append(b"2")
    with pytest.raises(ForkDetected):
        own.sync(peer)
    with following(own, peer) as told:
        own.log("good").append(b"1")
        assert peer.log("good").wait(0, timeout=PATIENCE_S)
    assert [one.log for one in told[0].failed] == ["bad"]


def test_rounds_without_news_come_further_apart() -> None:
    pace = Pace()
    failed = LogOutcome(log="x", error="it differs")
    assert pace.tells(Outcome(peer="p"))
    assert not pace.tells(Outcome(peer="p"))
    for _ in range(20):
        pace.tells(Outcome(peer="p"))
    assert pace.seconds == PAUSE_S_MAX
    assert pace.tells(Outcome(peer="p", logs=[failed]))
    assert not pace.tells(Outcome(peer="p", logs=[failed]))
    assert pace.seconds == PAUSE_S_MAX
    for _ in range(2):
        assert pace.tells(Outcome(peer="p", logs=[failed, LogOutcome(log="y", pushed=1)]))
    assert pace.seconds < PAUSE_S_MAX


def test_a_wait_is_bounded(files: tuple[Millstream, Millstream]) -> None:
    own, _ = files
    now = own.session.execute(WaitForChange(0, 10**9))
    assert own.session.execute(WaitForChange(now, 20)) == now
    assert own.session.execute(WaitForChange(now, -5)) == now


# For coroutines.


@asynccontextmanager
async def opened(tmp_path: Path) -> AsyncIterator[tuple[aio.Millstream, aio.Millstream]]:
    async with await aio.open(tmp_path / "a.db") as a, await aio.open(tmp_path / "b.db") as b:
        yield a, b


def in_loop(work: Callable[[], Any]) -> None:
    asyncio.run(asyncio.wait_for(work(), PATIENCE_S))


def test_coroutines_sync_as_threads_do(tmp_path: Path) -> None:
    async def work() -> None:
        async with opened(tmp_path) as (a, b):
            await a.log("x").append_many([b"1", b"2"])
            await b.log("y").append(b"3")
            outcome = await a.sync(b)
            assert (outcome.pulled, outcome.pushed) == (1, 2)
            assert (await a.sync(b)).logs == []
            await a.log("bad").append(b"1")
            await b.log("bad").append(b"2")
            with pytest.raises(ForkDetected):
                await a.sync(b)
            outcome = await a.sync(tmp_path / "c.db", direction="push", logs="x", create=True)
            assert outcome.pushed == 2
            with pytest.raises(millstream.errors.InvalidInput):
                await a.sync(5)  # type: ignore[arg-type]

    in_loop(work)


def test_coroutines_follow_as_threads_do(tmp_path: Path) -> None:
    async def work() -> None:
        async with opened(tmp_path) as (a, b):
            stop = asyncio.Event()

            async def follow() -> int:
                total = 0
                async for outcome in a.follow(b, stop=stop):
                    total += outcome.pushed
                return total

            task = asyncio.create_task(follow())
            for n in range(3):
                await a.log("x").append(b"%d" % n)
                assert await b.log("x").wait(n, timeout=PATIENCE_S)
            stop.set()
            assert await task == 3

    in_loop(work)
