"""`millstream put`: messages for a queue, from arguments or from standard input."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import typer

from millstream.cli.config import DEFAULT_STORE, AsJson, StorePath, opened


def put(
    queue: Annotated[str, typer.Argument(metavar="QUEUE", help="The queue.")],
    values: Annotated[
        list[str] | None,
        typer.Argument(metavar="VALUE...", help="Messages; without any, lines of stdin."),
    ] = None,
    store: StorePath = Path(DEFAULT_STORE),
    key: Annotated[
        str | None, typer.Option("--key", "-k", metavar="TEXT", help="A key for every message.")
    ] = None,
    header: Annotated[
        list[str] | None,
        typer.Option(
            "--header",
            "-H",
            metavar="NAME=VALUE",
            help="A header for every message. Numbers, true, false, null are typed; NAME:=JSON too.",
        ),
    ] = None,
    raw: Annotated[bool, typer.Option("--raw", help="All of stdin is one message.")] = False,
    json_lines: Annotated[
        bool, typer.Option("--json-lines", help="Every message must be JSON, and is marked so.")
    ] = False,
    batch: Annotated[
        int, typer.Option(metavar="N", min=1, help="Lines of stdin in one commit.")
    ] = 1_000,
    json: AsJson = False,
) -> None:
    """Put messages straight to a queue, past its filter; says how many, once they are durable."""
    from millstream.cli import display
    from millstream.cli.arguments import parse_headers
    from millstream.cli.queue import existing_queue

    if values and raw:
        raise typer.BadParameter("--raw takes its message from stdin, not from arguments")
    headers = parse_headers(header or [])
    if json_lines:
        headers = {"content-type": "application/json", **headers}
    count = 0
    with opened(store) as ms:
        found = existing_queue(ms, queue)
        try:
            for some in _batches(values, raw=raw, batch=batch):
                if json_lines:
                    _check_json(some, before=count)
                count += found.put_many(
                    some,
                    keys=[key] * len(some) if key is not None else None,
                    headers=[headers] * len(some) if headers else None,
                )
        finally:
            if json:
                display.say_json({"queue": queue, "count": count})
            else:
                display.say(f"{display.plural(count, 'message')} put")


def _batches(values: list[str] | None, *, raw: bool, batch: int) -> Iterator[list[Any]]:
    from millstream.cli.lines import batches

    if values:
        yield list(values)
        return
    if sys.stdin.isatty():
        typer.echo("reading from the terminal; Ctrl-D ends", err=True)
    if raw:
        yield [sys.stdin.buffer.read()]
        return
    yield from batches(sys.stdin.buffer, lines_max=batch, steady=False)


def _check_json(values: list[Any], *, before: int) -> None:
    import msgspec

    from millstream.errors import InvalidInput

    for number, value in enumerate(values, start=before + 1):
        data = value if isinstance(value, bytes) else value.encode("utf-8", "surrogateescape")
        try:
            msgspec.json.decode(data)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise InvalidInput(
                f"message {number} is not JSON: {error}; {before:,} before it are stored"
            ) from error
