"""Queues for coroutines: the same life of a message, awaited."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from typing import Any

import pytest

from millstream import aio
from millstream.errors import Conflict, LeaseLost, NotFound
from millstream.log.reading import reader, recent
from millstream.queue.rules import grouped_lane
from millstream.store.commit.gather import KEPT
from millstream.testing import Probe, SimulatedClock


def test_a_message_is_claimed_and_finished(tmp_path: Path) -> None:
    async def main() -> None:
        async with await aio.open(tmp_path / "store.db") as ms:
            queue = await ms.queue("work", sources="orders", start="earliest")
            await ms.log("orders").append_many([b"a", b"b", b"c"])
            first, second = await queue.claim(2)
            assert (first.value, second.value) == (b"a", b"b")
            await queue.ack(first)
            await queue.fail(second, reason="broken")
            (third,) = await queue.claim(5, ack=())
            async with ms.transaction() as tx:
                tx.ack(third)
                tx.append("results", b"done")
            info = await queue.info()
            assert info is not None
            assert (info.done, info.failed, info.in_flight) == (2, 1, 0)
            assert [message.reason async for message in queue.failed()] == ["broken"]
            assert await queue.redrive() == 1
            assert [found.name async for found in ms.queues()] == ["work"]

    asyncio.run(main())


def test_a_waiting_claim_wakes_when_a_message_arrives(tmp_path: Path) -> None:
    async def main() -> None:
        async with await aio.open(tmp_path / "store.db") as ms:
            queue = await ms.queue("work", lease=60)
            waiting = [asyncio.create_task(queue.claim(1, wait=30)) for _ in range(20)]
            probe = Probe(ms)
            await probe.until_async(lambda: probe.claims_waiting("work") == 20)
            await queue.put_many([b"%d" % n for n in range(20)])
            found = sorted(m.value for claimed in await asyncio.gather(*waiting) for m in claimed)
            assert found == sorted(b"%d" % n for n in range(20))

    asyncio.run(main())


def test_a_claim_that_others_overtook_looks_for_the_rest(tmp_path: Path) -> None:
    async def main() -> None:
        async with (
            await aio.open(tmp_path / "store.db") as ms,
            await aio.open(tmp_path / "store.db") as others,
        ):
            queue = await ms.queue("work", lease=60)
            await queue.put_many([b"%d" % n for n in range(10)])
            assert [m.value for m in await queue.claim(2)] == [b"0", b"1"]
            other = await others.queue("work")
            assert len(await other.claim(7)) == 7
            await other.put_many([b"10", b"11", b"12"])
            assert [m.value for m in await queue.claim(5)] == [b"9", b"10", b"11", b"12"]
            assert await queue.claim(5) == []

    asyncio.run(main())


def test_claims_of_one_turn_get_different_messages(tmp_path: Path) -> None:
    async def main() -> None:
        async with await aio.open(tmp_path / "store.db") as ms:
            queue = await ms.queue("work", lease=60)
            await queue.put_many([b"%d" % n for n in range(100)])
            held = await queue.claim(10)
            found = await asyncio.gather(*(queue.claim(10) for _ in range(9)))
            values = [m.value for claimed in (held, *found) for m in claimed]
            assert sorted(values) == sorted(b"%d" % n for n in range(100))
            await queue.pause()
            assert await queue.claim(10, ack=held) == []
            info = await queue.info()
            assert info is not None
            assert (info.done, info.in_flight) == (10, 90)

    asyncio.run(main())


def test_an_acknowledgement_of_somebody_elses_claim_is_refused(tmp_path: Path) -> None:
    async def main() -> None:
        async with await aio.open(tmp_path / "store.db") as ms:
            queue = await ms.queue("work", backoff=0, lease=60)
            await queue.put(b"x")
            (claimed,) = await queue.claim()
            await queue.nack(claimed)
            (again,) = await queue.claim(wait=30)
            with pytest.raises(LeaseLost):
                await queue.ack(claimed)
            await queue.ack(again)

    asyncio.run(main())


def test_a_put_needs_its_queue_and_a_queue_is_made_at_every_deploy(tmp_path: Path) -> None:
    async def put_in_transaction(ms: aio.Millstream) -> None:
        async with ms.transaction() as tx:
            tx.put("mail", b"x")

    async def main() -> None:
        async with await aio.open(tmp_path / "store.db") as ms:
            mail = await ms.queue("mail")
            for put in (mail.put(b"x"), mail.put(b"x", delay=1), mail.put_many([])):
                with pytest.raises(NotFound, match="create_queue"):
                    await put
            with pytest.raises(NotFound, match="create_queue"):
                await put_in_transaction(ms)
            await asyncio.gather(*(ms.create_queue("mail", lease=n) for n in (10, 20, 30)))
            await ms.create_queue("mail", lease=40)
            with pytest.raises(Conflict, match="start is 'latest'"):
                await ms.create_queue("mail", start="earliest")
            await put_in_transaction(ms)
            (message,) = await mail.claim()
            await mail.delete()
            again = await ms.create_queue("mail", start="earliest")
            assert await again.claim() == []
            with pytest.raises(LeaseLost) as caught:
                await again.ack(message)
            assert caught.value.why == ["unknown"]

    asyncio.run(main())


@pytest.mark.embedded
async def test_claims_of_one_commit_read_the_block_that_they_share_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = SimulatedClock()  # so no commit takes long, and the event loop makes them itself
    async with await aio.open(tmp_path / "a.db", clock=clock) as ms:
        queue = await ms.create_queue("jobs")
        for first in (0, 400):
            await queue.put_many([b"%d" % n for n in range(first, first + 400)])
    fetches: list[str] = []
    may_go_on, has_begun = threading.Event(), asyncio.Event()
    loop = asyncio.get_running_loop()

    def counted(*args: Any, **more: Any) -> Any:
        fetches.append(threading.current_thread().name)
        loop.call_soon_threadsafe(has_begun.set)
        assert may_go_on.wait(60)
        return reader.fetch_blocks(*args, **more)

    async with await aio.open(tmp_path / "a.db", clock=clock) as ms:
        queue = await ms.queue("jobs")
        for _ in range(KEPT):
            await ms.log("x").append(b"x")
        await queue.claim(400)
        monkeypatch.setattr(recent, "fetch_blocks", counted)

        claims = asyncio.gather(*(queue.claim(100) for _ in range(4)))
        await has_begun.wait()
        for _ in range(1_000):
            await asyncio.sleep(0)  # the others get their turns, and wait
        may_go_on.set()
        found = await claims

    values = [int(message.value or b"") for some in found for message in some]
    assert sorted(values) == [*range(400, 800)]
    assert len(fetches) == 1


@pytest.mark.parametrize("runs", [False, True])
@pytest.mark.parametrize("passed_max", [1, 2_000])
def test_claims_of_groups_get_all_whether_the_loop_or_a_thread_makes_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, runs: bool, passed_max: int
) -> None:
    monkeypatch.setattr(grouped_lane, "PASSED_MAX", passed_max)

    async def main() -> None:
        async with await aio.open(tmp_path / "store.db") as ms:
            queue = await ms.queue("work", group_by="g", lease=60)
            for batch in range(3):
                values = [f"{batch}{group}" for group in "aabbcc"]
                await queue.put_many(values, headers=[{"g": value[1]} for value in values])
            expected = [f"{batch}{group}" for batch in range(3) for group in "aabbcc"]
            got: list[str] = []
            while len(got) < len(expected):
                messages = await queue.claim(2, group_runs=runs)
                more = await queue.claim(30, group_runs=runs)
                claimed = [*messages, *more]
                groups = {message.headers["g"] for message in claimed}
                assert len(groups) == 3 or (runs and claimed)  # runs empty a group at once
                got += [message.text for message in claimed]
                await queue.ack(claimed)
            assert sorted(got) == sorted(expected)
            for group in "abc":
                assert [text[0] for text in got if text[1] == group] == [*"001122"]
            assert await queue.claim(5) == []

            await queue.put("new", group="a")  # unrouted: the loop's claim must not overlook it
            assert [message.text for message in await queue.claim(5)] == ["new"]

    asyncio.run(main())


def test_a_claim_of_a_queue_with_priorities_waits_for_no_routed_message_while_a_better_one_is_unrouted(
    tmp_path: Path,
) -> None:
    async def main() -> None:
        async with await aio.open(tmp_path / "store.db") as ms:
            queue = await ms.queue("work", priority_by="p", lease=60)
            await queue.put_many(["first", "low"], headers=[{"p": 5}, {"p": 0}])
            assert [message.text for message in await queue.claim(1)] == ["first"]
            await queue.put("high", priority=9)
            assert [message.text for message in await queue.claim(2)] == ["high", "low"]

    asyncio.run(main())
