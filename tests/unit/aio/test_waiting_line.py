"""Many coroutines that wait for one queue: one look per change, joint commits, nothing lost."""

from __future__ import annotations

import asyncio
import random
import threading
from pathlib import Path
from typing import Any

import pytest

from millstream import Millstream, aio
from millstream.aio.queue import Queue
from millstream.embedded.loop.session import AsyncEmbeddedSession
from millstream.embedded.session import EmbeddedSession, open_store
from millstream.errors import Closed, NotFound, OutcomeUnknown, Recovering, WriteFailed
from millstream.store.commit.gather import KEPT
from millstream.testing import Faults, MemoryEngine, Probe, SimulatedClock, Torn

LONG_S = 60
MANY = 100
SEEDS = range(15)


async def until_standing(ms: aio.Millstream, count: int) -> None:
    """Let the others run until so many wait, and all is quiet."""
    probe = Probe(ms)
    await probe.until_async(lambda: probe.claims_waiting("jobs") == count)


async def waiting(ms: aio.Millstream, queue: Queue, count: int = MANY) -> list[asyncio.Task[Any]]:
    """Claims of one message each, in line."""
    found = [asyncio.create_task(queue.claim(1, wait=LONG_S)) for _ in range(count)]
    await until_standing(ms, count)
    return found


async def in_order(ms: aio.Millstream, queue: Queue, count: int) -> list[asyncio.Task[Any]]:
    """The same, and each stands before the next one comes."""
    found: list[asyncio.Task[Any]] = []
    while len(found) < count:
        found.append(asyncio.create_task(queue.claim(1, wait=LONG_S)))
        await until_standing(ms, len(found))
    return found


async def operations(ms: aio.Millstream) -> int:
    found: int = (await ms.stats())["operations"]
    return found


async def test_a_message_costs_one_look_and_goes_to_one(tmp_path: Path) -> None:
    async with await aio.open(tmp_path / "a.db") as ms:
        queue = await ms.create_queue("jobs", lease=60)
        claims = await waiting(ms, queue)
        before = await operations(ms)

        await queue.put(b"a")

        (served,), _ = await asyncio.wait(claims, return_when=asyncio.FIRST_COMPLETED)
        assert [message.value for message in served.result()] == [b"a"]
        await until_standing(ms, MANY - 1)
        assert await operations(ms) - before <= 5
        await queue.put_many([b"b"] * (MANY - 1))
        assert all(await asyncio.gather(*claims))


async def test_a_log_of_a_pattern_that_grows_costs_one_look(tmp_path: Path) -> None:
    async with await aio.open(tmp_path / "a.db") as ms:
        logs = [ms.log(f"l{number}") for number in range(50)]
        await asyncio.gather(*(log.append(b"before") for log in logs))
        queue = await ms.create_queue("jobs", sources="l*", filter="n = 1", lease=60)
        claims = await waiting(ms, queue)
        before = await operations(ms)

        for log in logs[:5]:
            await log.append(b"no", headers={"n": 0})
            await until_standing(ms, MANY)

        assert await operations(ms) - before <= 5 * 4
        await logs[7].append_many([b"yes"] * MANY, headers=[{"n": 1}] * MANY)
        assert all(await asyncio.gather(*claims))


@pytest.mark.embedded
async def test_a_burst_is_claimed_in_a_few_commits(tmp_path: Path) -> None:
    async with await aio.open(tmp_path / "a.db") as ms:
        queue = await ms.create_queue("jobs", lease=60)
        claims = await waiting(ms, queue)
        before = (await ms.stats())["commits"]

        await queue.put_many([str(number).encode() for number in range(MANY)])

        found = [message.value for claim in await asyncio.gather(*claims) for message in claim]
        assert sorted(found) == sorted(str(number).encode() for number in range(MANY))
        assert (await ms.stats())["commits"] - before <= 6


async def test_the_first_come_are_the_first_served(tmp_path: Path) -> None:
    async with await aio.open(tmp_path / "a.db") as ms:
        queue = await ms.create_queue("jobs", lease=60)
        claims = await in_order(ms, queue, 5)
        for number in range(5):
            await queue.put(str(number))
            assert [message.value for message in await claims[number]] == [str(number).encode()]
            await until_standing(ms, 4 - number)


