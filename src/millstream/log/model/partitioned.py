"""Partitioned logs, as the store knows them: several logs that are used as one.

There is no log of the name of the whole: only those of its partitions, which are logs like any
other. How many there are stands in the metadata of the first, and so comes to every copy with it.
All of them are made by one commit, and go by one.
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
"""Characters in the name of a log with partitions: those of its partitions are names as well."""


def count_partitions(view: WriteTransaction | View, log: str) -> int:
    """How many partitions a log has; 0 if it has none."""
    first_id = view.entity(keys.log_name(partition_name(log, 0)), Name).log_id
    if not first_id:
        return 0
    return count_in(view.entity(keys.metadata(first_id), MetadataState))


def count_in(metadata: MetadataState) -> int:
    """How many partitions the metadata of the first one tells of; 0 if it tells of none."""
    meta = metadata.entries.get(PARTITIONS_KEY)
    count = meta.value if meta is not None and meta.present else 0
    return count if type(count) is int and 0 <= count <= PARTITIONS_MAX else 0


def partitions_of(view: WriteTransaction | View, log: str) -> list[str]:
    """The names of a log's partitions, in their order; empty if it has none."""
    return [partition_name(log, number) for number in range(count_partitions(view, log))]


def every_partition(view: View, log: str) -> list[str]:
    """The names of all partitions that are there, also of those that the log does not count."""
    names = map(keys.name_of_log, view.find_all(*keys.range_of(keys.log_name(log + PARTITION))))
    return [name for name in names if whole_of(name) == log]


def first_of(view: WriteTransaction | View, log: str) -> str:
    """The log that keeps what is said of all partitions; one without partitions is itself."""
    return partition_name(log, 0) if count_partitions(view, log) else log


def check_whole_name(name: str) -> None:
    """Refuse the name of a log that cannot have partitions."""
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
    """Refuse to make a log whose name stands for a log with partitions, or for one of these."""
    if count := count_partitions(view, name):
        raise is_partitioned(name, count)
    if PARTITION in name:
        whole = name.rpartition(PARTITION)[0]
        raise InvalidName(
            f"there is no log {name!r}, and names with {PARTITION!r} in them are those of "
            f"partitions: say log({whole!r}, partitions=…), or choose another name",
            name=name,
        )


def check_copy(view: WriteTransaction | View, name: str) -> None:
    """Refuse to begin a copy that would be a log and a log with partitions under one name."""
    if count := count_partitions(view, name):
        raise is_partitioned(name, count)
    part = partition_of(name)
    if part is not None and view.entity(keys.log_name(part[0]), Name).log_id:
        raise AlreadyExists(
            f"{name!r} is a partition, but there is a log {part[0]!r} here that has none: delete "
            "one of them",
            name=part[0],
        )


def is_partitioned(log: str, count: int) -> Partitioned:
    """The error for a request to a log that only its partitions can answer, or all of them as one."""
    return Partitioned(
        f"log {log!r} has {count} partitions: use it as log({log!r}, partitions={count}), or one of "
        f"them, {partition_name(log, 0)!r} and so on",
        log=log,
        partitions=count,
    )
