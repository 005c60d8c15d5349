"""Feeds: one tail per log however many listen, in order, once; damage and failures pass."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from millstream import aio
from millstream.embedded.loop.feed import Feed
from millstream.embedded.loop.feed_reads import (
    FETCH_RECORDS_MAX,
    RECENT_BYTES_MAX,
    RECENT_RECORDS_MAX,
    Delivery,
    Missing,
    Recent,
)
from millstream.embedded.loop.feeds import Feeds
from millstream.embedded.loop.session import AsyncEmbeddedSession
from millstream.errors import Closed, Overloaded
from millstream.format import keys
from millstream.record import Record
from millstream.replica.commands import SetAside
from millstream.store.watch import Watch
from millstream.testing import Probe

pytestmark = pytest.mark.embedded


class Heard:
    """A listener that notes what it hears."""

    def __init__(self, position: int = 0) -> None:
        self.position = position
        self.values: list[bytes] = []
        self.deliveries: list[Delivery] = []
        self.missing: list[Missing] = []
        self.restarts = 0
        self._told = asyncio.Event()

    async def until(self, is_so: Callable[[], bool]) -> None:
        """Wait until it is so, looking again whenever something is heard."""
        while not is_so():
            self._told.clear()
            await self._told.wait()

    def deliver(self, delivery: Delivery) -> None:
        self.deliveries.append(delivery)
        self.values += [record.value for record in delivery.records]
        self._told.set()

    def miss(self, missing: Missing) -> None:
        self.missing.append(missing)
        self._told.set()

    def restart(self) -> None:
        self.restarts += 1
        self._told.set()


def session_of(ms: aio.Millstream) -> AsyncEmbeddedSession:
    session = ms.session
    assert isinstance(session, AsyncEmbeddedSession)
    return session


def feed_of(ms: aio.Millstream, log: str = "x") -> Feed:
    return session_of(ms).feeds.of(log)


async def until_waiting(ms: aio.Millstream, count: int) -> None:
    """Let the others run until so many wait and listen."""
    probe = Probe(ms)
    await probe.until_async(lambda: probe.waiting() == count)


def numbers(first: int, stop: int) -> list[bytes]:
    return [b"%d" % n for n in range(first, stop)]


async def test_all_listeners_hear_everything_from_their_position_on(tmp_path: Path) -> None:
    async with await aio.open(tmp_path / "a.db") as ms:
        log, feed = ms.log("x"), feed_of(ms)
        await log.append_many(numbers(0, 10))
        first, second = Heard(0), Heard(7)
        assert feed.attach(first)
        assert feed.attach(second)
        await log.append_many(numbers(10, 12))
        await first.until(lambda: len(first.values) == 12)
        await second.until(lambda: len(second.values) == 5)

        assert first.values == numbers(0, 12)
        assert second.values == numbers(7, 12)
        assert first.position == second.position == feed.position == 12


async def test_other_processes_records_are_heard(tmp_path: Path) -> None:
    async with await aio.open(tmp_path / "a.db") as ms, await aio.open(tmp_path / "a.db") as other:
        heard = Heard()
        feed_of(ms).attach(heard)
        await other.log("x").append(b"0")
        await heard.until(lambda: len(heard.values) > 0)
        assert heard.values == [b"0"]


async def test_a_thousand_listeners_and_waits_have_one_watch_and_few_looks(tmp_path: Path) -> None:
    async with await aio.open(tmp_path / "a.db") as ms:
        log, feed = ms.log("x"), feed_of(ms)
        heard = [Heard() for _ in range(500)]
        for one in heard:
            feed.attach(one)
        waits = [asyncio.ensure_future(log.wait(0)) for _ in range(500)]
        await until_waiting(ms, 1_000)
        watch = session_of(ms).store.watch
        assert isinstance(watch, Watch)
        assert len(watch.wakes()) == 1

        await log.append(b"0")

        assert all(await asyncio.gather(*waits))
        for one in heard:
            await one.until(lambda one=one: one.values == [b"0"])  # type: ignore[misc]
        assert feed.counts.looks < 10


async def test_waits_of_a_server_share_a_feed_and_leave_nothing_behind(tmp_path: Path) -> None:
    async with await aio.open(tmp_path / "a.db") as ms:
        log = ms.log("x")
        waits = [asyncio.ensure_future(log.wait(n % 2)) for n in range(10)]
        await until_waiting(ms, 10)
        assert len(session_of(ms).feeds) == 1
        await log.append_many([b"0", b"1"])
        assert await asyncio.gather(*waits) == [True] * 10
        assert len(session_of(ms).feeds) == 0
        assert Probe(ms).waiting() == 0


async def test_a_listener_below_the_feed_reads_up_to_it_first(tmp_path: Path) -> None:
    async with await aio.open(tmp_path / "a.db") as ms:
        log, feed = ms.log("x"), feed_of(ms)
        await log.append_many(numbers(0, 1_000))
        ahead, late = Heard(1_000), Heard(3)
        feed.attach(ahead)
        values = []
        with feed.reading(1, late.position):
            assert feed.lowest == 3
            while not feed.attach(late):
                found = await feed.read(late.position, feed.position)
                assert isinstance(found, Delivery)
                assert len(found.records) <= FETCH_RECORDS_MAX
                values += [record.value for record in found.records]
                late.position = found.stop
        assert feed.lowest == 1_000
        await log.append(b"1000")
        await late.until(lambda: bool(late.values))
        assert values + late.values == numbers(3, 1_001)


def delivery_of(first: int, stop: int, size: int = 10) -> Delivery:
    return Delivery(first, [Record("x", n, b"x" * size, 0) for n in range(first, stop)])


def test_what_was_delivered_lately_is_remembered() -> None:
    recent = Recent()
    recent.add(delivery_of(0, 10))
    recent.add(delivery_of(10, 50))
    found = recent.find(20, 30)
    assert found is not None
    assert [record.offset for record in found.records] == [*range(20, 30)]
    found = recent.find(5, 30)
    assert found is not None
    assert (found.first, found.stop) == (5, 10)
    assert recent.find(50, 60) is None


@pytest.mark.parametrize("size", [10, 1_000, 100_000, 1_000_000])
def test_what_is_remembered_is_bounded(size: int) -> None:
    recent = Recent()
    for first in range(0, 1_000, 10):
        recent.add(delivery_of(first, first + 10, size))
        assert recent.bytes <= RECENT_BYTES_MAX
        assert sum(len(one.records) for one in recent.deliveries) <= RECENT_RECORDS_MAX


async def test_an_offer_is_delivered_and_not_again(tmp_path: Path) -> None:
    async with await aio.open(tmp_path / "a.db") as ms:
        log, feed, heard = ms.log("x"), feed_of(ms), Heard()
        feed.attach(heard)
        await until_waiting(ms, 1)
        feed.begin_send()
        offset = await log.append(b"mine")
        feed.offer(offset, [Record("x", offset, b"mine", 1)])
        feed.end_send()
        await heard.until(lambda: heard.values == [b"mine"])
        await log.append(b"next")
        await heard.until(lambda: len(heard.values) == 2)
        assert heard.values == [b"mine", b"next"]


async def test_offers_of_one_turn_are_delivered_together(tmp_path: Path) -> None:
    async with await aio.open(tmp_path / "a.db") as ms:
        log, feed, heard = ms.log("x"), feed_of(ms), Heard()
        feed.attach(heard)
        feed.begin_send()
        await log.append_many(numbers(0, 5))
        for n in (0, 1, 3, 2, 4):
            feed.offer(n, [Record("x", n, b"%d" % n, 1)])
        feed.end_send()
        await heard.until(lambda: len(heard.values) == 5)
        assert [(one.first, one.stop) for one in heard.deliveries] == [(0, 5)]
        assert heard.values == numbers(0, 5)


async def test_an_offer_waits_for_what_others_have_stored_before_it(tmp_path: Path) -> None:
    async with await aio.open(tmp_path / "a.db") as ms, await aio.open(tmp_path / "a.db") as other:
        log, feed, heard = ms.log("x"), feed_of(ms), Heard()
        feed.attach(heard)
        for n in range(20):
            await other.log("x").append(b"other %d" % n)
            feed.begin_send()
            offset = await log.append(b"mine %d" % n)
            feed.offer(offset, [Record("x", offset, b"mine %d" % n, 1)])
            feed.end_send()
        await heard.until(lambda: len(heard.values) == 40)
        assert heard.values == [
            b"%s %d" % (who, n) for n in range(20) for who in (b"other", b"mine")
        ]


async def test_what_was_truncated_is_told_and_the_rest_delivered(tmp_path: Path) -> None:
    async with await aio.open(tmp_path / "a.db") as ms:
        log, feed, heard = ms.log("x"), feed_of(ms), Heard(2)
        await log.append_many(numbers(0, 10))
        await log.truncate(before=6)
        feed.attach(heard)
        await heard.until(lambda: heard.position == 10)
        assert heard.missing == [Missing(2, 6, "expired")]
        assert heard.values == numbers(6, 10)


async def test_damaged_records_are_left_out_counted_and_passed(tmp_path: Path) -> None:
    async with await aio.open(tmp_path / "a.db") as ms:
        log = ms.log("x")
        for first in range(0, 30, 10):
            await log.append_many(numbers(first, first + 10))
        await ms.log("y").append(b"")
        await ms.fold()
        probe = Probe(ms)
        found = sorted(probe.rows(keys.PAYLOAD_BLOCK))
        probe.damage(found[1])
    async with await aio.open(tmp_path / "a.db") as ms:
        feed, heard = feed_of(ms), Heard()
        feed.attach(heard)
        await heard.until(lambda: heard.position == 30)
        assert heard.values == numbers(0, 10) + numbers(20, 30)
        assert heard.missing == [Missing(10, 20, "damaged")]
        assert feed.counts.skipped == 10


async def test_a_listener_that_fails_is_not_in_the_way_of_others(tmp_path: Path) -> None:
    class Broken(Heard):
        def deliver(self, delivery: Delivery) -> None:
            raise ZeroDivisionError

    async with await aio.open(tmp_path / "a.db") as ms:
        feed, heard = feed_of(ms), Heard()
        feed.attach(Broken())
        feed.attach(heard)
        await ms.log("x").append(b"0")
        await heard.until(lambda: heard.values == [b"0"])
        assert feed.counts.failures == 1


class Faulty:
    """A session whose threads fail as long as they are told to."""

    def __init__(self, session: AsyncEmbeddedSession) -> None:
        self.store, self.clock, self.call_soon = session.store, session.clock, session.call_soon
        self.fails = True
        self.failed_twice = asyncio.Event()
        self._failures = 0
        self._session = session

    async def ask(self, question: Callable[..., Any], *arguments: Any) -> Any:
        if self.fails:
            self._failures += 1
            if self._failures > 1:
                self.failed_twice.set()
            raise Overloaded("not now")
        return await self._session.ask(question, *arguments)


async def test_a_look_that_fails_is_repeated_later(tmp_path: Path) -> None:
    async with await aio.open(tmp_path / "a.db") as ms:
        source, heard = Faulty(session_of(ms)), Heard()
        feed = Feeds(source).of("x")
        feed.attach(heard)
        await ms.log("x").append(b"0")
        with pytest.raises(Overloaded):
            await feed.wait(0)
        await source.failed_twice.wait()
        assert feed.counts.failures > 0
        source.fails = False
        await heard.until(lambda: heard.values == [b"0"])
        feed.detach(heard)


async def test_a_log_that_is_deleted_and_made_again_begins_again(tmp_path: Path) -> None:
    async with await aio.open(tmp_path / "a.db") as ms:
        log, feed, heard = ms.log("x"), feed_of(ms), Heard()
        await log.append_many(numbers(0, 5))
        feed.attach(heard)
        await heard.until(lambda: heard.position == 5)
        await log.delete()
        await heard.until(lambda: heard.restarts == 1)
        assert heard.position == 0
        await log.append(b"again")
        await heard.until(lambda: heard.values[5:] == [b"again"])


async def test_a_closed_store_ends_waits_and_feeds(tmp_path: Path) -> None:
    ms = await aio.open(tmp_path / "a.db")
    feed, heard = feed_of(ms), Heard()
    feed.attach(heard)
    wait = asyncio.ensure_future(ms.log("x").wait(0))
    await until_waiting(ms, 2)
    await ms.close()
    with pytest.raises(Closed):
        await wait
    feed.detach(heard)


async def test_a_feed_continues_where_the_logs_begin_to_differ(tmp_path: Path) -> None:
    async with await aio.open(tmp_path / "a.db") as ms:
        log = ms.log("x")
        await log.append_many(numbers(0, 6))
        heard = Heard()
        feed_of(ms).attach(heard)
        await heard.until(lambda: len(heard.values) == 6)
        for turn in range(2):
            await ms.session.execute(SetAside("x", 4 - turn, 0))
            await log.append(b"other%d" % turn)
            await heard.until(lambda turn=turn: heard.restarts == turn + 1)  # type: ignore[misc]
            await heard.until(lambda: heard.values[-1].startswith(b"other"))
        await heard.until(lambda: heard.values[-1] == b"other1")
        assert heard.values == [*numbers(0, 6), b"other0", b"other1"]


async def test_a_wait_ends_once_another_log_has_the_name(tmp_path: Path) -> None:
    async with await aio.open(tmp_path / "a.db") as ms:
        log = ms.log("x")
        await log.append_many(numbers(0, 6))
        known = (await log.extent()).id
        assert not await log.wait(6, timeout=0, log_id=known)
        await ms.session.execute(SetAside("x", 4, 0))
        assert await log.wait(6, log_id=known)
        assert not await log.wait(6, timeout=0)
