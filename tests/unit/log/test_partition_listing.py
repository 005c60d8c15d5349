"""Listings of logs with partitions: each is one log with its sums, and its partitions on request."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from millstream import Millstream
from millstream.format import keys
from millstream.log.commands import ListLogs
from millstream.log.model.head import LogNamed
from millstream.testing import Probe

Reopen = Callable[..., Millstream]

PARTITIONS = 12


def listed(ms: Millstream, *, partitions: bool = False) -> list[str]:
    return [info.name for info in ms.logs(partitions=partitions)]


def parts(log: str, count: int = PARTITIONS) -> list[str]:
    return sorted(f"{log}-partition-{number}" for number in range(count))


def test_a_log_with_partitions_is_listed_once_with_its_sums(ms: Millstream) -> None:
    orders = ms.log("orders", partitions=PARTITIONS)
    orders.append_many([b"x" * number for number in range(50)], keys=[str(n) for n in range(50)])
    orders.partition(0).truncate(before=1)
    ms.log("plain").append(b"x")
    whole, plain = ms.logs()
    assert (whole.name, whole.partitions, len(whole)) == ("orders", PARTITIONS, len(orders))
    assert whole == orders.info()
    assert (plain.name, plain.partitions) == ("plain", 0)
    assert whole.bytes == sum(one.bytes for one in orders.parts()) > 0


def test_partitions_are_listed_on_request(ms: Millstream) -> None:
    ms.log("orders", partitions=PARTITIONS).create()
    ms.log("plain").append(b"x")
    assert listed(ms, partitions=True) == [*parts("orders"), "plain"]
    assert {info.partitions for info in ms.logs(partitions=True)} == {0}


@pytest.mark.parametrize("limit", [1, 2, 3, 5, 100])
def test_pages_of_any_size_show_each_log_once(ms: Millstream, reopen: Reopen, limit: int) -> None:
    names = ["a", "orders!", "orders-a", "orders-partition", "orders-q", "z"]
    for name in names:
        ms.log(name).append(b"x")
    for name in ("a-", "orders", "orders-partition-x"):
        ms.log(name, partitions=PARTITIONS).create()
    for opened in (lambda: ms, reopen):
        one = opened()
        found: list[str] = []
        after = ""
        while page := one.session.execute(ListLogs(after, limit)):
            assert len(page) <= limit
            found += [info.name for info in page]
            after = page[-1].name
        assert sorted(found) == sorted([*names, "a-", "orders", "orders-partition-x"])
        assert found == listed(one)


def test_a_listing_goes_on_behind_a_partition_by_name(ms: Millstream) -> None:
    ms.log("orders", partitions=3).create()
    ms.log("plain").append(b"x")
    for after in ("orders", *parts("orders", 3)):
        assert [one.name for one in ms.session.execute(ListLogs(after, 10))] == ["plain"]


@pytest.mark.embedded
def test_a_partition_that_no_log_counts_is_not_hidden(ms: Millstream) -> None:
    ms.log("orders", partitions=4).create()
    _lose(ms, "orders-partition-2")
    assert listed(ms) == ["orders"]
    assert next(ms.logs()).partitions == 4
    _lose(ms, "orders-partition-0")
    assert listed(ms) == ["orders-partition-1", "orders-partition-3"]


def _lose(ms: Millstream, name: str) -> None:
    """Let a name lead nowhere, as a damaged row does."""
    store = Probe(ms).store
    store.run(lambda tx: tx.change(keys.log_name(name), LogNamed(0)))
