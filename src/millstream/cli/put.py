"""`millstream put`: put messages into a queue, from arguments or standard input."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any

import typer

from millstream import Headers, PutResult, Queue
from millstream.cli.arguments import duration, parse_time
from millstream.cli.command import AsJson
from millstream.cli.display import json_text, plural, report
from millstream.cli.input import Input
from millstream.errors import InvalidInput
from millstream.queue.model.spec import KEY, PRIORITY_MAX
from millstream.record import wall_ms_of


def put(
    queue: Queue,
    source: Input,
    values: Annotated[
        list[str] | None,
        typer.Argument(metavar="VALUE...", help="Messages; default: the lines of stdin."),
    ] = None,
    priority: Annotated[
        int | None,
        typer.Option(metavar="N", min=0, max=PRIORITY_MAX, help="A higher priority goes first."),
    ] = None,
    group: Annotated[
        str | None, typer.Option(metavar="NAME", help="The group of the messages.")
    ] = None,
    dedup: Annotated[
        str | None,
        typer.Option(metavar="ID", help="The id by which the queue drops repeats."),
    ] = None,
    delay: Annotated[float | None, duration("How long until they can be claimed.")] = None,
    at: Annotated[
        datetime | None,
        typer.Option(
            parser=parse_time,
            metavar="TIME",
            help="When they can be claimed: ISO 8601, local time without a zone.",
        ),
    ] = None,
    json: AsJson = False,
) -> None:
    """Put messages directly into a queue, past its filter.

    Prints how many, when they are durable. If the reader of the output goes away, the remaining
    input is still put. --priority, --group and --dedup set the headers from which the queue reads
    them.
    """
    if delay is not None and at is not None:
        raise typer.BadParameter("--delay or --at, not both")
    wishes = {"priority": priority, "group": group, "dedup": dedup}
    key, headers = _addressed(queue, source.key, source.headers(), wishes)
    count, first = 0, None
    result: PutResult | None = None
    try:
        for batch in source.batches(values, noun="message"):
            if dedup is not None and (result is not None or len(batch) > 1):
                raise InvalidInput(
                    f"--dedup is for a single message: the others would be dropped as repeats; "
                    f"{count} put"
                )
            if dedup is not None and batch:
                result = _put_reported(queue, batch[0], key, headers, delay=delay, at=at)
                count, first = int(not result.repeated), result.id
                continue
            ids = queue.put_many(
                batch,
                keys=None if key is None else [key] * len(batch),
                headers=[headers] * len(batch) if headers else None,
                delay=delay,
                at=at,
            )
            count, first = count + len(ids), ids[0] if first is None and ids else first
    finally:
        if json:
            facts: dict[str, Any] = {} if at is None else {"due_ms": wall_ms_of(at)}
            facts |= {} if result is None else {"repeated": result.repeated}
            report(json_text({"queue": queue.name, "count": count, "first_id": first, **facts}))
        else:
            report(_outcome(count, result, at))


def _outcome(count: int, result: PutResult | None, at: datetime | None) -> str:
    """Return what was put, in words."""
    if result is not None and result.repeated:
        return "nothing put: a repeat" + ("" if result.id is None else f" of message {result.id}")
    then = f" for {at.isoformat(sep=' ', timespec='seconds')}" if at else ""
    return f"{plural(count, 'message')} put{then}"


def _put_reported(
    queue: Queue,
    value: Any,
    key: str | None,
    headers: Headers,
    *,
    delay: float | None,
    at: datetime | None,
) -> PutResult:
    """Put the only message of the input, and report whether it is a repeat."""
    return queue.put(value, key=key, headers=headers or None, delay=delay, at=at, detail=True)


def _addressed(
    queue: Queue, key: str | None, headers: Headers, wishes: dict[str, Any]
) -> tuple[str | None, Headers]:
    """Return the key and headers from which the queue reads priority, group and dedup id."""
    wanted_fields = {name: value for name, value in wishes.items() if value is not None}
    spec = queue.info().spec if wanted_fields else None
    for field, value in wanted_fields.items():
        by = getattr(spec, f"{field}_by")
        if not by:
            raise InvalidInput(
                f"queue {queue.name!r} does not use a {field}; "
                f"`millstream queue alter {queue.name} --{field}-by HEADER` changes that"
            )
        name, before = ("key", key) if by == KEY else (f"header {by!r}", headers.get(by))
        if before is not None and before != value:
            raise InvalidInput(
                f"--{field} {value} sets the {name} of the message in queue {queue.name!r}, which "
                f"is also set to {before!r}; use only one of them"
            )
        if by == KEY:
            key = str(value)
        else:
            headers = headers.replaced(by, value)
    return key, headers
