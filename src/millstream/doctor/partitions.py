"""The examination of partitioned logs: every counted partition exists, and no further partition.

Copies are not examined: a sync brings their partitions one by one.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from millstream.doctor.findings import Findings
from millstream.log.model.head import Head
from millstream.log.model.metadata import MetadataState
from millstream.log.model.partitioned import count_in
from millstream.partitioning import partition_name, partition_of


def check_partitions(
    heads: Iterable[Head], metadata: Mapping[str, MetadataState], findings: Findings
) -> None:
    """Compare the existing partitions with the number that each log declares."""
    heads_by_log: dict[str, dict[int, Head]] = {}
    for head in heads:
        if (log_and_number := partition_of(head.name)) is not None:
            heads_by_log.setdefault(log_and_number[0], {})[log_and_number[1]] = head
    for log, partitions in heads_by_log.items():
        if any(head.owner for head in partitions.values()):
            continue
        state = metadata.get(partition_name(log, 0))
        count = 0 if state is None or 0 not in partitions else count_in(state)
        for number in range(count):
            if number not in partitions:
                _missing(log, number, count, findings)
        for number in sorted(partitions):
            if number >= count:
                _uncounted(log, number, count, findings)


def _missing(log: str, number: int, count: int, findings: Findings) -> None:
    findings.of_log(
        log,
        f"log {log!r} has {count} partitions, but partition {number} is gone, and keys that belong "
        f"there cannot be appended; add_partitions({count}) makes it again, empty",
    )


def _uncounted(log: str, number: int, count: int, findings: Findings) -> None:
    name = partition_name(log, number)
    if count:
        findings.of_log(
            name,
            f"log {log!r} has {count} partitions, 0 to {count - 1}, and {name!r} is none of them: its "
            f"records are not read as those of {log!r}; add_partitions({number + 1}) counts it in, or "
            "delete it",
        )
    else:
        findings.of_log(
            name,
            f"{name!r} is a partition, but how many log {log!r} has is lost with the first of them: "
            f"read its records by its own name, append them to a new log, and delete it",
        )
