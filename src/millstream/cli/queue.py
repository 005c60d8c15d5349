"""`millstream queue`: what queues there are, making one, and looking after it."""

from __future__ import annotations

from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from millstream.cli.claims import ack, attempts, claim, fail, nack, peek
from millstream.cli.config import DEFAULT_STORE, AsJson, StorePath, Yes, opened
from millstream.cli.confirm import confirm

if TYPE_CHECKING:
    from millstream.database import Millstream
    from millstream.queue.backoff import Backoff
    from millstream.queue.message import QueueInfo
    from millstream.queue.queue import Queue

queue = typer.Typer(help="Make, watch and work on queues.", no_args_is_help=True)

QueueName = Annotated[str, typer.Argument(metavar="QUEUE", help="The queue.")]
Sources = Annotated[
    list[str] | None,
    typer.Option("--source", metavar="LOG", help="A log, or a pattern such as 'orders*'."),
]
Where = Annotated[
    str | None, typer.Option("--filter", metavar="FILTER", help="Only records that match.")
]
MaxAttempts = Annotated[
    int | None, typer.Option(metavar="N", min=1, help="Then it fails.", show_default="5")
]
Lease = Annotated[
    str | None,
    typer.Option(metavar="DURATION", help="How long a claim holds.", show_default="30s"),
]
BackoffText = Annotated[
    str | None,
    typer.Option(
        "--backoff",
        metavar="WAITS",
        help="Before a retry: 5s, or 1s,10s,1m, or 1s*2 to double each time.",
        show_default="1s*2",
    ),
]
Delay = Annotated[
    str | None, typer.Option(metavar="DURATION", help="Hold every message back.", show_default="0s")
]
DoneRetention = Annotated[
    str | None,
    typer.Option(metavar="DURATION", help="How long what is done is known.", show_default="7d"),
]
BucketExponent = Annotated[
    int | None,
    typer.Option(metavar="N", min=0, help="10^N claims are stored together.", show_default="3"),
]
DeadLetter = Annotated[
    str | None, typer.Option(metavar="LOG", help="Publish failed messages there as well.")
]
Description = Annotated[str | None, typer.Option(metavar="TEXT", help="What it is for.")]


def existing_queue(ms: Millstream, name: str) -> Queue:
    """The queue of a name; there must be one."""
    from millstream.errors import NotFound

    found = ms.queue(name)
    if found.info() is None:
        raise NotFound(
            f"there is no queue {name!r}; `millstream queue create` makes one, "
            "`millstream queue list` shows what there is",
            name=name,
        )
    return found


@queue.command()
def create(
    queue: QueueName,
    store: StorePath = Path(DEFAULT_STORE),
    source: Sources = None,
    filter: Where = None,
    start: Annotated[
        str,
        typer.Option(metavar="OFFSET", help="In logs that exist: latest, earliest, or a number."),
    ] = "latest",
    max_attempts: MaxAttempts = None,
    lease: Lease = None,
    backoff: BackoffText = None,
    delay: Delay = None,
    done_retention: DoneRetention = None,
    bucket_exponent: BucketExponent = None,
    dead_letter: DeadLetter = None,
    description: Description = None,
    json: AsJson = False,
) -> None:
    """Make a queue; to repeat it with the same settings changes nothing."""
    from millstream.cli import display
    from millstream.queue.spec import QueueSpec

    fields = _fields(
        source=source,
        filter=filter,
        max_attempts=max_attempts,
        lease=lease,
        backoff=backoff,
        delay=delay,
        done_retention=done_retention,
        bucket_exponent=bucket_exponent,
        dead_letter=dead_letter,
        description=description,
    )
    spec = QueueSpec(start=int(start) if start.isdecimal() else start, **fields)
    with opened(store, create=True) as ms:
        made = ms.queue(queue).specify(spec)
    if json:
        display.say_json({"queue": queue, "created": made})
    else:
        display.say(f"queue {display.safe(queue)} {'made' if made else 'exists already'}")