@pytest.mark.embedded
async def test_the_first_leaves_and_the_next_is_served(tmp_path: Path) -> None:
    async with await aio.open(tmp_path / "a.db") as ms:
        queue = await ms.create_queue("jobs", lease=60)
        claims = await in_order(ms, queue, 3)
        claims[0].cancel()
        await until_standing(ms, 2)
        await queue.put(b"a")
        (served,), left = await asyncio.wait(claims[1:], return_when=asyncio.FIRST_COMPLETED)
        assert len(served.result()) == 1
        await until_standing(ms, 1)
        await queue.put(b"b")
        assert [len(await one) for one in left] == [1]


async def test_everyone_in_line_is_told_that_the_queue_is_gone(tmp_path: Path) -> None:
    async with await aio.open(tmp_path / "a.db") as ms:
        queue = await ms.create_queue("jobs", lease=60)
        claims = await waiting(ms, queue)
        await queue.delete()
        answers = await asyncio.gather(*claims, return_exceptions=True)
        assert {type(answer) for answer in answers} == {NotFound}


@pytest.mark.embedded
async def test_everyone_in_line_is_told_that_the_store_was_closed(tmp_path: Path) -> None:
    ms = await aio.open(tmp_path / "a.db")
    claims = await waiting(ms, await ms.create_queue("jobs", lease=60), 500)
    await ms.close()
    answers = await asyncio.gather(*claims, return_exceptions=True)
    assert {type(answer) for answer in answers} == {Closed}


async def test_the_line_is_woken_when_leases_end_and_delays_are_over(tmp_path: Path) -> None:
    async with await aio.open(tmp_path / "a.db") as ms:
        queue = await ms.create_queue("jobs", lease=60)
        await queue.put_many([b"a", b"b", b"c"])
        leased, delayed = await queue.claim(2)
        await queue.renew(leased, lease=0.2)
        await queue.nack(delayed, delay=0.1)
        claims = [asyncio.create_task(queue.claim(1, wait=LONG_S)) for _ in range(5)]
        await until_standing(ms, 2)
        await queue.put(b"d", delay=0.1)
        await until_standing(ms, 1)
        await queue.put(b"e")
        found = [message for claim in await asyncio.gather(*claims) for message in claim]
        attempts = {message.value: message.attempt for message in found}
        assert attempts == {b"a": 2, b"b": 2, b"c": 1, b"d": 1, b"e": 1}


async def test_another_handle_wakes_the_line(tmp_path: Path) -> None:
    async with await aio.open(tmp_path / "a.db") as ms, await aio.open(tmp_path / "a.db") as other:
        queue = await ms.create_queue("jobs", lease=60)
        claims = await waiting(ms, queue, 10)
        far = await waiting(other, await other.queue("jobs"), 10)
        await (await other.queue("jobs")).put_many([b"x"] * 12)
        await queue.put_many([b"x"] * 8)
        assert [len(found) for found in await asyncio.gather(*claims, *far)] == [1] * 20


@pytest.mark.embedded
async def test_nothing_is_watched_once_nobody_waits(tmp_path: Path) -> None:
    async with await aio.open(tmp_path / "a.db") as ms:
        queue = await ms.create_queue("jobs", lease=60)
        claims = [asyncio.create_task(queue.claim(1, wait=0.01 * n)) for n in range(20)]
        claims += await waiting(ms, queue, 30)
        for claim in claims[20:]:
            claim.cancel()
        await asyncio.gather(*claims, return_exceptions=True)
        probe = Probe(ms)
        await probe.until_async(lambda: not probe.waiting())  # a thread may be ending its watch
        assert probe.waiting() == 0


