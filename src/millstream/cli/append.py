"""`millstream append`: records from arguments or from standard input."""

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
    given: Input,
    values: Annotated[
        list[str] | None,
        typer.Argument(metavar="VALUE...", help="Records; without any, lines of stdin."),
    ] = None,
    timestamp: Annotated[
        int | None,
        typer.Option(
            parser=parse_timestamp, metavar="TIME", help="Milliseconds, or ISO 8601; default: now."
        ),
    ] = None,
    expect_end: Annotated[
        int | None, typer.Option(metavar="N", min=0, help="Only if the log ends there.")
    ] = None,
    producer: Annotated[
        str | None, typer.Option(metavar="NAME", help="With --sequence: a repeat stores nothing.")
    ] = None,
    sequence: Annotated[
        int | None, typer.Option(metavar="N", min=0, help="Counts this producer's appends, by one.")
    ] = None,
    epoch: Annotated[
        int, typer.Option(metavar="N", min=0, help="A higher one fences lower ones.")
    ] = 0,
    json: AsJson = False,
) -> None:
    """Append records, and print their offsets once they are durable.

    Creates the log. Records of a log with partitions are spread by their keys; each line then begins with the partition. Values are arguments, or lines of standard input: one record per line, a batch per commit. If the
    reader of the output goes away, the rest of the input is stored all the same.
    """
    if (producer is None) != (sequence is None):
        raise typer.BadParameter("--producer and --sequence go together")
    counting = None
    if producer is not None and sequence is not None:
        counting = Producer(producer, sequence, epoch)
    appending = _Appending(
        ms,
        log,
        key=given.key,
        headers=given.headers(),
        timestamp=timestamp,
        expect_end=expect_end,
        producer=counting,
    )
    try:
        batches = given.batches(values, noun="record", steady=counting is not None, quiet=json)
        for some in batches:
            for where, offsets in appending.append(some):
                if not json:
                    last = f"-{offsets.stop - 1}" if len(offsets) > 1 else ""
                    report(f"{where}{offsets.start}{last}")
    finally:
        if json:
            report(json_text({"log": log, "count": appending.count, "ranges": appending.ranges}))


@dataclass
class _Appending:
    """Appends batch after batch, and remembers where they went."""

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
    """The log, once it is known to have partitions."""

    def append(self, values: list[Any]) -> list[tuple[str, range]]:
        """Append one batch in one commit; the offsets, with what says of which partition."""
        if self.spread is None:
            try:
                return [("", self._append_plainly(values))]
            except Partitioned:
                self.spread = self.ms.partitioned_log(self.log)
        if self.expect_end is not None or self.producer is not None:
            raise typer.BadParameter(
                f"log {self.log!r} has partitions: --expect-end and --producer are for one of "
                f"them, such as {self.spread.partition(0).name}"
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
        found: dict[int, range] = {}
        for place in places:
            first = found.get(place.partition, range(place.offset, 0)).start
            found[place.partition] = range(first, place.offset + 1)
        self.ranges += [[number, one.start, one.stop] for number, one in found.items()]
        return [(f"{number}:", one) for number, one in found.items()]

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
