"""A cluster without a quorum for a while: its clients wait with pauses, and nothing is done twice."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import millstream
from millstream import aio
from millstream.errors import NoQuorum
from tests.unit.remote.conftest import Call
from tests.unit.remote.refusing import Pair, paired

AWAY = 4
"""How many writes find no quorum."""


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[Pair]:
    with paired(tmp_path / "s.db") as pair:
        yield pair


def lose_quorum(pair: Pair, *, writes: int = AWAY) -> None:
    """The next writes at the first node find no quorum."""
    engine = pair.engines[0]
    last = engine.writes + writes
    engine.lacks_quorum = lambda number: number <= last


def test_every_write_of_a_thread_waits_for_the_quorum_and_is_done_once(pair: Pair) -> None:
    with millstream.open(pair.servers[0].url) as ms:
        queue = ms.create_queue("q")
        lose_quorum(pair)
        assert ms.log("a").append(b"0") == 0
        lose_quorum(pair)
        queue.put(b"work")
        lose_quorum(pair)
        (message,) = queue.claim(1)
        lose_quorum(pair)
        queue.ack(message)
        lose_quorum(pair)
        with ms.transaction() as tx:
            tx.append("a", b"1")
            tx.append("b", b"1")
        assert pair.engines[0].refusals >= 5 * AWAY
        assert [one.value for one in ms.log("a").read()] == [b"0", b"1"]
        assert queue.info().done == 1


async def test_every_write_of_a_coroutine_waits_for_the_quorum(pair: Pair) -> None:
    async with await aio.open(pair.servers[0].url) as ms:
        queue = await ms.create_queue("q")
        lose_quorum(pair)
        assert await ms.log("a").append(b"0") == 0
        lose_quorum(pair)
        await queue.put(b"work")
        lose_quorum(pair)
        (message,) = await queue.claim(1, wait=30)
        lose_quorum(pair)
        await queue.ack(message)
        assert pair.engines[0].refusals >= 4 * AWAY
        assert [one.value async for one in ms.log("a").read()] == [b"0"]


def test_a_claim_that_waits_outlasts_a_lost_quorum(pair: Pair) -> None:
    with millstream.open(pair.servers[0].url) as ms:
        queue = ms.create_queue("q")
        queue.put(b"work")
        lose_quorum(pair)
        assert [one.value for one in queue.claim(1, wait=30)] == [b"work"]


def test_the_caller_is_told_at_the_end_and_the_server_was_not_stormed(pair: Pair) -> None:
    with millstream.open(pair.servers[0].url, retry_for=1.0) as ms:
        ms.log("a").append(b"0")
        lose_quorum(pair, writes=1_000)
        for work in (
            lambda: ms.log("a").append(b"1"),
            lambda: ms.log("b").append(b"1"),
        ):
            before = pair.engines[0].refusals
            with pytest.raises(NoQuorum):
                work()
            assert 1 <= pair.engines[0].refusals - before <= 8  # once if the first takes a second
        pair.engines[0].lacks_quorum = lambda number: False
        assert ms.log("a").append(b"1") == 1
        assert [one.value for one in ms.log("a").read()] == [b"0", b"1"]


def test_a_claim_that_waits_is_told_as_well(pair: Pair) -> None:
    with millstream.open(pair.servers[0].url, retry_for=0.5) as ms:
        queue = ms.create_queue("q")
        queue.put(b"work")
        lose_quorum(pair, writes=1_000)
        with pytest.raises(NoQuorum):
            queue.claim(1, wait=3600)


def test_reads_go_on_without_a_quorum(pair: Pair) -> None:
    with millstream.open(pair.servers[0].url) as ms:
        ms.log("a").append(b"0")
        lose_quorum(pair, writes=1_000)
        assert [one.value for one in ms.log("a").read()] == [b"0"]


def lose_write(pair: Pair, at: int, *, writes: int = 2) -> None:
    """Some writes find no quorum, the first of them after `at` more."""
    engine = pair.engines[0]
    first = engine.writes + 1 + at
    engine.lacks_quorum = lambda number: first <= number < first + writes


@pytest.mark.parametrize("at", range(4))
@pytest.mark.parametrize("pop", [False, True])
def test_a_claim_of_several_commits_is_done_once_whichever_of_them_finds_no_quorum(
    pair: Pair, at: int, pop: bool
) -> None:
    """What was acknowledged with it is not acknowledged again, and what it popped is not lost."""
    url = pair.servers[0].url
    with millstream.open(url) as ms, millstream.open(url) as other:
        queue = ms.create_queue("q", sources="l", filter="n > 0")
        for n in range(40):
            ms.log("l").append(b"%d" % n, headers={"n": n % 2})
        held = queue.claim(3)
        lose_write(pair, at)
        if pop:
            queue.ack(held)
            seen = [one.value for one in queue.pop(100)]
        else:
            taken = queue.claim(100, ack=held)
            queue.ack(taken)
            seen = [one.value for one in taken]
        pair.engines[0].lacks_quorum = lambda number: False
        seen += [one.value for one in held]
        seen += [one.value for one in other.queue("q").pop(100)]
        assert sorted(seen, key=int) == [b"%d" % n for n in range(1, 40, 2)]
        assert queue.info().in_flight == 0


@pytest.mark.parametrize("at", range(3))
def test_what_was_acknowledged_with_a_claim_that_waits_is_acknowledged_once(
    pair: Pair, at: int
) -> None:
    url = pair.servers[0].url
    with millstream.open(url) as ms, millstream.open(url) as other:
        queue = ms.create_queue("q")
        queue.put(b"first")
        held = queue.claim(1)
        lose_write(pair, at, writes=1)
        asked = Call(lambda: queue.claim(1, ack=held, wait=30))
        other.queue("q").put(b"second")
        (message,) = asked.result()
        assert message.value == b"second"
        assert queue.info().done == 1