@pytest.mark.embedded
@pytest.mark.parametrize("seed", SEEDS)
async def test_no_message_lies_there_while_coroutines_come_and_go(
    tmp_path: Path, seed: int
) -> None:
    """Waits end and are cancelled at the moment of a put; each message is claimed all the same.

    A message that a cancelled claim has taken goes back at once, and has not failed by it.
    """
    chance = random.Random(seed)
    async with await aio.open(tmp_path / "a.db", durability="relaxed") as ms:
        queue, total = await ms.create_queue("jobs", max_attempts=1), 40
        got: set[bytes] = set()
        is_complete = asyncio.Event()

        async def consume() -> None:
            while len(got) < total:
                wait = chance.choice([0.0, 0.001, 0.004, 0.05, LONG_S])
                claim = asyncio.create_task(
                    queue.claim(chance.randint(1, 2), wait=wait, lease=3600)
                )
                if chance.random() < 0.3:
                    await asyncio.sleep(chance.choice([0, 0.001, 0.002]))
                    claim.cancel()
                try:
                    held = await claim
                except asyncio.CancelledError:
                    continue
                got.update(message.value for message in held)
                if len(got) == total:
                    is_complete.set()

        consumers = [asyncio.create_task(consume()) for _ in range(8)]
        for number in range(total):
            await queue.put(str(number))
            await asyncio.sleep(chance.choice([0, 0, 0.001, 0.003]))
        try:
            await asyncio.wait_for(is_complete.wait(), LONG_S)
        except TimeoutError:
            raise AssertionError(f"{len(got)} of {total}: {seed=}, {await queue.info()}") from None
        for one in consumers:
            one.cancel()
        await asyncio.gather(*consumers, return_exceptions=True)


@pytest.mark.embedded
async def test_a_line_of_coroutines_and_one_of_threads_share_what_comes(tmp_path: Path) -> None:
    async with await aio.open(tmp_path / "a.db") as ms:
        queue = await ms.create_queue("jobs", lease=60)
        sync = Millstream(EmbeddedSession(Probe(ms).store))
        claims = await waiting(ms, queue, 5)
        found: list[Any] = []
        threads = [
            threading.Thread(target=lambda: found.append(sync.queue("jobs").claim(1, wait=LONG_S)))
            for _ in range(5)
        ]
        for thread in threads:
            thread.start()
        await until_standing(ms, 10)
        await queue.put_many([b"x"] * 10)
        assert [len(claim) for claim in await asyncio.gather(*claims)] == [1] * 5
        for thread in threads:
            await asyncio.to_thread(thread.join)
        assert [len(claim) for claim in found] == [1] * 5


def failing() -> tuple[aio.Millstream, Faults]:
    """A store in memory whose writes can be made to fail, and without a keeper that writes."""
    faults = Faults()
    store = open_store(MemoryEngine(faults=faults))
    Probe(store).pause_keeper()
    return aio.Millstream(AsyncEmbeddedSession(store)), faults


async def put_elsewhere(ms: aio.Millstream, value: bytes) -> None:
    """Put a message by a thread: no claim of the event loop is made by that commit."""
    session = ms.session
    assert isinstance(session, AsyncEmbeddedSession)
    ms_of_threads = Millstream(EmbeddedSession(session.store))
    await asyncio.to_thread(ms_of_threads.log("queue:jobs").append, value)


@pytest.mark.embedded
async def test_a_look_that_fails_is_told_to_one_and_the_next_gets_the_message() -> None:
    ms, faults = failing()
    async with ms:
        queue = await ms.create_queue("jobs", lease=60)
        claims = await waiting(ms, queue, 10)
        faults.on("commit", WriteFailed("no room"), nth=2)  # of the put, then of the claim
        await put_elsewhere(ms, b"a")
        told: set[asyncio.Task[Any]] = set()
        while len(told) < 2:  # which of them stood first is the pool's affair
            waits = set(claims) - told
            told |= (await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED))[0]
        (failed,) = [claim for claim in told if claim.exception() is not None]
        assert isinstance(failed.exception(), WriteFailed)
        (served,) = [claim for claim in told if claim is not failed]
        assert [message.value for message in served.result()] == [b"a"]
        await until_standing(ms, 8)
        await queue.put_many([b"b"] * 8)
        rest = [claim for claim in claims if claim not in told]
        assert [len(claim) for claim in await asyncio.gather(*rest)] == [1] * 8


@pytest.mark.embedded
async def test_all_in_line_are_told_that_the_store_recovers() -> None:
    ms, faults = failing()
    async with ms:
        queue = await ms.create_queue("jobs", lease=60)
        claims = await waiting(ms, queue, 50)
        faults.on("sent", Torn(kept=False), nth=2)  # of the put, then of a claim
        for nth in range(1, 200):
            faults.on("recover", WriteFailed("the disk still fails"), nth=nth)
        await put_elsewhere(ms, b"a")
        told = await asyncio.gather(*claims, return_exceptions=True)
        assert {type(one) for one in told} <= {OutcomeUnknown, Recovering}


