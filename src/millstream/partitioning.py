"""Names of partitions, and the partition of a key. Pure.

Partition 3 of the log `orders` is the log `orders-partition-3`. Only partitions may have
names of this form, so the name alone identifies a partition.

Keys go to the same partition as with the default partitioner of Kafka's Java client (murmur2), if the
topic has the same number of partitions.
"""

from __future__ import annotations

import re
from functools import lru_cache

PARTITIONS_MAX = 1_024
"""Partitions of a log; each partition is a log, and a listing reads every partition."""

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
    """Return the name of a partition."""
    return f"{log}{PARTITION}{partition}"


def partition_of(name: str) -> tuple[str, int] | None:
    """Return the log and number in the name of a partition; None if the name has no partition."""
    if PARTITION not in name:
        return None
    match = _FORM.fullmatch(name)
    if match is None or int(match[2]) >= PARTITIONS_MAX:
        return None
    return match[1], int(match[2])


def whole_of(name: str) -> str:
    """Return the partitioned log of a partition; other names are returned unchanged."""
    match = partition_of(name)
    return name if match is None else match[0]


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
    digest = _SEED ^ count
    aligned = count & ~3
    for at in range(0, aligned, 4):
        word = int.from_bytes(data[at : at + 4], "little") * _M & _32_BITS
        word = (word ^ word >> 24) * _M & _32_BITS
        digest = digest * _M & _32_BITS ^ word
    if aligned < count:
        digest = (digest ^ int.from_bytes(data[aligned:], "little")) * _M & _32_BITS
    digest = (digest ^ digest >> 13) * _M & _32_BITS
    return digest ^ digest >> 15
