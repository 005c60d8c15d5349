"""The state after a restore, as docs/BACKUP.md promises it: the store as of its point, and no later."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import millstream
from millstream import Millstream
from millstream.backup.keep import Keep
from millstream.backup.replay import RestoreMoment
from millstream.backup.restore import restore
from millstream.backup.run import BackupReport, back_up
from millstream.embedded.loop.session import AsyncEmbeddedSession
from millstream.embedded.session import EmbeddedSession, open_file
from millstream.errors import ForkDetected, LeaseLost, Unauthenticated
from millstream.jobs.schedule import ScheduledJob, define
from millstream.server.auth.register import Registrar
from millstream.server.auth.tokens import Tokens, create_token
from millstream.testing import SimulatedClock
from millstream.threads.schedules import ScheduleStore

LEASE_S = 60


@pytest.fixture
def clock() -> SimulatedClock:
    return SimulatedClock(1_700_000_000_000)


class Restorable:
    """A store with a backup; `restored` is the store as of the backup."""

    def __init__(self, folder: Path, clock: SimulatedClock) -> None:
        self.path, self.restored_path = folder / "a.db", folder / "b.db"
        self.place, self._clock = folder / "backup", clock

    @contextmanager
    def opened(self) -> Iterator[Millstream]:
        with Millstream(EmbeddedSession(open_file(self.path, clock=self._clock))) as ms:
            yield ms

    def back_up(self) -> BackupReport:
        return back_up(self.path, self.place, clock=self._clock)

    @contextmanager
    def restored(self) -> Iterator[Millstream]:
        if not self.restored_path.exists():
            restore(self.place, self.restored_path)
        with Millstream(EmbeddedSession(open_file(self.restored_path, clock=self._clock))) as ms:
            yield ms


@pytest.fixture
def store(tmp_path: Path, clock: SimulatedClock) -> Restorable:
    return Restorable(tmp_path, clock)


def test_later_records_are_gone_and_their_offsets_are_given_again(store: Restorable) -> None:
    with store.opened() as ms:
        ms.log("x").append_many([b"0", b"1"])
        store.back_up()
        assert ms.log("x").append(b"2") == 2
    with store.restored() as ms:
        assert [record.value for record in ms.log("x").read()] == [b"0", b"1"]
        assert ms.log("x").append(b"another") == 2


def test_messages_that_were_done_later_are_handed_out_again(store: Restorable) -> None:
    with store.opened() as ms:
        jobs = ms.create_queue("jobs")
        jobs.put_many([b"before", b"after"])
        jobs.ack(jobs.claim(1))
        store.back_up()
        jobs.ack(jobs.claim(1))
        assert jobs.info().done == 2
    with store.restored() as ms:
        assert ms.queue("jobs").info().done == 1
        assert [message.value for message in ms.queue("jobs").claim(10)] == [b"after"]


def test_results_in_tables_of_the_application_are_of_the_same_commit(store: Restorable) -> None:
    def work(ms: Millstream, count: int) -> None:
        for message in ms.queue("jobs").claim(count):
            with ms.transaction() as tx:
                tx.sql("INSERT INTO results VALUES (?)", (message.value.decode(),))
                tx.ack(message)

    with store.opened() as ms:
        ms.create_queue("jobs").put_many([b"%d" % number for number in range(10)])
        with ms.transaction() as tx:
            tx.sql("CREATE TABLE results (name TEXT PRIMARY KEY)")
        work(ms, 4)
        store.back_up()
        work(ms, 6)
    with store.restored() as ms:
        assert ms.sql("SELECT count(*) FROM results").rows == [(4,)]
        assert ms.queue("jobs").info().done == 4
        work(ms, 10)  # a repeated result would break the primary key
        assert ms.sql("SELECT count(*) FROM results").rows == [(10,)]


def test_leases_at_the_point_end_in_their_time(store: Restorable, clock: SimulatedClock) -> None:
    with store.opened() as ms:
        jobs = ms.create_queue("jobs")
        jobs.put(b"work")
        (held,) = jobs.claim(1, lease=LEASE_S)
        store.back_up()
    clock.advance(LEASE_S / 2)
    with store.restored() as ms:
        jobs = ms.queue("jobs")
        assert jobs.info().in_flight == 1
        assert jobs.claim(1) == []
        clock.advance(LEASE_S)
        (again,) = jobs.claim(1)
        assert (again.value, again.attempt) == (b"work", held.attempt + 1)
        with pytest.raises(LeaseLost):
            jobs.ack(held)
        jobs.ack(again)


def test_a_lease_that_still_runs_can_be_reported(store: Restorable, clock: SimulatedClock) -> None:
    with store.opened() as ms:
        jobs = ms.create_queue("jobs")
        jobs.put(b"work")
        (held,) = jobs.claim(1, lease=LEASE_S)
        store.back_up()
    with store.restored() as ms:
        ms.queue("jobs").ack(held)
        assert ms.queue("jobs").info().done == 1


def test_cursors_and_failures_are_those_of_the_point(store: Restorable) -> None:
    with store.opened() as ms:
        ms.log("x").append_many([b"%d" % number for number in range(10)])
        reader = ms.log("x").cursor("reader")
        reader.ack(reader.take(4))
        jobs = ms.create_queue("jobs", max_attempts=1)
        jobs.put(b"bad")
        jobs.fail(jobs.claim(1), reason="broken")
        store.back_up()
        reader.ack(reader.take(4))
        jobs.purge(state="failed")
    with store.restored() as ms:
        assert ms.log("x").cursor("reader").take(1)[0].offset == 4
        assert ms.queue("jobs").info().failed == 1


def test_rooms_have_their_messages_and_retained_values(store: Restorable) -> None:
    with store.opened() as ms:
        room = ms.room("hall")
        room.specify(retained=["shape"])
        room.send("shape", {"size": 1}, key="a")
        room.send("chat", "hello")
        store.back_up()
        room.send("shape", {"size": 2}, key="a")
        room.send("shape", {"size": 3}, key="b")
    with store.restored() as ms:
        values = ms.room("hall").retained().values
        assert [(value.key, value.data) for value in values] == [("a", b'{"size":1}')]
        assert ms.room("hall").log.end_offset() == 2


def test_schedules_go_on_from_the_point(store: Restorable, clock: SimulatedClock) -> None:
    hour_s = 3_600
    with store.opened() as ms:
        ms.create_queue("jobs")
        schedules = ScheduleStore(ms.session)
        for name, missed in (("once", "once"), ("all", "all"), ("skip", "skip")):
            job = ScheduledJob(f"shop:{name}")
            schedules.store(define(name, job, hour_s, now_ms=clock.wall_ms(), missed=missed))
        store.back_up()
        clock.advance(hour_s)
        assert schedules.fire() > 0
    clock.advance(2 * hour_s + 60)
    with store.restored() as ms:
        while ScheduleStore(ms.session).fire():
            pass
        tasks = [str(job.headers["task"]) for job in ms.queue("jobs").pop(100)]
    assert tasks.count("shop:once") == 1
    assert tasks.count("shop:all") == 3
    assert tasks.count("shop:skip") <= 1


def test_tokens_are_those_of_the_point(store: Restorable, clock: SimulatedClock) -> None:
    with store.opened() as ms:
        revoked = create_token(ms, "revoked", ["log:read"], clock=clock)[1]
        store.back_up()
        Registrar(ms).revoke("revoked")
        created = create_token(ms, "created", ["log:read"], clock=clock)[1]
    with store.restored():
        pass

    async def test() -> None:
        opened = open_file(store.restored_path, clock=clock)
        tokens = Tokens(AsyncEmbeddedSession(opened))
        try:
            assert (await tokens.authenticate(revoked)).name == "revoked"
            with pytest.raises(Unauthenticated):
                await tokens.authenticate(created)
        finally:
            await tokens.close()
            opened.close()

    asyncio.run(test())


def values(ms: Millstream, log: str) -> list[bytes]:
    return [record.value for record in ms.log(log).read()]


def test_a_copy_gives_the_later_records_back(store: Restorable, tmp_path: Path) -> None:
    with millstream.open(tmp_path / "copy.db") as copy:
        with store.opened() as ms:
            ms.log("x").append_many([b"0", b"1"])
            store.back_up()
            ms.log("x").append(b"2")
            copy.sync(ms)
        with store.restored() as ms:
            copy.sync(ms)
            assert values(ms, "x") == values(copy, "x") == [b"0", b"1", b"2"]


def test_a_copy_with_other_records_is_found_as_a_fork(store: Restorable, tmp_path: Path) -> None:
    with millstream.open(tmp_path / "copy.db") as copy:
        with store.opened() as ms:
            ms.log("x").append_many([b"0", b"1"])
            store.back_up()
            ms.log("x").append(b"later")
            copy.sync(ms)
        with store.restored() as ms:
            ms.log("x").append_many([b"new", b"newer"])
            with pytest.raises(ForkDetected):
                copy.sync(ms)
            (log,) = copy.sync(ms, on_fork="longest").logs
            assert values(ms, "x") == values(copy, "x") == [b"0", b"1", b"new", b"newer"]
            assert values(copy, log.set_aside[0]) == [b"0", b"1", b"later"]


def test_the_backup_of_a_restored_store_goes_on_with_its_commits(
    store: Restorable, clock: SimulatedClock, tmp_path: Path
) -> None:
    """The place then has two commits of one number; every time still means one commit."""
    times: list[int] = []
    for round_number, texts in enumerate((["base"], ["lost"] * 6, ["new", "newer"])):
        clock.advance(60)
        with store.opened() as ms:
            for text in texts:
                ms.log("x").append(text.encode())
        seq = store.back_up().point.seq
        times.append(clock.wall_ms())
        if round_number == 0:
            base_seq = seq
        if round_number == 1:
            lost_seq = seq
            restore(store.place, store.path, at=RestoreMoment(seq=base_seq), replace=True)

    def restored(name: str, at: RestoreMoment | None) -> list[bytes]:
        restore(store.place, tmp_path / name, at=at)
        with millstream.open(tmp_path / name) as ms:
            return values(ms, "x")

    newest = [b"base", b"new", b"newer"]
    assert restored("newest.db", None) == newest
    assert restored("seq.db", RestoreMoment(seq=seq)) == newest
    assert restored("lost.db", RestoreMoment(seq=lost_seq)) == [b"base"] + [b"lost"] * 6
    for number, expected in enumerate(([b"base"], [b"base"] + [b"lost"] * 6, newest)):
        at = RestoreMoment(time_ms=times[number] + 1)
        assert restored(f"{number}.db", at) == expected
    back_up(store.path, store.place, clock=clock, keep=Keep(newest=1))
    assert restored("kept.db", None) == newest


def test_points_of_a_clock_that_is_set_back_keep_their_order(
    store: Restorable, clock: SimulatedClock
) -> None:
    with store.opened() as ms:
        ms.log("x").append(b"0")
        store.back_up()
        ms.log("x").append(b"1")
    earlier = SimulatedClock(clock.wall_ms() - 3_600_000)
    back_up(store.path, store.place, clock=earlier, keep=Keep(newest=1))
    with store.restored() as ms:
        assert values(ms, "x") == [b"0", b"1"]
