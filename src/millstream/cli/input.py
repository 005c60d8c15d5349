"""The input of `append` and `put`: values from arguments or standard input, keys and headers."""

from __future__ import annotations

import select
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, Any, BinaryIO

import msgspec
import typer

from millstream.cli.arguments import parse_headers
from millstream.cli.display import progress
from millstream.errors import InvalidInput, TooLarge
from millstream.format.header_cells import CONTENT_TYPE
from millstream.format.packing import JSON
from millstream.header import Headers
from millstream.limits import Limits, MiB

READ_BYTES = 256 * 1024
BATCH_BYTES_MAX = 8 * MiB
PATIENCE_S = 0.02
"""How long to wait for more input before an unfilled batch is returned."""


@dataclass(frozen=True)
class Input:
    """The options for reading values, and for the key and headers of every value."""

    key: Annotated[
        str | None, typer.Option("--key", "-k", metavar="TEXT", help="A key for every value.")
    ] = None
    header: Annotated[
        list[str] | None,
        typer.Option(
            "--header",
            "-H",
            metavar="NAME=VALUE",
            help="A header for every value; a name may be repeated. Numbers, true, false, null are typed; NAME:=JSON too.",
        ),
    ] = None
    raw: Annotated[bool, typer.Option("--raw", help="Take all of stdin as one value.")] = False
    json_lines: Annotated[
        bool, typer.Option("--json-lines", help="Every value must be JSON, and is marked as JSON.")
    ] = False
    null: Annotated[
        bool, typer.Option("--null", help="A null value: the tombstone of its key.")
    ] = False
    batch: Annotated[int, typer.Option(metavar="N", min=1, help="Lines of stdin per commit.")] = (
        1_000
    )

    def headers(self) -> Headers:
        """Return the headers of every value."""
        headers = parse_headers(self.header or [])
        if not self.json_lines or CONTENT_TYPE in headers:
            return headers
        return Headers([(CONTENT_TYPE, JSON), *headers.pairs()])

    def batches(
        self, values: list[str] | None, *, noun: str, steady: bool = False, quiet: bool = True
    ) -> Iterator[list[Any]]:
        """Yield the values in batches, each for one commit.

        The caller stores a batch before it asks for the next. `quiet`: the caller prints nothing.
        """
        if self.null:
            if values or self.raw or self.json_lines:
                raise typer.BadParameter(
                    f"--null is the {noun} itself: it cannot be combined with values, --raw or "
                    "--json-lines"
                )
            return iter([[None]])
        if values and self.raw:
            raise typer.BadParameter(f"--raw reads its {noun} from stdin, not from arguments")
        value_batches = self._batches(values, noun, steady=steady, quiet=quiet)
        return _only_json(value_batches, noun) if self.json_lines else value_batches

    def _batches(
        self, values: list[str] | None, noun: str, *, steady: bool, quiet: bool
    ) -> Iterator[list[Any]]:
        if values:
            yield list(values)
            return
        if sys.stdin.isatty():
            typer.echo("reading from the terminal; Ctrl-D ends", err=True)
        if self.raw:
            yield [sys.stdin.buffer.read()]
            return
        lines = line_batches(sys.stdin.buffer, lines_max=self.batch, steady=steady)
        is_visible = sys.stdin.isatty() or (sys.stdout.isatty() and not quiet)
        yield from lines if is_visible else _shown(lines, noun)


def _shown(batches: Iterator[list[bytes]], noun: str) -> Iterator[list[bytes]]:
    """Yield the batches, and show the progress."""
    count = 0
    with progress(f"{noun}s") as show:
        for lines in batches:
            yield lines
            count += len(lines)
            if show is not None:
                show(f"{noun}s", count, 0)


def _only_json(batches: Iterator[list[Any]], noun: str) -> Iterator[list[bytes]]:
    """Yield the batches as bytes, up to the first value that is not JSON."""
    count = 0
    for values in batches:
        checked = []
        for number, value in enumerate(values, start=count + 1):
            data = value if isinstance(value, bytes) else value.encode("utf-8", "surrogateescape")
            try:
                msgspec.json.decode(data)
            except (msgspec.DecodeError, UnicodeDecodeError) as error:
                raise InvalidInput(
                    f"{noun} {number} is not JSON: {error}; the {count:,} before it are stored"
                ) from error
            checked.append(data)
        yield checked
        count += len(checked)


def line_batches(stream: BinaryIO, *, lines_max: int, steady: bool) -> Iterator[list[bytes]]:
    """Yield the lines of a stream in batches, without their line ends.

    A batch is full after a number of lines or bytes. With a slow pipe, a batch is returned as soon
    as no more input waits, so that arriving lines are stored at once. `steady` batches are always
    full: a repeated input makes equal batches.
    """
    partial_line = b""
    gathered: list[bytes] = []
    size = 0
    read = getattr(stream, "read1", stream.read)
    while chunk := read(READ_BYTES):
        *lines, partial_line = (partial_line + chunk).split(b"\n")
        if len(partial_line) > Limits().value_bytes_max:
            raise TooLarge(
                f"a line is longer than {Limits().value_bytes_max:,} bytes; --raw appends a complete "
                "stream as one record, up to the same limit",
                size=len(partial_line),
                limit=Limits().value_bytes_max,
            )
        for line in lines:
            gathered.append(line)
            size += len(line)
            if len(gathered) >= lines_max or size >= BATCH_BYTES_MAX:
                yield gathered
                gathered, size = [], 0
        if gathered and not steady and not _has_more(stream):
            yield gathered
            gathered, size = [], 0
    if partial_line:
        gathered.append(partial_line)
    if gathered:
        yield gathered


def _has_more(stream: BinaryIO) -> bool:
    try:
        return bool(select.select([stream], [], [], PATIENCE_S)[0])
    except (OSError, ValueError):
        return True  # not a stream of the operating system: the input is complete
