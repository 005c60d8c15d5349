"""`millstream queue`: create, list, alter and manage queues."""

from __future__ import annotations

from fnmatch import fnmatchcase
from typing import Annotated, Any

import typer
from msgspec import to_builtins
from msgspec.structs import asdict, replace

from millstream import Millstream, Queue, QueueInfo, QueueSpec
from millstream.cli.claims import (
    ack,
    attempts,
    cancel,
    claim,
    fail,
    message,
    nack,
    peek,
    pop,
    records,
    renew,
    wait,
)
from millstream.cli.claims import replace as replace_failed
from millstream.cli.command import Consent, command
from millstream.cli.declared import Fields
from millstream.cli.display import FactSheet, Printed, Table, per_second, plural, rough, safe
from millstream.cli.names import QueueName
from millstream.cli.settings import CHANGES, SETTINGS, changes_of, parse_start, spec_facts
from millstream.errors import InvalidInput
from millstream.queue.model.spec import RATE_MAX, RATE_MIN

queue = typer.Typer(help="Create, watch and work on queues.", no_args_is_help=True)

NUMBERS = ("available", "unrouted", "delayed", "in_flight", "done", "failed")
PACES = ("oldest", "in/s", "done/s")
STYLES = {"failed": "red", "paused": "yellow"}


@command(
    queue,
    "queue create mail --max-attempts 5 --lease 1m --backoff 1s,10s,1m",
    "queue create big --source 'orders*' --filter 'total > 100' --start 2026-05-01T08:00",
    create=True,
)
def create(
    queue: QueueName,
    ms: Millstream,
    fields: Annotated[Fields, SETTINGS],
    start: Annotated[
        str,
        typer.Option(
            metavar="WHERE",
            help="Start in existing logs: latest, earliest, an offset, a time, or an age such as 15m.",
        ),
    ] = "latest",
) -> Printed:
    """Create a queue, or give an existing queue these settings.

    A setting that is not named has its default. A repeat changes nothing. If a setting cannot be
    altered now, the command fails and changes nothing.
    """
    begin = QueueSpec(**parse_start(start))
    spec = replace(begin, **changes_of(begin, fields))
    noun = ms.queue(queue)
    before = noun.info() if noun.exists() else None
    created = noun.specify(spec)
    altered: list[str] = []
    if not created and before is not None:
        names = QueueSpec.__struct_fields__
        altered = [name for name in names if getattr(before.spec, name) != getattr(spec, name)]
    how = "created" if created else "exists already"
    return Printed(
        {"queue": queue, "created": created, "altered": altered},
        f"queue {safe(queue)} {'altered: ' + ', '.join(altered) if altered else how}",
    )


@command(queue, "queue alter mail --rate 50", "queue alter mail --dead-letter ''")
def alter(queue: Queue, fields: Annotated[Fields, CHANGES]) -> Printed:
    """Change some settings of a queue.

    A setting that is not named stays. An empty text or a cap of 0 removes a setting. Priorities and
    groups can only change while no message waits or is in flight.
    """
    if not fields:
        raise typer.BadParameter("name at least one setting to change")
    queue.alter(**changes_of(queue.info().spec, fields))
    return _described(queue.info())


@command(queue, "queue list", "queue list 'mail*' --json", name="list")
def list_queues(
    ms: Millstream,
    pattern: Annotated[str, typer.Argument(metavar="PATTERN", help="Names such as 'mail*'.")] = "*",
) -> Printed:
    """List the queues of the store."""
    infos = [info for info in ms.queues() if fnmatchcase(info.name, pattern)]
    rows = [
        (info.name, *(getattr(info, name) for name in NUMBERS), *_paces(info), info.paused)
        for info in infos
    ]
    return Printed(
        [queue_json(info) for info in infos],
        Table(
            ("queue", *NUMBERS, *PACES, "paused"),
            rows,
            none="no queues" if pattern == "*" else f"no queues like {safe(pattern)}",
            spare=("in/s", "done/s", "done", "delayed", "unrouted"),
            styles=STYLES,
        ),
    )


@command(queue, "queue info mail")
def info(queue: Queue) -> Printed:
    """Show all facts about a queue."""
    return _described(queue.info())


def _paces(info: QueueInfo) -> tuple[Any, float, float]:
    """Return the age of the oldest message, and the messages in and done per second."""
    oldest = None if info.oldest_s is None else rough(info.oldest_s * 1000)
    return oldest, info.in_per_second, info.done_per_second


def queue_json(info: QueueInfo) -> dict[str, Any]:
    """Return a queue's facts as a JSON object, with its complete spec."""
    spec = {name: to_builtins(value) for name, value in asdict(info.spec).items()}
    spec["backoff"] = asdict(info.spec.backoff)
    return {**asdict(info), "spec": spec}


def _described(info: QueueInfo) -> Printed:
    spec = info.spec
    pairs = [
        ("queue", info.name),
        ("description", spec.description),
        ("sources", spec.sources or "only messages that are put"),
        ("filter", spec.filter),
        *((name, getattr(info, name)) for name in NUMBERS),
        *zip(PACES, _paces(info), strict=True),
        ("paused", info.paused),
        ("created", info.created),
        *spec_facts(spec),
    ]
    if info.cancelled:
        pairs.append(("cancelled", info.cancelled))
    if info.duplicates or spec.dedup_by:
        pairs.append(("duplicates", f"{info.duplicates:,} dropped"))
    return Printed(queue_json(info), FactSheet(pairs, STYLES))


