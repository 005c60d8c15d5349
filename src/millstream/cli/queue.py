"""`millstream queue`: what queues there are, making one, and looking after it."""

from __future__ import annotations

from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from millstream.cli.claims import ack, attempts, claim, fail, nack, peek
from millstream.cli.config import DEFAULT_STORE, AsJson, StorePath, Yes, existing_queue, opened
from millstream.cli.confirm import confirm
from millstream.cli.options import takes
from millstream.cli.records import records
from millstream.cli.settings import Settings, changed, per_second, spec_facts
from millstream.queue.model.spec import RATE_MAX, RATE_MIN, QueueSpec

if TYPE_CHECKING:
    from millstream.queue.model.message import QueueInfo
    from millstream.threads.queue import Queue

queue = typer.Typer(help="Make, watch and work on queues.", no_args_is_help=True)

QueueName = Annotated[str, typer.Argument(metavar="QUEUE", help="The queue.")]
Where = Annotated[
    str | None, typer.Option("--filter", metavar="FILTER", help="Only messages that match.")
]
NUMBERS = ("available", "unrouted", "delayed", "in_flight", "done", "failed")
PACES = ("oldest", "in/s", "done/s")


@queue.command()
@takes(Settings)
def create(
    queue: QueueName,
    store: StorePath = Path(DEFAULT_STORE),
    start: Annotated[
        str,
        typer.Option(metavar="OFFSET", help="In logs that exist: latest, earliest, or a number."),
    ] = "latest",
    *,
    given: Settings,
    json: AsJson = False,
) -> None:
    """Make a queue, or make it what the settings say; what is not named has its default.

    To repeat it changes nothing. A setting that cannot be altered now is told, and nothing changes.
    """
    from millstream.cli import display

    begin = QueueSpec(start=int(start) if start.isdecimal() else start)
    spec = changed(begin, given.fields())
    with opened(store, create=True) as ms:
        found = ms.queue(queue)
        before = found.info()
        made = found.specify(spec)
    altered = [] if made or before is None else _differing(before.spec, spec)
    if json:
        display.say_json({"queue": queue, "created": made, "altered": altered})
    elif altered:
        display.say(f"queue {display.safe(queue)} altered: {', '.join(altered)}")
    else:
        display.say(f"queue {display.safe(queue)} {'made' if made else 'exists already'}")


def _differing(old: QueueSpec, new: QueueSpec) -> list[str]:
    """The fields in which two specs differ."""
    return [
        name for name in QueueSpec.__struct_fields__ if getattr(old, name) != getattr(new, name)
    ]


@queue.command()
@takes(Settings, show_defaults=False)
def alter(
    queue: QueueName,
    store: StorePath = Path(DEFAULT_STORE),
    *,
    given: Settings,
    json: AsJson = False,
) -> None:
    """Change some settings of a queue; what is not named stays as it is.

    An empty text or a cap of 0 takes a setting away. Priorities and groups change only while nothing
    waits and nothing is in flight.
    """
    fields = given.fields()
    if not fields:
        raise typer.BadParameter("say what is to be changed")
    with opened(store) as ms:
        found = existing_queue(ms, queue)
        changed(_info(found).spec, fields)
        found.alter(**fields)
        facts = _info(found)
    _show(facts, as_json=json)


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
    display.say_table(
        ("queue", *NUMBERS, *PACES, "paused"),
        [
            (
                display.safe(info.name),
                *(str(getattr(info, name)) for name in NUMBERS),
                *_paces(info),
                "yes" if info.paused else "no",
            )
            for info in found
        ],
        numbers=(*NUMBERS, *PACES),
        spare=("in/s", "done/s", "done", "delayed", "unrouted"),
    )


@queue.command()
def info(queue: QueueName, store: StorePath = Path(DEFAULT_STORE), json: AsJson = False) -> None:
    """Show everything about one queue."""
    with opened(store) as ms:
        facts = _info(existing_queue(ms, queue))
    _show(facts, as_json=json)


def _info(queue: Queue) -> QueueInfo:
    """How a queue stands that was there just now."""
    from millstream.errors import NotFound

    found = queue.info()
    if found is None:
        raise NotFound(f"queue {queue.name!r} was deleted meanwhile; nothing is left of it")
    return found


def _paces(info: QueueInfo) -> tuple[str, str, str]:
    """How long the oldest message waits, and how many come and go per second."""
    from millstream.cli.display import rough

    oldest = "-" if info.oldest_s is None else rough(int(info.oldest_s * 1000))
    return oldest, f"{info.in_per_second:,.1f}", f"{info.done_per_second:,.1f}"


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
    counts = [(name, f"{getattr(info, name):,}") for name in NUMBERS]
    if info.duplicates or spec.dedup_by:
        counts.append(("duplicates", f"{info.duplicates:,} dropped"))
    display.say_facts(
        [
            ("queue", display.safe(info.name)),
            ("description", display.safe(spec.description) or "-"),
            ("sources", display.safe(", ".join(spec.sources)) or "only what is put to it"),
            ("filter", display.safe(spec.filter) or "-"),
            *counts,
            *zip(PACES, _paces(info), strict=True),
            ("paused", "yes" if info.paused else "no"),
            ("created", display.time_of(info.created)),
            *spec_facts(spec),
        ]
    )


@queue.command()
def redrive(
    queue: QueueName,
    store: StorePath = Path(DEFAULT_STORE),
    filter: Where = None,
    limit: Annotated[int | None, typer.Option(metavar="N", min=0, help="At most so many.")] = None,
    rate: Annotated[
        float | None,
        typer.Option(metavar="N", help="So many per second, one after the other."),
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only count them.")] = False,
    json: AsJson = False,
) -> None:
    """Make failed messages available again, with no attempts counted."""
    from millstream.cli import display

    if rate is not None and not RATE_MIN <= rate <= RATE_MAX:
        raise typer.BadParameter(f"--rate is a number of messages per second, not {rate:g}")
    with opened(store) as ms:
        found = existing_queue(ms, queue)
        count = found.redrive(filter, limit=limit, rate=rate, dry_run=dry_run)
    if json:
        display.say_json({"queue": queue, "redriven": count, "dry_run": dry_run})
    else:
        what = "would be available again" if dry_run else "available again"
        pace = "" if rate is None else f", {per_second(rate)}"
        display.say(f"{display.plural(count, 'message')} {what}{pace}")


@queue.command()
def purge(
    queue: QueueName,
    store: StorePath = Path(DEFAULT_STORE),
    state: Annotated[str, typer.Option(help="available or failed.")] = "available",
    yes: Yes = False,
    json: AsJson = False,
) -> None:
    """Forget the messages in a state; the records stay in their logs.

    What waits in the logs, unrouted, counts as available. What is in flight is left.
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
    """Delete a queue, the state of its messages and its inbox, permanently; its sources stay."""
    from millstream.cli import display

    with opened(store) as ms:
        found = existing_queue(ms, queue)
        confirm(f"Forget queue {queue!r} and how its messages stand?", yes=yes)
        gone = found.delete()
    if json:
        display.say_json({"queue": queue, "deleted": gone})
    else:
        display.say(f"queue {display.safe(queue)} is gone")


for command in (claim, ack, nack, fail, peek, attempts, records):
    queue.command()(command)