@queue.command()
def alter(
    queue: QueueName,
    store: StorePath = Path(DEFAULT_STORE),
    source: Sources = None,
    filter: Where = None,
    max_attempts: MaxAttempts = None,
    lease: Lease = None,
    backoff: BackoffText = None,
    delay: Delay = None,
    done_retention: DoneRetention = None,
    bucket_exponent: BucketExponent = None,
    dead_letter: DeadLetter = None,
    description: Description = None,
    json: AsJson = False,
) -> None:
    """Change some settings of a queue; an empty text takes one away."""
    fields = _fields(
        source=source,
        filter=filter,
        max_attempts=max_attempts,
        lease=lease,
        backoff=backoff,
        delay=delay,
        done_retention=done_retention,
        bucket_exponent=bucket_exponent,
        dead_letter=dead_letter,
        description=description,
    )
    if not fields:
        raise typer.BadParameter("say what is to be changed")
    with opened(store) as ms:
        found = existing_queue(ms, queue)
        found.alter(**fields)
        facts = found.info()
        assert facts is not None
    _show(facts, as_json=json)


def _fields(**given: Any) -> dict[str, Any]:
    """What was given, as the fields of a spec."""
    from millstream.cli.arguments import parse_duration
    from millstream.queue.spec import QueueSpec
    from millstream.record import to_ms

    fields = {name: value for name, value in given.items() if value is not None}
    if "source" in fields:
        fields["sources"] = tuple(filter(None, fields.pop("source")))
    for name in ("lease", "delay"):
        if name in fields:
            fields[f"{name}_ms"] = to_ms(parse_duration(fields.pop(name)))
    if fields.get("lease_ms", 0) > QueueSpec().lease_max_ms:
        fields["lease_max_ms"] = fields["lease_ms"]
    if "done_retention" in fields:
        fields["done_retention_s"] = round(parse_duration(fields.pop("done_retention")))
    if "backoff" in fields:
        fields["backoff"] = parse_backoff(fields.pop("backoff"))
    return fields


def parse_backoff(text: str) -> Backoff:
    """A backoff from `5s`, `1s,10s,1m` or `1s*2`."""
    from millstream.cli.arguments import parse_duration
    from millstream.queue.backoff import Backoff
    from millstream.record import to_ms

    first, times, factor = text.partition("*")
    waits = tuple(to_ms(parse_duration(part)) for part in first.split(","))
    if times:
        try:
            return Backoff(first_ms=waits[0], factor=float(factor))
        except ValueError:
            raise typer.BadParameter(f"a growing backoff is like 1s*2, not {text!r}") from None
    if len(waits) == 1:
        return Backoff(kind="fixed", first_ms=waits[0], jitter=0.0)
    return Backoff(kind="list", waits_ms=waits, jitter=0.0)


@queue.command("list")
def list_queues(
    pattern: Annotated[str, typer.Argument(metavar="PATTERN", help="Names such as 'mail*'.")] = "*",
    store: StorePath = Path(DEFAULT_STORE),
    json: AsJson = False,
) -> None:
    """List the queues of the store."""
    from millstream.cli import display

    with opened(store) as ms:
        found = [info for info in ms.queues() if fnmatchcase(info.name, pattern)]
    if json:
        display.say_json([queue_json(info) for info in found])
        return
    if not found:
        display.note("no queues" if pattern == "*" else f"no queues like {pattern}")
        return
    numbers = ("available", "unrouted", "delayed", "in flight", "done", "failed")
    display.say_table(
        ("queue", *numbers, "paused"),
        [
            (
                display.safe(info.name),
                *(str(getattr(info, name.replace(" ", "_"))) for name in numbers),
                "yes" if info.paused else "no",
            )
            for info in found
        ],
        numbers=numbers,
    )


@queue.command()
def info(queue: QueueName, store: StorePath = Path(DEFAULT_STORE), json: AsJson = False) -> None:
    """Show everything about one queue."""
    with opened(store) as ms:
        facts = existing_queue(ms, queue).info()
        assert facts is not None
    _show(facts, as_json=json)


def queue_json(info: QueueInfo) -> dict[str, Any]:
    """A queue's facts as one JSON object, its whole spec included."""
    from msgspec import to_builtins
    from msgspec.structs import asdict

    spec = {name: to_builtins(value) for name, value in asdict(info.spec).items()}
    spec["backoff"] = asdict(info.spec.backoff)
    return {**asdict(info), "spec": spec}


