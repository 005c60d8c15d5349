"""`millstream append`: records from arguments or from standard input."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, BinaryIO

import typer

from millstream.cli.config import DEFAULT_STORE, AsJson, StorePath, opened

if TYPE_CHECKING:
    from millstream.log.log import Log
    from millstream.record import Producer

_EXPECT = "Only if the log ends there."


def append(
    log: Annotated[str, typer.Argument(metavar="LOG", help="The log; made if there is none.")],
    values: Annotated[
        list[str] | None,
        typer.Argument(metavar="VALUE...", help="Records; without any, lines of stdin."),
    ] = None,
    store: StorePath = Path(DEFAULT_STORE),
    key: Annotated[
        str | None, typer.Option("--key", "-k", metavar="TEXT", help="A key for every record.")
    ] = None,
    header: Annotated[
        list[str] | None,
        typer.Option(
            "--header",
            "-H",
            metavar="NAME=VALUE",
            help="A header for every record. Numbers, true, false, null are typed; NAME:=JSON too.",
        ),
    ] = None,
    timestamp: Annotated[
        str | None, typer.Option(metavar="TIME", help="Milliseconds, or ISO 8601; default: now.")
    ] = None,
    raw: Annotated[bool, typer.Option("--raw", help="All of stdin is one record.")] = False,
    json_lines: Annotated[
        bool, typer.Option("--json-lines", help="Every record must be JSON, and is marked so.")
    ] = False,
    batch: Annotated[
        int, typer.Option(metavar="N", min=1, help="Lines of stdin in one commit.")
    ] = 1_000,
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
    from millstream.cli.arguments import parse_headers, parse_timestamp

    if (producer is None) != (sequence is None):
        raise typer.BadParameter("--producer and --sequence go together")
    if values and raw:
        raise typer.BadParameter("--raw takes its record from stdin, not from arguments")
    headers = parse_headers(header or [])
    if json_lines:
        headers = {"content-type": "application/json", **headers}
    with opened(store, create=True) as ms:
        appending = _Appending(
            ms.log(log),
            key=key,
            headers=headers,
            timestamp=parse_timestamp(timestamp),
            expect_end=expect_end,
            producer=_producer(producer, sequence, epoch),
            json_lines=json_lines,
            show=not json,
        )
        try:
            _append_all(appending, values, raw=raw, batch=batch)
        finally:
            appending.finish(as_json=json)


def _producer(name: str | None, sequence: int | None, epoch: int) -> Producer | None:
    from millstream.record import Producer

    if name is None or sequence is None:
        return None
    return Producer(name, sequence, epoch)


def _append_all(appending: _Appending, values: list[str] | None, *, raw: bool, batch: int) -> None:
    if values:
        appending.append(list(values))
        return
    stdin = _stdin()
    if raw:
        appending.append([stdin.read()])
        return
    for lines in _shown(stdin, appending, batch):
        appending.append(lines)


def _stdin() -> BinaryIO:
    if sys.stdin.isatty():
        typer.echo("reading from the terminal; Ctrl-D ends", err=True)
    return sys.stdin.buffer


def _shown(stdin: BinaryIO, appending: _Appending, batch: int) -> Iterator[list[bytes]]:
    """The batches of lines, with a line of progress on a terminal."""
    from millstream.cli.lines import batches

    found = batches(stdin, lines_max=batch, steady=appending.producer is not None)
    if sys.stdin.isatty() or sys.stdout.isatty() or not sys.stderr.isatty():
        yield from found  # the offsets themselves show how it goes on
        return
    from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    from millstream.cli.display import console

    columns = SpinnerColumn(), TextColumn("{task.completed:,.0f} records"), TimeElapsedColumn()
    with Progress(*columns, console=console(stderr=True), transient=True) as progress:
        task = progress.add_task("", total=None)
        for lines in found:
            yield lines
            progress.update(task, completed=appending.count)


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
        json_lines: bool,
        show: bool,
    ) -> None:
        self.log = log
        self.producer = producer
        self.count = 0
        self._key = key
        self._headers = headers
        self._timestamp = timestamp
        self._expect_end = expect_end
        self._json_lines = json_lines
        self._show = show
        self._ranges: list[list[int]] = []

    def append(self, values: list[Any]) -> None:
        """Append one batch in one commit."""
        if self._json_lines:
            values = self._check_json(values)
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

    def _check_json(self, values: list[Any]) -> list[bytes]:
        import msgspec

        from millstream.errors import InvalidInput

        checked = []
        for number, value in enumerate(values, start=self.count + 1):
            data = value if isinstance(value, bytes) else value.encode("utf-8", "surrogateescape")
            try:
                msgspec.json.decode(data)
            except (msgspec.DecodeError, UnicodeDecodeError) as error:
                raise InvalidInput(
                    f"record {number} is not JSON: {error}; {self.count:,} before it are stored"
                ) from error
            checked.append(data)
        return checked
