"""`millstream append`: records from arguments or from standard input."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Any

import typer
from msgspec.structs import replace

from millstream import Headers, Log, Millstream, Producer
from millstream.cli.arguments import parse_timestamp
from millstream.cli.command import AsJson
from millstream.cli.display import json_text, report
from millstream.cli.input import Input
from millstream.cli.names import LogName


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

    Creates the log. Values are arguments, or lines of standard input: one record per line, a batch per commit. If the
    reader of the output goes away, the rest of the input is stored all the same.
    """
    if (producer is None) != (sequence is None):
        raise typer.BadParameter("--producer and --sequence go together")
    counting = None
    if producer is not None and sequence is not None:
        counting = Producer(producer, sequence, epoch)
    appending = _Appending(
        ms.log(log),
        key=given.key,
        headers=given.headers(),
        timestamp=timestamp,
        expect_end=expect_end,
        producer=counting,
    )
    try:
        batches = given.batches(values, noun="record", steady=counting is not None, quiet=json)
        for some in batches:
            offsets = appending.append(some)
            if not json:
                last = f"-{offsets.stop - 1}" if len(offsets) > 1 else ""
                report(f"{offsets.start}{last}")
    finally:
        if json:
            report(json_text({"log": log, "count": appending.count, "ranges": appending.ranges}))


@dataclass
class _Appending:
    """Appends batch after batch, and remembers where they went."""

    log: Log
    key: str | None
    headers: Headers
    timestamp: int | None
    expect_end: int | None
    producer: Producer | None
    count: int = 0
    ranges: list[list[int]] = field(default_factory=list)

    def append(self, values: list[Any]) -> range:
        """Append one batch in one commit."""
        offsets = self.log.append_many(
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