@command(
    queue,
    "queue redrive mail --filter \"kind = 'welcome'\" --dry-run",
    "queue redrive mail --rate 10",
)
def redrive(
    queue: Queue,
    filter: Annotated[
        str | None, typer.Option("--filter", metavar="FILTER", help="Only messages that match.")
    ] = None,
    limit: Annotated[int | None, typer.Option(metavar="N", min=0, help="Most messages.")] = None,
    rate: Annotated[
        float | None,
        typer.Option(metavar="N", help="Messages per second that become available."),
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only count the messages.")] = False,
) -> Printed:
    """Make failed messages available again. Their attempts start from zero."""
    if rate is not None and not RATE_MIN <= rate <= RATE_MAX:
        raise typer.BadParameter(f"--rate must be a number of messages per second, not {rate:g}")
    count = queue.redrive(filter, limit=limit, rate=rate, dry_run=dry_run)
    result = "would be available again" if dry_run else "available again"
    pace = "" if rate is None else f", {per_second(rate)}"
    return Printed(
        {"queue": queue.name, "redriven": count, "dry_run": dry_run},
        f"{plural(count, 'message')} {result}{pace}",
    )


@command(queue, "queue purge mail --state failed --yes")
def purge(
    queue: Queue,
    consent: Consent,
    state: Annotated[str, typer.Option(metavar="STATE", help="available or failed.")] = "available",
) -> Printed:
    """Delete the messages in a state. The records stay in their logs.

    Unrouted and delayed messages count as available. Messages in flight stay.
    """
    consent.ask(f"Delete all {state} messages of queue {queue.name!r}?")
    count = queue.purge(state=state)  # type: ignore[arg-type]  # the store checks it
    return Printed(
        {"queue": queue.name, "purged": count, "state": state},
        f"{plural(count, 'message')} deleted",
    )


@command(queue, "queue pause mail")
def pause(queue: Queue) -> Printed:
    """Pause a queue. No message can be claimed; new messages still arrive."""
    queue.pause()
    return Printed({"queue": queue.name, "paused": True}, f"queue {safe(queue.name)} paused")


@command(queue, "queue resume mail")
def resume(queue: Queue) -> Printed:
    """Resume a paused queue: messages can be claimed again."""
    queue.resume()
    return Printed({"queue": queue.name, "paused": False}, f"queue {safe(queue.name)} resumed")


@command(queue, "queue limit mail acme --in-flight 10", "queue limit mail acme --remove")
def limit(
    queue: Queue,
    group: Annotated[str, typer.Argument(metavar="GROUP", help="The name of the group.")],
    in_flight: Annotated[
        int | None, typer.Option(metavar="N", min=0, help="Most messages in flight; 0: unlimited.")
    ] = None,
    rate: Annotated[
        float | None, typer.Option(metavar="N", min=0, help="Claims per second; 0: unlimited.")
    ] = None,
    remove: Annotated[bool, typer.Option("--remove", help="Use the queue's limits again.")] = False,
) -> Printed:
    """Set the limits of one group, instead of the queue's limits."""
    if remove == (in_flight is not None or rate is not None):
        raise InvalidInput("a limit needs --in-flight, --rate or both; or --remove alone")
    queue.limit_group(group, in_flight=in_flight, rate=rate)
    return limits(queue)


@command(queue, "queue limits mail")
def limits(queue: Queue) -> Printed:
    """List the groups that have limits of their own."""
    by_group = queue.group_limits()
    rows = [(name, limit.in_flight, limit.rate) for name, limit in by_group.items()]
    shown = {
        name: {"in_flight": limit.in_flight, "rate": limit.rate} for name, limit in by_group.items()
    }
    return Printed(
        {"queue": queue.name, "limits": shown}, Table(("group", "in flight", "rate"), rows)
    )


@command(queue, "queue delete mail --yes")
def delete(queue: Queue, consent: Consent) -> Printed:
    """Delete a queue with its inbox, permanently. Its sources stay."""
    consent.ask(f"Delete queue {queue.name!r} with the states of its messages?")
    deleted = queue.delete()
    return Printed({"queue": queue.name, "deleted": deleted}, f"queue {safe(queue.name)} deleted")


command(queue, "queue claim mail", "queue claim mail -n 10 --wait 30s --json")(claim)
command(queue, "queue pop mail --values", "queue pop mail -n 10 --wait 30s")(pop)
command(queue, "queue ack mail 1024:1")(ack)
command(queue, "queue nack mail 1024:1 --delay 5m --reason 'busy'")(nack)
command(queue, "queue fail mail 1024:1 --reason 'no such address'")(fail)
command(queue, "queue renew mail 1024:1 --lease 10m")(renew)
command(queue, "queue peek mail --state failed", "queue peek mail --state delayed")(peek)
command(queue, "queue message mail 17")(message)
command(queue, "queue cancel mail 17", "queue cancel mail 17 --running")(cancel)
command(queue, "queue wait mail 17 --timeout 30s")(wait)
command(queue, "queue attempts mail 1024")(attempts)
command(queue, 'queue replace mail 1024 \'{"to": "ada@example.org"}\' -H kind=welcome')(
    replace_failed
)
command(queue, "queue records mail")(records)
