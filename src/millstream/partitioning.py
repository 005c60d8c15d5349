"""Partitions: how a log that has several names them, and which of them a key belongs to; pure.

Partition 3 of the log `orders` is the log `orders-partition-3`. Names of that form belong to
partitions alone, so that a name says by itself what it stands for.

A key goes where the default partitioner of Kafka's Java client puts it (murmur2), so that the keys of
a topic with as many partitions land alike.
"""

from __future__ import annotations

import re
from functools import lru_cache

PARTITIONS_MAX = 1_024
"""Partitions of one log: each is a log of its own, and a look at all of them looks at each."""

PARTITION = "-partition-"
"""Stands between the name of a log and the number of its partition."""

PARTITIONS_KEY = "millstream:partitions"
"""The entry of the first partition's metadata that says how many partitions there are."""

KEYS_REMEMBERED = 65_536
"""Keys whose hash is remembered: most records have a key that was seen before."""

_FORM = re.compile(rf"(.+){PARTITION}(0|[1-9][0-9]{{0,3}})", re.DOTALL)

_M, _SEED = 0x5BD1E995, 0x9747B28C
_32_BITS, _31_BITS = 0xFFFFFFFF, 0x7FFFFFFF


def partition_name(log: str, partition: int) -> str:
    """The log that one partition is."""
    return f"{log}{PARTITION}{partition}"


def partition_of(name: str) -> tuple[str, int] | None:
    """The log and the number of a partition that is named so; None if it is no partition's name."""
    if PARTITION not in name:
        return None
    found = _FORM.fullmatch(name)
    if found is None or int(found[2]) >= PARTITIONS_MAX:
        return None
    return found[1], int(found[2])


def whole_of(name: str) -> str:
    """The log that a log is a partition of; one that is no partition is itself."""
    found = partition_of(name)
    return name if found is None else found[0]


def pattern_of(log: str) -> str:
    """The pattern of the names of all partitions, also of those to come."""
    return f"{log}{PARTITION}*"


def key_partition(key: bytes, partitions: int) -> int:
    """Which of so many partitions a key belongs to."""
    return (murmur2(key) & _31_BITS) % partitions


@lru_cache(maxsize=KEYS_REMEMBERED)
def murmur2(data: bytes) -> int:
    """The hash of 32 bits that Kafka's clients choose partitions by, without a sign."""
    count = len(data)
    found = _SEED ^ count
    whole = count & ~3
    for at in range(0, whole, 4):
        part = int.from_bytes(data[at : at + 4], "little") * _M & _32_BITS
        part = (part ^ part >> 24) * _M & _32_BITS
        found = found * _M & _32_BITS ^ part
    if whole < count:
        found = (found ^ int.from_bytes(data[whole:], "little")) * _M & _32_BITS
    found = (found ^ found >> 13) * _M & _32_BITS
    return found ^ found >> 15
