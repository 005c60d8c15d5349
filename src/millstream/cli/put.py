"""`millstream put`: messages for a queue, from arguments or from standard input."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from millstream.cli.config import DEFAULT_STORE, AsJson, StorePath, existing_queue, opened
from millstream.cli.input import Input
from millstream.cli.options import takes
from millstream.queue.model.spec import PRIORITY_MAX

if TYPE_CHECKING:
    from datetime import datetime

    from millstream.threads.queue import Queue


@takes(Input)
def put(
    queue: Annotated[str, typer.Argument(metavar="QUEUE", help="The queue.")],
    values: Annotated[
        list[str] | None,
        typer.Argument(metavar="VALUE...", help="Messages; without any, lines of stdin."),
    ] = None,
    store: StorePath = Path(DEFAULT_STORE),
    *,
    given: Input,
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
    delay: Annotated[
        str | None, typer.Option(metavar="DURATION", help="Hold them back for so long.")
    ] = None,
    at: Annotated[
        str | None,
        typer.Option(metavar="TIME", help="Until then: ISO 8601, local time if it has no zone."),
    ] = None,
    json: AsJson = False,
) -> None:
    """Put messages straight to a queue, past its filter; says how many, once they are durable.

    --priority, --group and --dedup go into the headers that the queue reads them from.
    """
    from millstream.cli import display
    from millstream.cli.arguments import parse_duration, parse_time

    if delay is not None and at is not None:
        raise typer.BadParameter("--delay or --at, not both")
    delay_s = None if delay is None else parse_duration(delay)
    due = None if at is None else parse_time(at)
    headers = given.headers()
    batches = given.batches(values, noun="message")
    with opened(store) as ms:
        found = existing_queue(ms, queue)
        wishes = {"priority": priority, "group": group, "dedup": dedup}
        key, headers = _addressed(found, given.key, headers, wishes)
        count = 0
        try:
            for some in batches:
                if dedup is not None and count + len(some) > 1:
                    raise _only_one(count)
                count += found.put_many(
                    some,
                    keys=None if key is None else [key] * len(some),
                    headers=[headers] * len(some) if headers else None,
                    delay=delay_s,
                    at=due,
                )
        finally:
            told = display.plural(count, "message")
            if json:
                display.say_json({"queue": queue, "count": count, **_due_json(due)})
            elif due is not None:
                display.say(f"{told} put for {due.isoformat(sep=' ', timespec='seconds')}")
            else:
                display.say(f"{told} put")


def _addressed(
    queue: Queue, key: str | None, headers: dict[str, Any], wishes: dict[str, Any]
) -> tuple[str | None, dict[str, Any]]:
    """The key and headers from which the queue will read what is wished for."""
    from millstream.errors import InvalidInput
    from millstream.queue.model.spec import KEY

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
            headers = {**headers, by: value}
    return key, headers


def _only_one(before: int) -> Exception:
    from millstream.errors import InvalidInput

    return InvalidInput(
        f"--dedup is for one message, the others would be dropped as its repeats; {before} put"
    )


def _due_json(due: datetime | None) -> dict[str, Any]:
    return {} if due is None else {"due_ms": round(due.timestamp() * 1000)}
