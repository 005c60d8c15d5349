"""`millstream put`: messages for a queue, from arguments or from standard input."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any

import typer

from millstream import Headers, Queue
from millstream.cli.arguments import duration, parse_time
from millstream.cli.command import AsJson
from millstream.cli.display import json_text, plural, report
from millstream.cli.input import Input
from millstream.errors import InvalidInput
from millstream.queue.model.spec import KEY, PRIORITY_MAX
from millstream.record import wall_ms_of


def put(
    queue: Queue,
    given: Input,
    values: Annotated[
        list[str] | None,
        typer.Argument(metavar="VALUE...", help="Messages; without any, lines of stdin."),
    ] = None,
    priority: Annotated[
        int | None,
        typer.Option(metavar="N", min=0, max=PRIORITY_MAX, help="The higher, the sooner."),
    ] = None,
    group: Annotated[
        str | None, typer.Option(metavar="NAME", help="The group that they belong to.")
    ] = None,
    dedup: Annotated[
        str | None,
        typer.Option(metavar="ID", help="Dropped if one with this id came lately."),
    ] = None,
    delay: Annotated[float | None, duration("Hold them back for so long.")] = None,
    at: Annotated[
        datetime | None,
        typer.Option(
            parser=parse_time,
            metavar="TIME",
            help="Hold them back until then: ISO 8601, local time if it has no zone.",
        ),
    ] = None,
    json: AsJson = False,
) -> None:
    """Put messages straight to a queue, past its filter.

    Says how many, once they are durable. If the reader of the output goes away, the rest of the input
    is put all the same. --priority, --group and --dedup go into the headers that the queue reads them from.
    """
    if delay is not None and at is not None:
        raise typer.BadParameter("--delay or --at, not both")
    wishes = {"priority": priority, "group": group, "dedup": dedup}
    key, headers = _addressed(queue, given.key, given.headers(), wishes)
    count, first = 0, None
    try:
        for some in given.batches(values, noun="message"):
            if dedup is not None and count + len(some) > 1:
                raise InvalidInput(
                    f"--dedup is for one message, the others would be dropped as its repeats; "
                    f"{count} put"
                )
            ids = queue.put_many(
                some,
                keys=None if key is None else [key] * len(some),
                headers=[headers] * len(some) if headers else None,
                delay=delay,
                at=at,
            )
            count, first = count + len(ids), ids[0] if first is None and ids else first
    finally:
        if json:
            when = {} if at is None else {"due_ms": wall_ms_of(at)}
            report(json_text({"queue": queue.name, "count": count, "first_id": first, **when}))
        else:
            then = f" for {at.isoformat(sep=' ', timespec='seconds')}" if at else ""
            report(f"{plural(count, 'message')} put{then}")


def _addressed(
    queue: Queue, key: str | None, headers: Headers, wishes: dict[str, Any]
) -> tuple[str | None, Headers]:
    """The key and headers from which the queue will read what is wished for."""
    wanted = {what: value for what, value in wishes.items() if value is not None}
    info = queue.info() if wanted else None
    for what, value in wanted.items():
        by = getattr(info.spec, f"{what}_by") if info else ""
        if not by:
            raise InvalidInput(
                f"queue {queue.name!r} does not look at a {what}; "
                f"`millstream queue alter {queue.name} --{what}-by HEADER` makes it do so"
            )
        name, before = ("key", key) if by == KEY else (f"header {by!r}", headers.get(by))
        if before is not None and before != value:
            raise InvalidInput(
                f"--{what} {value} is the {name} of a message in queue {queue.name!r}, and that is "
                f"to be {before!r} already; say only one of them"
            )
        if by == KEY:
            key = str(value)
        else:
            headers = headers.replaced(by, value)
    return key, headers