def _show(info: QueueInfo, *, as_json: bool) -> None:
    from millstream.cli import display

    if as_json:
        display.say_json(queue_json(info))
        return
    spec = info.spec
    display.say_facts(
        [
            ("queue", display.safe(info.name)),
            ("description", display.safe(spec.description) or "-"),
            ("sources", display.safe(", ".join(spec.sources)) or "only what is put to it"),
            ("filter", display.safe(spec.filter) or "-"),
            ("available", f"{info.available:,}"),
            ("unrouted", f"{info.unrouted:,}"),
            ("delayed", f"{info.delayed:,}"),
            ("in flight", f"{info.in_flight:,}"),
            ("done", f"{info.done:,}"),
            ("failed", f"{info.failed:,}"),
            ("paused", "yes" if info.paused else "no"),
            ("created", display.time_of(info.created)),
            ("attempts", f"up to {spec.max_attempts:,}"),
            ("lease", display.span(spec.lease_ms)),
            ("backoff", _backoff_text(spec.backoff)),
            ("delay", display.span(spec.delay_ms)),
            ("done retention", display.span(spec.done_retention_s * 1000)),
            ("dead letters", display.safe(spec.dead_letter) or "-"),
        ]
    )


def _backoff_text(backoff: Backoff) -> str:
    from millstream.cli.display import span

    if backoff.kind == "list":
        return ",".join(span(ms) for ms in backoff.waits_ms)
    if backoff.kind == "fixed":
        return span(backoff.first_ms)
    return f"{span(backoff.first_ms)}*{backoff.factor:g}, up to {span(backoff.most_ms)}"


@queue.command()
def redrive(
    queue: QueueName,
    store: StorePath = Path(DEFAULT_STORE),
    filter: Where = None,
    limit: Annotated[int | None, typer.Option(metavar="N", min=0, help="At most so many.")] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only count them.")] = False,
    json: AsJson = False,
) -> None:
    """Make failed messages available again, with no attempts counted."""
    from millstream.cli import display

    with opened(store) as ms:
        count = existing_queue(ms, queue).redrive(filter, limit=limit, dry_run=dry_run)
    if json:
        display.say_json({"queue": queue, "redriven": count, "dry_run": dry_run})
    else:
        what = "would be available again" if dry_run else "available again"
        display.say(f"{display.plural(count, 'message')} {what}")


@queue.command()
def purge(
    queue: QueueName,
    store: StorePath = Path(DEFAULT_STORE),
    state: Annotated[str, typer.Option(help="available or failed.")] = "available",
    yes: Yes = False,
    json: AsJson = False,
) -> None:
    """Forget the messages in a state; the records stay in their logs.

    What still waits in the logs, unrouted, is left.
    """
    from millstream.cli import display

    with opened(store) as ms:
        found = existing_queue(ms, queue)
        confirm(f"Forget all {state} messages of queue {queue!r}?", yes=yes)
        count = found.purge(state=state)
    if json:
        display.say_json({"queue": queue, "purged": count, "state": state})
    else:
        display.say(f"{display.plural(count, 'message')} forgotten")


@queue.command()
def pause(queue: QueueName, store: StorePath = Path(DEFAULT_STORE), json: AsJson = False) -> None:
    """Hold claims back; messages keep arriving."""
    _set_paused(store, queue, True, as_json=json)


@queue.command()
def resume(queue: QueueName, store: StorePath = Path(DEFAULT_STORE), json: AsJson = False) -> None:
    """Let messages be claimed again."""
    _set_paused(store, queue, False, as_json=json)


def _set_paused(store: Path, name: str, paused: bool, *, as_json: bool) -> None:
    from millstream.cli import display

    with opened(store) as ms:
        found = existing_queue(ms, name)
        if paused:
            found.pause()
        else:
            found.resume()
    if as_json:
        display.say_json({"queue": name, "paused": paused})
    else:
        display.say(f"queue {display.safe(name)} {'is paused' if paused else 'goes on'}")


@queue.command()
def delete(
    queue: QueueName, store: StorePath = Path(DEFAULT_STORE), yes: Yes = False, json: AsJson = False
) -> None:
    """Forget a queue and how its messages stand, for ever; the logs stay."""
    from millstream.cli import display

    with opened(store) as ms:
        found = existing_queue(ms, queue)
        confirm(f"Forget queue {queue!r} and how its messages stand?", yes=yes)
        gone = found.delete()
    if json:
        display.say_json({"queue": queue, "deleted": gone})
    else:
        display.say(f"queue {display.safe(queue)} is gone")


for command in (claim, ack, nack, fail, peek, attempts):
    queue.command()(command)
