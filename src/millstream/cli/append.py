"""`millstream append`: append records from arguments or standard input."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Any

import typer
from msgspec.structs import replace

from millstream import Headers, Millstream, PartitionedLog, Producer
from millstream.cli.arguments import parse_timestamp
from millstream.cli.command import AsJson
from millstream.cli.display import json_text, report
from millstream.cli.input import Input
from millstream.cli.names import LogName
from millstream.errors import Partitioned


def append(
    log: LogName,
    ms: Millstream,
    source: Input,
    values: Annotated[
        list[str] | None,
        typer.Argument(metavar="VALUE...", help="Records; default: the lines of stdin."),
    ] = None,
    timestamp: Annotated[
        int | None,
        typer.Option(
            parser=parse_timestamp, metavar="TIME", help="Milliseconds, or ISO 8601; default: now."
        ),
    ] = None,
    expect_end: Annotated[
        int | None, typer.Option(metavar="N", min=0, help="Only if the log's end is this offset.")
    ] = None,
    producer: Annotated[
        str | None, typer.Option(metavar="NAME", help="With --sequence: a repeat is stored once.")
    ] = None,
    sequence: Annotated[
        int | None, typer.Option(metavar="N", min=0, help="The number of this producer's append.")
    ] = None,
    epoch: Annotated[
        int, typer.Option(metavar="N", min=0, help="A higher epoch fences lower ones.")
    ] = 0,
    json: AsJson = False,
) -> None:
    """Append records, and print their offsets once they are durable.

    The log is created if needed. A log with partitions spreads records by key; each printed line
    then begins with the partition. Values are arguments, or lines of standard input: one record per
    line, a batch per commit. If the reader of the output goes away, the remaining input is still
    stored.
    """
    if (producer is None) != (sequence is None):
        raise typer.BadParameter("--producer and --sequence go together")
    counting = None
    if producer is not None and sequence is not None:
        counting = Producer(producer, sequence, epoch)
    appending = _Appending(
        ms,
        log,
        key=source.key,
        headers=source.headers(),
        timestamp=timestamp,
        expect_end=expect_end,
        producer=counting,
    )
    try:
        batches = source.batches(values, noun="record", steady=counting is not None, quiet=json)
        for batch in batches:
            for prefix, offsets in appending.append(batch):
                if not json:
                    last = f"-{offsets.stop - 1}" if len(offsets) > 1 else ""
                    report(f"{prefix}{offsets.start}{last}")
    finally:
        if json:
            report(json_text({"log": log, "count": appending.count, "ranges": appending.ranges}))


@dataclass
class _Appending:
    """Appends batches, and remembers their offsets."""

    ms: Millstream
    log: str
    key: str | None
    headers: Headers
    timestamp: int | None
    expect_end: int | None
    producer: Producer | None
    count: int = 0
    ranges: list[list[int]] = field(default_factory=list)
    spread: PartitionedLog | None = None
    """The partitioned log, once the log is known to have partitions."""

    def append(self, values: list[Any]) -> list[tuple[str, range]]:
        """Append a batch in one commit; return the offsets with a prefix that names the
        partition."""
        if self.spread is None:
            try:
                return [("", self._append_plainly(values))]
            except Partitioned:
                self.spread = self.ms.partitioned_log(self.log)
        if self.expect_end is not None or self.producer is not None:
            raise typer.BadParameter(
                f"log {self.log!r} has partitions: --expect-end and --producer are for a single "
                f"partition, such as {self.spread.partition(0).name}"
            )
        return self._append_spread(self.spread, values)

    def _append_spread(self, log: PartitionedLog, values: list[Any]) -> list[tuple[str, range]]:
        places = log.append_many(
            values,
            keys=[self.key] * len(values) if self.key is not None else None,
            headers=[self.headers] * len(values) if self.headers else None,
            timestamps=self.timestamp,
        )
        self.count += len(places)
        by_partition: dict[int, range] = {}
        for place in places:
            first = by_partition.get(place.partition, range(place.offset, 0)).start
            by_partition[place.partition] = range(first, place.offset + 1)
        self.ranges += [[number, run.start, run.stop] for number, run in by_partition.items()]
        return [(f"{number}:", run) for number, run in by_partition.items()]

    def _append_plainly(self, values: list[Any]) -> range:
        offsets = self.ms.log(self.log).append_many(
            values,
            keys=[self.key] * len(values) if self.key is not None else None,
            headers=[self.headers] * len(values) if self.headers else None,
            timestamps=self.timestamp,
            expect_end=self.expect_end,
            producer=self.producer,
        )
        self.count += len(offsets)
        if self.expect_end is not None:
            self.expect_end = offsets.stop
        if self.producer is not None:
            self.producer = replace(self.producer, sequence=self.producer.sequence + 1)
        if self.ranges and self.ranges[-1][1] == offsets.start:
            self.ranges[-1][1] = offsets.stop
        else:
            self.ranges.append([offsets.start, offsets.stop])
        return offsets
