"""Logs with partitions: made once, spread by key, used as one."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from itertools import groupby
from pathlib import Path
from typing import Any

import pytest

import millstream
from millstream import (
    Item,
    Millstream,
    PartitionedLog,
    PartitionOffset,
    Producer,
    Record,
    Retention,
)
from millstream.command import Command
from millstream.errors import (
    AlreadyExists,
    Conflict,
    InvalidInput,
    InvalidName,
    NotFound,
    OutOfSequence,
    Partitioned,
    Truncated,
)
from millstream.log.commands import ReadBlocks, Truncate
from millstream.testing import SimulatedClock

Reopen = Callable[..., Millstream]

KEYS = [f"key-{number % 20}" for number in range(200)]
VALUES = [{"n": number} for number in range(200)]


def names(ms: Millstream) -> list[str]:
    return [info.name for info in ms.logs(partitions=True)]


def by_key(records: Iterable[Record]) -> dict[bytes | None, list[int]]:
    found: dict[bytes | None, list[int]] = {}
    for record in records:
        found.setdefault(record.key, []).append(record.json()["n"])
    return found


def expected() -> dict[bytes | None, list[int]]:
    return {f"key-{one}".encode(): list(range(one, 200, 20)) for one in range(20)}


@pytest.fixture
def orders(ms: Millstream) -> PartitionedLog:
    return ms.log("orders", partitions=4)


# Making.


def test_a_log_with_partitions_comes_to_exist_with_its_first_append(ms: Millstream) -> None:
    orders = ms.log("orders", partitions=3)
    assert orders.info() is None
    assert len(orders) == 0
    assert list(orders.read()) == []
    assert names(ms) == []
    orders.append(b"x")
    assert names(ms) == [f"orders-partition-{number}" for number in range(3)]


def test_it_can_be_made_before(ms: Millstream) -> None:
    ms.log("orders", partitions=2).create()
    ms.log("orders", partitions=2).create()
    assert names(ms) == ["orders-partition-0", "orders-partition-1"]
    assert ms.partitioned_log("orders").partitions == 2


def test_another_number_is_refused(ms: Millstream, orders: PartitionedLog) -> None:
    orders.append(b"x")
    for number in (1, 3, 5):
        other = ms.log("orders", partitions=number)
        for use in (other.create, lambda log=other: log.append(b"y"), lambda log=other: len(log)):
            with pytest.raises(Partitioned, match="has 4 partitions") as caught:
                use()
            assert caught.value.partitions == 4
    assert len(orders) == 1


@pytest.mark.parametrize("number", [0, -1, 1_025, True, 2.0, "4"])
def test_a_number_that_makes_no_sense_is_refused(ms: Millstream, number: int) -> None:
    with pytest.raises(InvalidInput, match=r"1 to 1,024 partitions|partitions is a whole number"):
        ms.log("orders", partitions=number)


@pytest.mark.parametrize("name", ["queue:q", "room:r", "a-partition-1", "x" * 250])
def test_names_that_cannot_have_partitions_are_refused(ms: Millstream, name: str) -> None:
    with pytest.raises(InvalidName):
        ms.log(name, partitions=2).create()


def test_a_log_that_has_no_partitions_gets_none(ms: Millstream) -> None:
    ms.log("orders").append(b"x")
    with pytest.raises(AlreadyExists, match="without partitions"):
        ms.log("orders", partitions=2).append(b"y")
    assert len(ms.log("orders")) == 1


def test_used_as_a_plain_log_it_says_how_to_use_it(ms: Millstream, orders: PartitionedLog) -> None:
    orders.append(b"x")
    plain = ms.log("orders")
    uses: list[Callable[[], object]] = [
        lambda: plain.append(b"y"),
        lambda: plain.append_many([b"y", b"z"]),
        lambda: list(plain.read()),
        lambda: plain.end_offset(),
        lambda: plain.get(0),
        lambda: plain.cursor("c"),
        lambda: plain.wait(0, timeout=0),
        lambda: plain.stage(),
        lambda: plain.truncate(before=1),
        lambda: plain.fork("copy"),
        lambda: plain.owner(),
        lambda: plain.cursors(),
    ]
    for use in uses:
        with pytest.raises(Partitioned, match=r"log\('orders', partitions=4\)"):
            use()


def test_names_of_partitions_are_those_of_no_other_log(
    ms: Millstream, orders: PartitionedLog
) -> None:
    ms.log("source").append(b"x")
    orders.append(b"x")
    for name in ("orders-partition-4", "orders-partition-x", "other-partition-0", "a-partition-b"):
        with pytest.raises(InvalidName, match="are those of partitions"):
            ms.log(name).append(b"y")
        with pytest.raises(InvalidName):
            ms.log("source").fork(name)
    assert names(ms) == [*(f"orders-partition-{number}" for number in range(4)), "source"]


def test_without_the_number_it_is_opened_as_it_is(ms: Millstream, orders: PartitionedLog) -> None:
    with pytest.raises(NotFound):
        ms.partitioned_log("orders")
    orders.append_many(VALUES, keys=KEYS)
    assert by_key(ms.partitioned_log("orders").read()) == expected()
    ms.log("plain").append(b"x")
    with pytest.raises(NotFound):
        ms.partitioned_log("plain")


# Appending.


def test_records_of_a_key_stay_together_and_in_order(orders: PartitionedLog) -> None:
    places = [orders.append(VALUES[at], key=KEYS[at]) for at in range(100)]
    places += orders.append_many(VALUES[100:], keys=KEYS[100:])
    assert [place.partition for place in places] == [orders.partition_for(key) for key in KEYS]
    assert len({place.partition for place in places}) > 1
    assert len(set(places)) == 200
    for at, place in enumerate(places):
        record = orders.partition(place.partition).get(place.offset)
        assert record is not None
        assert (record.json(), record.partition) == (VALUES[at], place.partition)
    assert by_key(orders.read()) == expected()


def test_bytes_and_text_are_the_same_key(orders: PartitionedLog) -> None:
    assert orders.partition_for("é") == orders.partition_for("é".encode())
    assert orders.append(b"x", key=b"").partition == orders.partition_for(b"")


def test_items_are_spread_as_columns_are(orders: PartitionedLog) -> None:
    headers = [{"n": number} for number in range(200)]
    columns = orders.append_many(VALUES, keys=KEYS, headers=headers, timestamps=range(200))
    items = orders.append_many(Item(VALUES[at], KEYS[at], headers[at], at) for at in range(200))
    assert [one.partition for one in items] == [one.partition for one in columns]
    found = [(one.headers["n"], one.timestamp) for one in orders.read()]
    assert sorted(found) == sorted((at, at) for at in [*range(200), *range(200)])


def test_records_without_a_key_take_turns_by_call(orders: PartitionedLog) -> None:
    batches = [orders.append_many([b"a", b"b", b"c"]) for _ in range(4)]
    assert all(len({place.partition for place in places}) == 1 for places in batches)
    assert {places[0].partition for places in batches} == {0, 1, 2, 3}
    assert {orders.append(b"x").partition for _ in range(4)} == {0, 1, 2, 3}


def test_keyless_records_of_a_batch_stay_together_beside_others(orders: PartitionedLog) -> None:
    places = orders.append_many([b"a", b"b", b"c", b"d"], keys=[None, "k", None, "k"])
    assert places[0].partition == places[2].partition
    assert places[1].partition == places[3].partition == orders.partition_for("k")


def test_a_partition_may_be_named(orders: PartitionedLog) -> None:
    assert orders.append(b"x", key="k", partition=3) == PartitionOffset(3, 0)
    for wrong in (4, -1, True, "1"):
        with pytest.raises(InvalidInput, match=r"partitions 0 to 3|partition is a whole number"):
            orders.append(b"x", partition=wrong)  # type: ignore[arg-type]


def test_a_batch_is_stored_whole_or_not_at_all(orders: PartitionedLog) -> None:
    orders.append(b"x", key="k")
    held = orders.partition(orders.partition_for("key-1")).stage()
    with pytest.raises(millstream.errors.Locked):
        orders.append_many(VALUES, keys=KEYS)
    held.close()
    assert len(orders) == 1


@pytest.mark.parametrize(
    ("values", "columns", "message"),
    [
        (b"abc", {}, "append takes one"),
        ([b"a", b"b"], {"keys": ["k"]}, "2 values, but 1 keys"),
        ([Item(b"a"), b"b"], {}, "all items or all values"),
        ([Item(b"a")], {"keys": ["k"]}, "items carry their own"),
        ([b"a"], {"keys": [7]}, "a key is bytes or text"),
    ],
)
def test_a_batch_that_makes_no_sense_is_refused(
    orders: PartitionedLog, values: list[bytes], columns: dict[str, list[str]], message: str
) -> None:
    with pytest.raises(InvalidInput, match=message):
        orders.append_many(values, **columns)  # type: ignore[arg-type]


def test_an_empty_batch_is_stored_nowhere(ms: Millstream, orders: PartitionedLog) -> None:
    assert orders.append_many([]) == []
    assert names(ms) == []


def test_a_producer_counts_its_appends_to_a_partition(orders: PartitionedLog) -> None:
    first = orders.append(b"x", key="k", producer=Producer("p", 0))
    assert orders.append(b"x", key="k", producer=Producer("p", 0)) == first
    other = next(key for key in KEYS if orders.partition_for(key) != first.partition)
    assert orders.append(b"y", key=other, producer=Producer("p", 0)).partition != first.partition
    with pytest.raises(OutOfSequence):
        orders.append(b"x", key="k", producer=Producer("p", 2))
    with pytest.raises(InvalidInput, match="name a key, or the partition"):
        orders.append(b"x", producer=Producer("p", 1))
    assert len(orders) == 2


def test_many_producers_append_side_by_side(ms: Millstream, orders: PartitionedLog) -> None:
    def produce(name: str) -> None:
        own = ms.log("orders", partitions=4)
        for number in range(25):
            own.append({"n": number}, key=name)
        own.append_many([{"n": number} for number in range(25, 50)], keys=[name] * 25)

    threads = [threading.Thread(target=produce, args=(f"p{number}",)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert by_key(orders.read()) == {f"p{one}".encode(): list(range(50)) for one in range(6)}


# Reading.


def test_records_come_in_order_of_time_between_partitions(
    orders: PartitionedLog, clock: SimulatedClock
) -> None:
    for number in range(50):
        orders.append({"n": number}, key=KEYS[number])
        clock.advance(1)
    assert [one.json()["n"] for one in orders] == list(range(50))


def test_order_within_a_partition_holds_if_the_clock_goes_back(
    orders: PartitionedLog, clock: SimulatedClock
) -> None:
    for number in range(60):
        orders.append({"n": number}, key=KEYS[number])
        clock.jump(-3 if number % 2 else 5)
    found = list(orders.read())
    assert len(found) == 60
    found.sort(key=lambda one: one.partition)
    for _, some in groupby(found, key=lambda one: one.partition):
        offsets = [one.offset for one in some]
        assert offsets == list(range(len(offsets)))


def test_reading_begins_and_ends_where_it_is_told(orders: PartitionedLog) -> None:
    for number in range(4):
        for _ in range(5):
            orders.append(b"x", partition=number)
    found = [(one.partition, one.offset) for one in orders.read({0: 3, 1: 5}, {2: 1, 3: 0})]
    assert sorted(found) == [(0, 3), (0, 4), (2, 0)]
    for wrong in ({4: 0}, {-1: 0}, {0: -1}, {"0": 0}):
        with pytest.raises(
            InvalidInput,
            match=r"named by partition|(start|stop|offsets) is a (whole number|mapping)",
        ):
            list(orders.read(wrong))  # type: ignore[arg-type]
    orders.partition(0).truncate(before=2)
    with pytest.raises(Truncated):
        list(orders.read({0: 1}))
    assert len(list(orders.read())) == len(orders) == 18


def test_a_partition_that_has_just_forgotten_is_read_from_what_is_left(
    ms: Millstream, orders: PartitionedLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in (0, 1):
        for _ in range(5):
            orders.append(b"x", partition=number)
    ask, left = type(ms.session).execute, [2, 3]

    def asked(session: Any, command: Command[Any]) -> Any:
        if isinstance(command, ReadBlocks) and command.log == orders.partition(0).name and left:
            ask(session, Truncate(command.log, left.pop(0)))
        return ask(session, command)

    monkeypatch.setattr(type(ms.session), "execute", asked)
    assert sorted((one.partition, one.offset) for one in orders.read())[:3] == [
        (0, 3),
        (0, 4),
        (1, 0),
    ]
    assert not left


def test_a_tail_hears_of_every_partition(ms: Millstream, orders: PartitionedLog) -> None:
    orders.append(b"before", partition=0)
    tail = orders.tail({0: 1}, timeout=30)
    heard: list[tuple[int, bytes]] = []

    def listen() -> None:
        for record in tail:
            heard.append((record.partition, record.value))
            if len(heard) == 4:
                return

    thread = threading.Thread(target=listen)
    thread.start()
    other = ms.log("orders", partitions=4)
    for number in range(4):
        other.append(b"x", partition=number)
    thread.join(30)
    assert not thread.is_alive()
    assert sorted(heard) == [(number, b"x") for number in range(4)]


def test_a_tail_from_the_start_ends_when_nothing_comes(orders: PartitionedLog) -> None:
    assert list(orders.tail({}, timeout=0)) == []
    orders.append_many(VALUES, keys=KEYS)
    assert by_key(orders.tail({}, timeout=0)) == expected()
    assert list(orders.tail(timeout=0)) == []


def test_what_is_known_of_it_is_the_sum(orders: PartitionedLog) -> None:
    orders.append_many(VALUES, keys=KEYS)
    info, parts = orders.info(), orders.parts()
    assert info is not None
    assert (info.name, info.partitions, len(info)) == ("orders", 4, 200)
    assert info.bytes == sum(one.bytes for one in parts)
    assert [one.name for one in parts] == [f"orders-partition-{number}" for number in range(4)]
    assert sum(one.end_offset for one in parts) == len(orders) == 200


# Cursors.


def test_a_cursor_takes_from_all_partitions(reopen: Reopen) -> None:
    ms = reopen()
    orders = ms.log("orders", partitions=4)
    orders.append_many(VALUES, keys=KEYS)
    cursor = orders.cursor("reader")
    found: list[Record] = []
    while taken := cursor.take(7):
        found += taken
        assert len(taken) <= 7
        cursor.ack(taken)
    assert by_key(found) == expected()
    assert cursor.is_empty()
    ms = reopen()
    again = ms.log("orders", partitions=4).cursor("reader")
    assert again.is_empty()
    assert again.take(10) == []


def test_what_was_not_acknowledged_comes_again(reopen: Reopen) -> None:
    orders = reopen().log("orders", partitions=4)
    places = orders.append_many(VALUES, keys=KEYS)
    cursor = orders.cursor("reader")
    taken = cursor.take(200)
    done = [one for one in taken if one.json()["n"] % 2]
    cursor.ack(done)
    cursor.reset()
    assert sorted(one.json()["n"] for one in cursor.take(500)) == list(range(0, 200, 2))
    cursor.ack([places[0], places[2]])
    again = reopen().log("orders", partitions=4).cursor("reader")
    assert sorted(one.json()["n"] for one in again.take(500)) == list(range(4, 200, 2))


def test_acknowledgements_of_several_partitions_are_one_commit(orders: PartitionedLog) -> None:
    orders.append_many(VALUES, keys=KEYS)
    cursor = orders.cursor("reader")
    taken = cursor.take(200)
    gone = orders.partition(taken[-1].partition)
    gone.delete_cursor("reader")
    with pytest.raises(NotFound):
        cursor.ack(taken)
    for number in range(4):
        if number != taken[-1].partition:
            assert orders.partition(number).cursor("reader").floor() == 0


def test_offsets_alone_are_not_acknowledged(ms: Millstream, orders: PartitionedLog) -> None:
    orders.append(b"x", partition=1)
    cursor = orders.cursor("reader")
    other = ms.log("other")
    other.append(b"y")
    record = other.get(0)
    assert record is not None
    for wrong in (0, [0], record, [record]):
        with pytest.raises(InvalidInput, match="names records of log 'orders'"):
            cursor.ack(wrong)  # type: ignore[arg-type]
    with pytest.raises(InvalidInput, match="no partition 9"):
        cursor.ack(PartitionOffset(9, 0))
    cursor.ack([])


def test_a_cursor_waits_for_any_partition(ms: Millstream, orders: PartitionedLog) -> None:
    cursor = orders.cursor("reader")
    assert cursor.take(1, wait=0) == []
    thread = threading.Thread(target=lambda: orders.append(b"x", partition=2))
    thread.start()
    (record,) = cursor.take(1, wait=30)
    thread.join()
    assert (record.partition, record.value) == (2, b"x")


def test_cursors_start_move_and_go(orders: PartitionedLog) -> None:
    orders.append_many(VALUES, keys=KEYS)
    late = orders.cursor("late", start="latest")
    assert late.take(5) == []
    late.seek({0: 0})
    assert {one.partition for one in late.take(500)} == {0}
    assert late.floors()[0] == 0
    assert late.delete()
    assert not late.delete()
    assert not orders.delete_cursor("late")
    with pytest.raises(InvalidInput, match="'earliest', 'latest' or a time"):
        orders.cursor("odd", start=3)  # type: ignore[arg-type]
    with pytest.raises(InvalidInput, match="no partition 7"):
        orders.cursor("c").seek({7: 0})


def test_a_cursor_in_memory_flushes_each_partition(orders: PartitionedLog) -> None:
    orders.append_many(VALUES, keys=KEYS)
    cursor = orders.cursor("memory", durable=False, section=1)
    cursor.ack(cursor.take(500))
    assert cursor.is_empty()
    assert cursor.flush() == [one.end_offset for one in orders.parts()]
    assert [one.lag for one in cursor.info()] == [0, 0, 0, 0]


# Transactions.


def test_a_transaction_spreads_and_says_where(ms: Millstream, orders: PartitionedLog) -> None:
    with ms.transaction() as tx:
        one = tx.append(orders, VALUES[0], key=KEYS[0])
        many = tx.append_many(orders, VALUES[1:], keys=KEYS[1:])
        none = tx.append_many(orders, [])
    assert one.result == PartitionOffset(orders.partition_for(KEYS[0]), 0)
    assert len(many.result) == 199
    assert none.result == []
    assert by_key(orders.read()) == expected()


def test_a_transaction_that_fails_makes_no_partitions(
    ms: Millstream, orders: PartitionedLog
) -> None:
    ms.log("plain").append(b"x")
    tx = ms.transaction()
    tx.append(orders, b"x", key="k")
    tx.append("plain", b"y", expect_end=7)
    with pytest.raises(Conflict), tx:
        pass
    assert names(ms) == ["plain"]
    with pytest.raises(InvalidInput, match="expect_end is of one log"), ms.transaction() as tx:
        tx.append(orders, b"x", expect_end=0)
    orders.create()
    with pytest.raises(Partitioned), ms.transaction() as tx:
        tx.append(ms.log("orders", partitions=5), b"x")


def test_records_are_moved_on_exactly_once(ms: Millstream, orders: PartitionedLog) -> None:
    orders.append_many(VALUES, keys=KEYS)
    target = ms.log("copies", partitions=3)
    cursor = orders.cursor("mover")
    while taken := cursor.take(30):
        with ms.transaction() as tx:
            for record in taken:
                tx.append(target, record.value, key=record.key)
            tx.ack(cursor, taken)
    assert by_key(target.read()) == expected()
    assert cursor.is_empty()


# Queues.


def test_a_queue_takes_from_all_partitions(ms: Millstream, orders: PartitionedLog) -> None:
    orders.append_many(VALUES[:100], keys=KEYS[:100])
    queue = ms.create_queue("work", sources=orders, start="earliest")
    orders.append_many(VALUES[100:], keys=KEYS[100:])
    found = []
    while messages := queue.claim(30):
        found += messages
        queue.ack(messages)
    assert sorted(one.json()["n"] for one in found) == list(range(200))
    assert {one.log for one in found} == {one.name for one in orders.parts()}
    ms.create_queue("work", sources="orders", start="earliest")
    assert queue.claim(1) == []


def test_a_queue_keeps_the_order_of_each_key(ms: Millstream, orders: PartitionedLog) -> None:
    orders.append_many(VALUES, keys=KEYS)
    queue = ms.create_queue("work", sources="orders", start="earliest", group_by="_key")
    found: dict[bytes | None, list[int]] = {}
    while messages := queue.claim(30):
        for one in messages:
            found.setdefault(one.key, []).append(one.json()["n"])
        queue.ack(messages)
    assert found == expected()


def test_a_queue_made_before_the_log_takes_from_it(ms: Millstream, orders: PartitionedLog) -> None:
    queue = ms.create_queue("work", sources=["orders", "more"])
    orders.append_many(VALUES, keys=KEYS)
    ms.log("more").append({"n": 200})
    assert sorted(one.json()["n"] for one in queue.claim(500)) == list(range(201))


def test_a_dead_letter_log_has_no_partitions(ms: Millstream, orders: PartitionedLog) -> None:
    ms.create_queue("work", dead_letter="orders")
    with pytest.raises(Conflict, match="which can have no partitions"):
        orders.create()
    ms.queue("work").delete()
    orders.create()
    with pytest.raises(InvalidInput, match="dead-letter log 'orders' has partitions"):
        ms.create_queue("work", dead_letter="orders")


# The log as a whole.


def test_retention_is_that_of_each_partition(ms: Millstream, orders: PartitionedLog) -> None:
    orders.retain(count=2)
    assert orders.retention() == Retention(count=2)
    assert all(one.retention == Retention(count=2) for one in orders.parts())
    for number in range(4):
        for _ in range(5):
            orders.append(b"x", partition=number)
    orders.enforce_retention()
    assert [len(one) for one in orders.parts()] == [2, 2, 2, 2]


def test_metadata_is_that_of_the_whole(ms: Millstream, orders: PartitionedLog) -> None:
    orders.create()
    orders.metadata["owner"] = "sales"
    assert ms.log("orders").metadata["owner"] == "sales"
    assert orders.metadata["owner"] == "sales"
    for key, log in (("millstream:partitions", "orders"), ("millstream:partitions", "plain")):
        with pytest.raises(InvalidInput, match="the store's own"):
            ms.log(log).metadata[key] = 9
    with pytest.raises(InvalidInput, match="the store's own"):
        del orders.metadata["millstream:partitions"]
    assert orders.partitions == len(orders.parts()) == 4


def test_it_is_deleted_whole(ms: Millstream, orders: PartitionedLog) -> None:
    orders.append_many(VALUES, keys=KEYS)
    with pytest.raises(InvalidInput, match="is partition 2 of log 'orders'"):
        orders.partition(2).delete()
    assert orders.delete()
    assert not orders.delete()
    assert names(ms) == []
    orders.append(b"again", key="k")
    assert len(orders) == 1
    assert ms.log("orders").delete()
    assert names(ms) == []
    ms.log("orders").append(b"plain")
    with pytest.raises(AlreadyExists):
        orders.append(b"x", key="k")


def test_a_handle_goes_on_when_another_has_deleted_the_log(
    ms: Millstream, orders: PartitionedLog
) -> None:
    orders.append(b"x", key="k")
    ms.log("orders", partitions=4).delete()
    assert orders.append(b"y", key="k").offset == 0
    ms.log("orders", partitions=4).delete()
    assert len(orders.append_many(VALUES, keys=KEYS)) == 200
    assert len(orders) == 200


def test_partitions_can_be_added(ms: Millstream, orders: PartitionedLog) -> None:
    orders.append_many(VALUES[:100], keys=KEYS[:100])
    orders.retain(count=1_000)
    known, cursor = ms.partitioned_log("orders"), orders.cursor("reader")
    queue = ms.create_queue("work", sources="orders")
    cursor.ack(cursor.take(500))
    orders.add_partitions(9)
    assert (orders.partitions, len(orders.parts())) == (9, 9)
    assert orders.retention() == orders.parts()[8].retention == Retention(count=1_000)
    orders.append_many(VALUES[100:], keys=KEYS[100:])
    assert sorted(one.json()["n"] for one in orders) == list(range(200))
    assert len(known) == 200
    assert known.partitions == 9
    assert sorted(one.json()["n"] for one in cursor.take(500)) == list(range(100, 200))
    assert sorted(one.json()["n"] for one in queue.claim(500)) == list(range(100, 200))
    for fewer in (8, 1):
        with pytest.raises(Partitioned, match="never lowered"):
            orders.add_partitions(fewer)
    with pytest.raises(Partitioned):
        len(ms.log("orders", partitions=4))
    with pytest.raises(NotFound):
        ms.log("none", partitions=2).add_partitions(3)


def test_it_is_there_after_reopening_folded_or_not(reopen: Reopen) -> None:
    for fold in (False, True):
        ms = reopen()
        name = f"orders-{fold}"
        ms.log(name, partitions=5).append_many(VALUES, keys=KEYS)
        if fold:
            ms.fold()
        ms = reopen()
        assert ms.partitioned_log(name).partitions == 5
        assert by_key(ms.log(name, partitions=5).read()) == expected()
        with pytest.raises(Partitioned):
            ms.log(name).append(b"x")


def test_a_copy_has_the_partitions_too(ms: Millstream, tmp_path: Path) -> None:
    orders = ms.log("orders", partitions=4)
    orders.append_many(VALUES, keys=KEYS)
    ms.log("other").append(b"x")
    with millstream.open(tmp_path / "copy.db") as copy:
        copy.sync(ms, logs="orders")
        assert names(copy) == [f"orders-partition-{number}" for number in range(4)]
        copied = copy.partitioned_log("orders")
        assert by_key(copied.read()) == expected()
        with pytest.raises(millstream.errors.NotOwner):
            copied.append(b"x", key="k")
        copied.take_over()
        copied.append({"n": 200}, key="key-0")
        assert len(copied) == 201


def test_a_copy_does_not_mix_a_log_and_its_partitions(ms: Millstream, tmp_path: Path) -> None:
    ms.log("orders", partitions=2).append(b"x")
    with millstream.open(tmp_path / "copy.db") as copy:
        copy.log("orders").append(b"y")
        with pytest.raises(Conflict):
            copy.sync(ms, direction="pull")
        assert names(copy) == ["orders"]
