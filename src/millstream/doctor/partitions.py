"""The examination of logs with partitions: all that a log counts are there, and no others.

A copy is left alone: its partitions come one after the other, and the next sync brings the rest.
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
    """Compare the partitions that are there with how many each log says that it has."""
    found: dict[str, dict[int, Head]] = {}
    for head in heads:
        if (part := partition_of(head.name)) is not None:
            found.setdefault(part[0], {})[part[1]] = head
    for log, parts in found.items():
        if any(head.owner for head in parts.values()):
            continue
        state = metadata.get(partition_name(log, 0))
        count = 0 if state is None or 0 not in parts else count_in(state)
        for number in range(count):
            if number not in parts:
                _missing(log, number, count, findings)
        for number in sorted(parts):
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
