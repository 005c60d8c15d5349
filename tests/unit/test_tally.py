"""The tally of a store: what was published, claimed and done, and what waits."""

from __future__ import annotations

from pathlib import Path

import pytest

import millstream
from millstream import Millstream
from millstream.embedded.session import EmbeddedSession, open_file, open_store
from millstream.embedded.totals import Tally, Totals
from millstream.engine.memory.engine import MemoryEngine
from millstream.store.store import Store
from millstream.testing import SimulatedClock


@pytest.fixture
def clock() -> SimulatedClock:
    return SimulatedClock()


@pytest.fixture
def store(clock: SimulatedClock) -> Store:
    return open_store(MemoryEngine(), clock=clock)


@pytest.fixture
def ms(store: Store) -> Millstream:
    return Millstream(EmbeddedSession(store))


def test_an_empty_store_has_nothing(store: Store) -> None:
    assert Tally(store).look() == Totals()


def test_what_happened_before_the_first_look_is_not_counted_as_new(
    store: Store, ms: Millstream
) -> None:
    ms.log("orders").append_many([b"1", b"2"])
    ms.create_queue("mail").put(b"x")
    found = Tally(store).look()
    assert (found.published, found.logs, found.queues, found.depth) == (0, 1, 1, 1)


def test_records_and_messages_are_counted_as_they_move(
    store: Store, ms: Millstream, clock: SimulatedClock
) -> None:
    tally = Tally(store)
    tally.look()
    ms.log("orders").append_many([b"1", b"2"])
    mail = ms.create_queue("mail")
    born_ms = clock.wall_ms()
    mail.put_many([b"a", b"b", b"c"])
    clock.advance(5)
    found = tally.look()
    assert (found.published, found.claimed, found.done, found.depth) == (5, 0, 0, 3)
    assert found.claimable_ms == born_ms
    first, second = mail.claim(2)
    assert (tally.look().claimed, tally.look().depth) == (2, 3)
    mail.ack(first)
    mail.nack(second)
    again = tally.look()
    assert (again.published, again.claimed, again.done, again.depth) == (5, 2, 1, 2)


def test_records_that_a_queue_will_route_count_as_waiting(store: Store, ms: Millstream) -> None:
    ms.create_queue("mail", sources=["orders"])
    ms.create_queue("all", sources=["ord*"])
    tally = Tally(store)
    assert tally.look().depth == 0
    ms.log("orders").append_many([b"1", b"2"])
    assert tally.look().depth == 4
    ms.log("orders").append(b"3")
    assert tally.look().depth == 6
    ms.queue("mail").claim(1)
    assert tally.look().depth == 6


def test_a_deleted_log_or_queue_takes_nothing_back(store: Store, ms: Millstream) -> None:
    tally = Tally(store)
    tally.look()
    ms.log("orders").append_many([b"1", b"2"])
    mail = ms.create_queue("mail")
    mail.put(b"x")
    mail.ack(mail.claim(1)[0])
    before = tally.look()
    ms.log("orders").delete()
    mail.delete()
    after = tally.look()
    assert (after.published, after.claimed, after.done) == (
        before.published,
        before.claimed,
        before.done,
    )
    assert (after.logs, after.queues, after.depth, after.claimable_ms) == (0, 0, 0, None)
    ms.log("orders").append(b"again")
    assert tally.look().published == before.published + 1


def test_offsets_that_never_held_a_record_are_not_published(store: Store, ms: Millstream) -> None:
    tally = Tally(store)
    tally.look()
    ms.log("orders").append(b"1")
    ms.log("orders").truncate(before=1_000, past_end=True)
    ms.log("orders").append(b"2")
    assert tally.look().published == 2


def test_a_fork_publishes_only_what_is_its_own(store: Store, ms: Millstream) -> None:
    ms.log("orders").append_many([b"1", b"2", b"3"])
    tally = Tally(store)
    tally.look()
    fork = ms.log("orders").fork("trial")
    fork.append(b"4")
    assert tally.look().published == 1


def test_logs_of_the_store_itself_and_of_queues_are_no_logs_of_users(
    store: Store, ms: Millstream
) -> None:
    tally = Tally(store)
    tally.look()
    ms.log("millstream:books").append(b"x")
    ms.create_queue("mail").put(b"x")
    ms.log("room:canvas").append(b"x")
    found = tally.look()
    assert (found.logs, found.rooms, found.queues, found.published) == (0, 1, 1, 2)


def test_a_look_asks_only_for_what_has_changed(store: Store, ms: Millstream) -> None:
    for number in range(40):
        ms.log(f"log-{number}").append(b"x")
        ms.create_queue(f"queue-{number}").put(b"x")
    tally = Tally(store)
    tally.look()
    asked: list[object] = []
    view = store.view

    def counted(question):  # type: ignore[no-untyped-def]
        asked.append(question)
        return view(question)

    store.view = counted  # type: ignore[method-assign]
    tally.look()
    assert not asked
    ms.log("log-3").append(b"y")
    ms.queue("queue-7").put(b"y")
    assert tally.look().published == 2
    assert len(asked) <= 4


def test_a_closed_tally_is_told_nothing(store: Store, ms: Millstream) -> None:
    tally = Tally(store)
    tally.look()
    assert len(store.watch.followers) == 1
    tally.close()
    assert store.watch.followers == ()
    ms.log("orders").append(b"x")
    assert tally.look().published == 0


def test_what_another_process_commits_is_counted(tmp_path: Path) -> None:
    path = tmp_path / "shared.db"
    store = open_file(path, durability="relaxed")
    try:
        tally = Tally(store)
        tally.look()
        with millstream.open(path, durability="relaxed") as other:
            other.log("orders").append_many([b"1", b"2"])
            other.create_queue("mail").put(b"x")
            found = tally.look()
        assert (found.published, found.depth, found.logs) == (3, 1, 1)
    finally:
        store.close()


def test_a_fold_that_passed_the_reader_makes_it_look_at_everything(tmp_path: Path) -> None:
    path = tmp_path / "shared.db"
    with millstream.open(path, durability="relaxed") as writer:
        writer.log("orders").append(b"1")
        writer.log("gone").append(b"x")
        reader = open_file(path, mode="r")
        try:
            tally = Tally(reader)
            tally.look()
            writer.log("orders").append_many([b"2", b"3"])
            writer.log("gone").delete()
            writer.fold()
            writer.log("new").append(b"4")
            writer.fold()
            found = tally.look()
            assert (found.published, found.logs) == (3, 2)
        finally:
            reader.close()


def test_a_log_with_partitions_counts_as_one(store: Store, ms: Millstream) -> None:
    tally = Tally(store)
    tally.look()
    orders = ms.log("orders", partitions=4)
    orders.append_many([b"1", b"2"], keys=["a", "b"])
    assert (tally.look().logs, tally.look().published) == (1, 2)
    assert Tally(store).look().logs == 1
    orders.add_partitions(6)
    assert tally.look().logs == 1
    orders.delete()
    assert tally.look().logs == 0
