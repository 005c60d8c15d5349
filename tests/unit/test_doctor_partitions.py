"""The doctor names what is wrong with the partitions of a log, and what it advises mends it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import millstream
from millstream import Millstream
from millstream.doctor import examine
from millstream.errors import InvalidInput, InvalidName, NotFound
from millstream.format import keys
from millstream.log.model.head import Deleted, Name
from millstream.log.model.metadata import Meta, MetadataState, Set
from millstream.log.rules.operations import new_log
from millstream.partitioning import PARTITIONS_KEY
from millstream.store.commit.transaction import WriteTransaction
from millstream.testing import Probe

PARTITIONS = 4
KEYS = [f"k{number}" for number in range(40)]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "store.db"


@pytest.fixture(params=[False, True], ids=["unfolded", "folded"])
def ms(request: pytest.FixtureRequest, path: Path) -> Iterator[Millstream]:
    with millstream.open(path) as opened:
        opened.log("orders", partitions=PARTITIONS).append_many(KEYS, keys=KEYS)
        opened.log("plain").append(b"x")
        if request.param:
            opened.fold()
        yield opened


def lose(ms: Millstream, name: str) -> None:
    """Forget a partition as a fault of ours would: not the others with it."""

    def forget(tx: WriteTransaction) -> None:
        log_id = tx.entity(keys.log_name(name), Name).log_id
        tx.change(keys.log_name(name), None)
        tx.change(keys.head(log_id), Deleted())
        tx.change(keys.metadata(log_id), None)

    Probe(ms).store.run(forget)


def add(ms: Millstream, name: str) -> None:
    """Make a partition that its log does not count."""
    Probe(ms).store.run(lambda tx: new_log(tx, name))


def problems(path: Path) -> list[tuple[str | None, str]]:
    report = examine(path)
    assert report.healthy == (not report.problems)
    return [(one.log, one.message) for one in report.problems]


def test_a_log_with_all_its_partitions_is_sound(ms: Millstream, path: Path) -> None:
    ms.log("orders", partitions=PARTITIONS).add_partitions(12)
    assert problems(path) == []


def test_a_missing_partition_is_named_and_made_again(ms: Millstream, path: Path) -> None:
    lose(ms, "orders-partition-2")
    ((log, message),) = problems(path)
    assert log == "orders"
    assert "has 4 partitions, but partition 2 is gone" in message
    assert "add_partitions(4)" in message
    orders = ms.partitioned_log("orders")
    with pytest.raises(InvalidName, match="no log 'orders-partition-2'"):
        orders.append(b"x", partition=2)
    kept = {record.value for record in orders.read()}
    orders.add_partitions(4)
    assert problems(path) == []
    orders.append(b"x", partition=2)
    assert {record.value for record in orders.read()} == {*kept, b"x"}


def test_a_partition_that_is_not_counted_is_named_and_counted_in(
    ms: Millstream, path: Path
) -> None:
    add(ms, "orders-partition-6")
    ms.log("orders-partition-6").append(b"stray")
    assert b"stray" not in [record.value for record in ms.partitioned_log("orders").read()]
    ((log, message),) = problems(path)
    assert log == "orders-partition-6"
    assert "has 4 partitions, 0 to 3" in message
    assert "add_partitions(7)" in message
    orders = ms.partitioned_log("orders")
    orders.add_partitions(7)
    assert problems(path) == []
    assert b"stray" in [record.value for record in orders.read()]


def test_a_partition_that_is_not_counted_can_be_deleted_by_itself(
    ms: Millstream, path: Path
) -> None:
    add(ms, "orders-partition-6")
    with pytest.raises(InvalidInput, match="delete 'orders'"):
        ms.log("orders-partition-3").delete()
    assert ms.log("orders-partition-6").delete()
    assert problems(path) == []


def test_without_the_first_partition_the_others_are_named_and_go_as_one(
    ms: Millstream, path: Path
) -> None:
    lose(ms, "orders-partition-0")
    found = problems(path)
    assert [log for log, _ in found] == [f"orders-partition-{number}" for number in (1, 2, 3)]
    assert all("how many log 'orders' has is lost" in message for _, message in found)
    with pytest.raises(NotFound):
        ms.partitioned_log("orders")
    assert ms.log("orders").delete()
    assert problems(path) == []
    assert [one.name for one in ms.logs()] == ["plain"]
    ms.log("orders", partitions=2).append(b"x")


def test_a_number_that_is_none_is_found(ms: Millstream, path: Path) -> None:
    key = keys.metadata(int(Probe(ms).store.seen(keys.log_name("orders-partition-0"))))

    def spoil(tx: WriteTransaction) -> None:
        stamp = tx.entity(key, MetadataState).entries[PARTITIONS_KEY].stamp
        tx.change(key, Set(PARTITIONS_KEY, Meta(stamp, True, "many")))

    Probe(ms).store.run(spoil)
    assert len(problems(path)) == PARTITIONS


def test_a_log_is_deleted_with_partitions_that_it_does_not_count(
    ms: Millstream, path: Path
) -> None:
    add(ms, "orders-partition-9")
    ms.log("orders-partition-x", partitions=2).create()
    assert ms.log("orders", partitions=PARTITIONS).delete()
    assert [one.name for one in ms.logs()] == ["orders-partition-x", "plain"]
    assert problems(path) == []


def test_a_copy_that_has_only_some_partitions_is_sound(ms: Millstream, tmp_path: Path) -> None:
    for number in (0, 3):
        place = tmp_path / f"copy-{number}.db"
        with millstream.open(place) as copy:
            copy.sync(ms, direction="pull", logs=f"orders-partition-{number}")
            assert len(list(copy.logs(partitions=True))) == 1
        assert problems(place) == []
