"""`millstream append`: records from arguments or from standard input."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from millstream.cli.config import DEFAULT_STORE, AsJson, StorePath, opened
from millstream.cli.input import Input
from millstream.cli.options import takes

if TYPE_CHECKING:
    from millstream.record import Producer
    from millstream.threads.log import Log

_EXPECT = "Only if the log ends there."


@takes(Input)
def append(
    log: Annotated[str, typer.Argument(metavar="LOG", help="The log; made if there is none.")],
    values: Annotated[
        list[str] | None,
        typer.Argument(metavar="VALUE...", help="Records; without any, lines of stdin."),
    ] = None,
    store: StorePath = Path(DEFAULT_STORE),
    *,
    given: Input,
    timestamp: Annotated[
        str | None, typer.Option(metavar="TIME", help="Milliseconds, or ISO 8601; default: now.")
    ] = None,
    expect_end: Annotated[int | None, typer.Option(metavar="N", min=0, help=_EXPECT)] = None,
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
    """Append records and print their offsets, once they are durable.

    Values are arguments, or lines of standard input: one record per line, a batch per commit.
    """
    from millstream.cli.arguments import parse_timestamp

    if (producer is None) != (sequence is None):
        raise typer.BadParameter("--producer and --sequence go together")
    headers = given.headers()
    batches = given.batches(values, noun="record", steady=producer is not None, quiet=json)
    with opened(store, create=True) as ms:
        appending = _Appending(
            ms.log(log),
            key=given.key,
            headers=headers,
            timestamp=parse_timestamp(timestamp),
            expect_end=expect_end,
            producer=_producer(producer, sequence, epoch),
            show=not json,
        )
        try:
            for some in batches:
                appending.append(some)
        finally:
            appending.finish(as_json=json)


def _producer(name: str | None, sequence: int | None, epoch: int) -> Producer | None:
    from millstream.record import Producer

    if name is None or sequence is None:
        return None
    return Producer(name, sequence, epoch)


class _Appending:
    """Appends batch after batch, and remembers where they went."""

    def __init__(
        self,
        log: Log,
        *,
        key: str | None,
        headers: dict[str, Any],
        timestamp: int | None,
        expect_end: int | None,
        producer: Producer | None,
        show: bool,
    ) -> None:
        self.log = log
        self.producer = producer
        self.count = 0
        self._key = key
        self._headers = headers
        self._timestamp = timestamp
        self._expect_end = expect_end
        self._show = show
        self._ranges: list[list[int]] = []

    def append(self, values: list[Any]) -> None:
        """Append one batch in one commit."""
        offsets = self.log.append_many(
            values,
            keys=[self._key] * len(values) if self._key is not None else None,
            headers=[self._headers] * len(values) if self._headers else None,
            timestamps=self._timestamp,
            expect_end=self._expect_end,
            producer=self.producer,
        )
        self._note(offsets)

    def finish(self, *, as_json: bool) -> None:
        """Say where everything went; what was appended before an error included."""
        from millstream.cli.display import say_json

        if as_json:
            say_json({"log": self.log.name, "count": self.count, "ranges": self._ranges})

    def _note(self, offsets: range) -> None:
        self.count += len(offsets)
        if self._expect_end is not None:
            self._expect_end = offsets.stop
        if self.producer is not None:
            from msgspec.structs import replace

            self.producer = replace(self.producer, sequence=self.producer.sequence + 1)
        if self._ranges and self._ranges[-1][1] == offsets.start:
            self._ranges[-1][1] = offsets.stop
        else:
            self._ranges.append([offsets.start, offsets.stop])
        if self._show:
            one = len(offsets) == 1
            typer.echo(offsets.start if one else f"{offsets.start}-{offsets.stop - 1}")