async def test_a_message_and_the_claim_that_waits_for_it_are_one_commit(tmp_path: Path) -> None:
    async with await aio.open(tmp_path / "a.db") as ms:
        queue = await ms.create_queue("jobs", sources="log", lease=60)
        for put in (queue.put, ms.log("log").append, queue.put):
            (claim,) = await in_order(ms, queue, 1)
            before = (await ms.stats())["commits"]
            await put(b"a")
            (message,) = await claim
            assert (await ms.stats())["commits"] - before == 1
            assert (message.value, message.attempt) == (b"a", 1)
            await queue.ack(message)
        info = await queue.info()
        assert (info.done, info.in_flight, info.available) == (3, 0, 0)


async def test_what_the_first_in_line_leaves_goes_to_those_behind_it(tmp_path: Path) -> None:
    async with await aio.open(tmp_path / "a.db") as ms:
        queue = await ms.create_queue("jobs", lease=60)
        claims = [asyncio.create_task(queue.claim(2, wait=LONG_S)) for _ in range(3)]
        await until_standing(ms, 3)
        await asyncio.gather(queue.put_many([b"a"] * 3), queue.put_many([b"b"] * 3))
        found = [message for claim in await asyncio.gather(*claims) for message in claim]
        assert sorted(message.value for message in found) == [b"a"] * 3 + [b"b"] * 3
        assert len({message.claim_id for message in found}) == 6


@pytest.mark.embedded
async def test_a_claim_waits_on_if_the_commit_that_would_serve_it_fails() -> None:
    ms, faults = failing()
    async with ms:
        queue = await ms.create_queue("jobs", lease=60)
        (claim,) = await in_order(ms, queue, 1)
        faults.on("commit", WriteFailed("no room"))
        with pytest.raises(WriteFailed):
            await queue.put(b"a")
        await until_standing(ms, 1)
        await queue.put(b"b")
        assert [message.value for message in await claim] == [b"b"]


async def test_a_claim_that_is_cancelled_as_its_message_comes_lets_the_next_one_look(
    tmp_path: Path,
) -> None:
    async with await aio.open(tmp_path / "a.db") as ms:
        queue = await ms.create_queue("jobs", lease=60)
        first, second = await in_order(ms, queue, 2)
        putting = asyncio.create_task(queue.put_many([b"a", b"b"]))
        await asyncio.sleep(0)
        first.cancel()
        await putting
        assert len(await second) == 1


@pytest.mark.embedded
async def test_a_loop_whose_commits_are_fast_claims_with_the_put() -> None:
    """The put and the claim that it serves are one commit, and wake no other thread."""
    threads: list[str] = []
    engine = MemoryEngine(
        faults=lambda step: (
            threads.append(threading.current_thread().name) if step == "commit" else None
        )
    )
    store = open_store(engine, clock=SimulatedClock())
    Probe(store).pause_keeper()
    async with aio.Millstream(AsyncEmbeddedSession(store)) as ms:
        queue = await ms.create_queue("jobs", lease=60)
        for _ in range(KEPT):
            await ms.log("warm").append(b"x")
        claims = await waiting(ms, queue, 3)
        for value in (b"a", b"b"):
            threads.clear()
            await queue.put(value)
            (served,), claims = await asyncio.wait(claims, return_when=asyncio.FIRST_COMPLETED)
            assert [message.value for message in served.result()] == [value]
            assert threads == [threading.current_thread().name]
            await until_standing(ms, len(claims))
        await queue.put_many([b"c", b"d"])
        (last,) = claims
        await queue.ack(await last)
        assert [message.value for message in await queue.claim(5)] == [b"d"]


@pytest.mark.embedded
async def test_a_loop_whose_commits_are_fast_leaves_queues_that_look_at_headers_to_threads() -> (
    None
):
    store = open_store(MemoryEngine(), clock=SimulatedClock())
    Probe(store).pause_keeper()
    async with aio.Millstream(AsyncEmbeddedSession(store)) as ms:
        log = ms.log("all")
        for _ in range(KEPT):
            await log.append(b"no", headers={"n": 0})
        queue = await ms.create_queue("jobs", sources="all", filter="n = 1", lease=60)
        claims = await waiting(ms, queue, 2)
        await log.append(b"no", headers={"n": 0})
        await until_standing(ms, 2)
        await log.append_many([b"yes"] * 2, headers=[{"n": 1}] * 2)
        found = await asyncio.gather(*claims)
        assert [message.value for (message,) in found] == [b"yes"] * 2
