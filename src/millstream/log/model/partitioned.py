"""Partitioned logs: several logs that users see as a single log.

Only the partitions exist as logs; there is no log with the name of the partitioned log. The metadata of
the first partition holds the number of partitions, and so reaches every copy. Partitions are made in a
single commit, and deleted in a single commit.
"""

from __future__ import annotations

from millstream.errors import AlreadyExists, InvalidName, Partitioned
from millstream.format import keys
from millstream.limits import NAME_CHARS_MAX
from millstream.log.model.head import Name
from millstream.log.model.metadata import MetadataState
from millstream.log.model.names import PRIVATE
from millstream.partitioning import (
    PARTITION,
    PARTITIONS_KEY,
    PARTITIONS_MAX,
    partition_name,
    partition_of,
    whole_of,
)
from millstream.store.commit.transaction import WriteTransaction
from millstream.store.state.view import View

WHOLE_CHARS_MAX = NAME_CHARS_MAX - len(partition_name("", PARTITIONS_MAX))
"""The most characters of a partitioned log's name, since the names of partitions are longer."""


def count_partitions(view: WriteTransaction | View, log: str) -> int:
    """Return the number of partitions of a log; 0 for a plain log."""
    first_id = view.entity(keys.log_name(partition_name(log, 0)), Name).log_id
    if not first_id:
        return 0
    return count_in(view.entity(keys.metadata(first_id), MetadataState))


def count_in(metadata: MetadataState) -> int:
    """Return the number of partitions from the metadata of the first partition; 0 without an entry."""
    meta = metadata.entries.get(PARTITIONS_KEY)
    count = meta.value if meta is not None and meta.present else 0
    return count if type(count) is int and 0 <= count <= PARTITIONS_MAX else 0


def partitions_of(view: WriteTransaction | View, log: str) -> list[str]:
    """Return the names of a log's partitions, in order; empty for a plain log."""
    return [partition_name(log, number) for number in range(count_partitions(view, log))]


def every_partition(view: View, log: str) -> list[str]:
    """Return the names of all existing partitions, including uncounted partitions."""
    names = map(keys.name_of_log, view.find_all(*keys.range_of(keys.log_name(log + PARTITION))))
    return [name for name in names if whole_of(name) == log]


def first_of(view: WriteTransaction | View, log: str) -> str:
    """Return the name of the log with the metadata: the first partition, or the plain log itself."""
    return partition_name(log, 0) if count_partitions(view, log) else log


def check_whole_name(name: str) -> None:
    """Raise if a log of this name cannot have partitions."""
    if len(name) > WHOLE_CHARS_MAX:
        raise InvalidName(
            f"the name of a log with partitions has up to {WHOLE_CHARS_MAX} characters, "
            f"not {len(name)}",
            name=name,
        )
    if name.startswith(PRIVATE) or partition_of(name) is not None:
        raise InvalidName(
            f"a log named {name!r} cannot have partitions: it belongs to a queue, a room, the "
            "store or another log; choose another name",
            name=name,
        )


def check_plain(view: WriteTransaction | View, name: str) -> None:
    """Raise if the name belongs to a partitioned log or to a partition."""
    if count := count_partitions(view, name):
        raise is_partitioned(name, count)
    if PARTITION in name:
        partitioned = name.rpartition(PARTITION)[0]
        raise InvalidName(
            f"there is no log {name!r}, and names with {PARTITION!r} in them are those of "
            f"partitions: say log({partitioned!r}, partitions=…), or choose another name",
            name=name,
        )


def check_copy(view: WriteTransaction | View, name: str) -> None:
    """Raise if a copy would make a plain log and a partitioned log of the same name."""
    if count := count_partitions(view, name):
        raise is_partitioned(name, count)
    partition = partition_of(name)
    if partition is not None and view.entity(keys.log_name(partition[0]), Name).log_id:
        raise AlreadyExists(
            f"{name!r} is a partition, but there is a log {partition[0]!r} here that has none: delete "
            "one of them",
            name=partition[0],
        )


def is_partitioned(log: str, count: int) -> Partitioned:
    """Return the error for a request that a partitioned log cannot answer as a plain log."""
    return Partitioned(
        f"log {log!r} has {count} partitions: use it as log({log!r}, partitions={count}), or one of "
        f"them, {partition_name(log, 0)!r} and so on",
        log=log,
        partitions=count,
    )
