"""The names of partitions, and where keys belong."""

from __future__ import annotations

import pytest

from millstream.partitioning import (
    PARTITIONS_MAX,
    key_partition,
    murmur2,
    partition_name,
    partition_of,
    pattern_of,
    whole_of,
)


@pytest.mark.parametrize(
    ("key", "expected"),
    [
        (b"21", -973932308),
        (b"foobar", -790332482),
        (b"a-little-bit-long-string", -985981536),
        (b"a-little-bit-longer-string", -1486304829),
        (b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8", -58897971),
        (b"abc", 479470107),
    ],
)
def test_keys_are_hashed_as_by_kafkas_java_client(key: bytes, expected: int) -> None:
    assert murmur2(key) == expected % 2**32


def test_a_key_always_belongs_to_one_of_the_partitions() -> None:
    keys = [str(number).encode() for number in range(1_000)]
    for count in (1, 2, 8, 100):
        found = [key_partition(key, count) for key in keys]
        assert set(found) == set(range(count))
        assert found == [key_partition(key, count) for key in keys]


def test_no_partition_gets_much_more_than_its_share() -> None:
    found = [key_partition(f"customer-{number}".encode(), 8) for number in range(8_000)]
    assert all(800 < found.count(number) < 1_200 for number in range(8))


@pytest.mark.parametrize("number", [0, 7, 10, PARTITIONS_MAX - 1])
def test_the_name_of_a_partition_says_what_it_is(number: int) -> None:
    name = partition_name("a/b", number)
    assert partition_of(name) == ("a/b", number)
    assert whole_of(name) == "a/b"


@pytest.mark.parametrize(
    "name",
    [
        "orders",
        "orders-partition-",
        "orders-partition-x",
        "orders-partition-01",
        "orders-partition--1",
        "-partition-1",
        f"orders-partition-{PARTITIONS_MAX}",
        "orders-partition-3~fork-12ab",
        "orders-partition-٣",
        "orders-partition-3\n",
    ],
)
def test_other_names_are_those_of_no_partition(name: str) -> None:
    assert partition_of(name) is None
    assert whole_of(name) == name


def test_a_pattern_means_all_partitions() -> None:
    assert pattern_of("orders") == "orders-partition-*"
