"""`millstream schedule`: list, put, pause, resume, trigger and delete the schedules of jobs."""

from __future__ import annotations

from collections.abc import Iterator
from fnmatch import fnmatchcase
from typing import Annotated, Any

import msgspec
import typer
from msgspec.structs import asdict

from millstream import Millstream
from millstream.cli.arguments import parse_duration, parse_time
from millstream.cli.command import Consent, command
from millstream.cli.display import FactSheet, Printed, Table, safe
from millstream.cli.names import completed
from millstream.jobs.options import PRIORITY_HEADER, QUEUE
from millstream.jobs.schedule import ScheduledJob, ScheduleInfo, define
from millstream.jobs.task_names import check_task_name
from millstream.threads.schedules import ScheduleStore
from millstream.units import is_duration

schedule = typer.Typer(help="Look after the schedules of jobs.", no_args_is_help=True)

STYLES = {"failure": "red", "paused": "yellow"}
UPCOMING = 5


def _infos(ms: Millstream) -> Iterator[ScheduleInfo]:
    yield from ScheduleStore(ms.session).list()


ScheduleName = Annotated[
    str, typer.Argument(metavar="SCHEDULE", help="The schedule.", autocompletion=completed(_infos))
]


@command(schedule, "schedule list", "schedule list 'mail*' --json", name="list")
def list_schedules(
    ms: Millstream,
    pattern: Annotated[str, typer.Argument(metavar="PATTERN", help="Names such as 'mail*'.")] = "*",
) -> Printed:
    """List the schedules with their next ticks."""
    infos = [info for info in _infos(ms) if fnmatchcase(info.name, pattern)]
    columns = ("schedule", "task", "every", "zone", "missed", "next", "last", "paused", "failure")
    rows = [
        (
            *(info.name, info.task, _every(info), info.tz, info.missed, info.next, info.last),
            *(info.paused, info.failure),
        )
        for info in infos
    ]
    none = "no schedules" if pattern == "*" else f"no schedules like {safe(pattern)}"
    return Printed(
        [asdict(info) for info in infos],
        Table(columns, rows, none=none, spare=("failure", "missed", "last"), styles=STYLES),
    )


@command(schedule, "schedule show nightly")
def show(name: ScheduleName, ms: Millstream) -> Printed:
    """Show a schedule with its next five ticks."""
    return _described(ScheduleStore(ms.session).get(name, upcoming=UPCOMING))


@command(
    schedule,
    "schedule put nightly --task shop.tasks:report --every '30 1 * * *' --tz Europe/Lisbon",
    "schedule put sweep --task shop.tasks:sweep --every 5m --missed skip",
    create=True,
)
def put(
    name: ScheduleName,
    ms: Millstream,
    task: Annotated[str, typer.Option(metavar="TASK", help="The name of the task.")],
    every: Annotated[
        str, typer.Option(metavar="WHEN", help="A cron expression, or an interval such as 5m.")
    ],
    tz: Annotated[str, typer.Option(metavar="ZONE", help="The zone of the expression.")] = "UTC",
    missed: Annotated[
        str,
        typer.Option(
            metavar="POLICY", help="Ticks that passed without a worker: skip, once or all."
        ),
    ] = "once",
    arguments: Annotated[
        str, typer.Option(metavar="JSON", help="The arguments of each job, as a JSON object.")
    ] = "{}",
    queue: Annotated[str, typer.Option(metavar="QUEUE", help="The queue of the task.")] = QUEUE,
    priority: Annotated[
        int | None, typer.Option(metavar="N", min=0, max=9, help="The priority of each job.")
    ] = None,
    start: Annotated[
        str | None, typer.Option(metavar="TIME", help="No tick fires before this time.")
    ] = None,
) -> Printed:
    """Store a schedule, or give a stored schedule this definition.

    A paused schedule stays paused. A worker checks the arguments when a job runs.
    """
    job = ScheduledJob(
        task=check_task_name(task),
        queue=queue,
        arguments=_object(arguments),
        headers={} if priority is None else {PRIORITY_HEADER: priority},
    )
    wanted = define(
        name,
        job,
        parse_duration(every) if is_duration(every) else every,
        tz=tz,
        missed=missed,
        start=None if start is None else parse_time(start),
        now_ms=ms.session.clock.wall_ms(),
    )
    store = ScheduleStore(ms.session)
    state = store.store(wanted)
    info = store.get(name)
    return Printed(
        {"state": state, **asdict(info)}, f"schedule {safe(name)} {state}; next: {_next(info)}"
    )


@command(schedule, "schedule pause nightly")
def pause(name: ScheduleName, ms: Millstream) -> Printed:
    """Stop a schedule until it is resumed. Its ticks meanwhile do not fire later."""
    info = ScheduleStore(ms.session).pause(name)
    return Printed(asdict(info), f"schedule {safe(name)} paused")


@command(schedule, "schedule resume nightly")
def resume(name: ScheduleName, ms: Millstream) -> Printed:
    """Let a schedule fire again, from its first tick after now."""
    info = ScheduleStore(ms.session).resume(name)
    return Printed(asdict(info), f"schedule {safe(name)} resumed; next: {_next(info)}")


@command(schedule, "schedule trigger nightly")
def trigger(name: ScheduleName, ms: Millstream) -> Printed:
    """Put a job of a schedule now; its ticks stay as they are."""
    job = ScheduleStore(ms.session).trigger(name)
    return Printed({"schedule": name, "job": job}, f"job {safe(job)} put")


@command(schedule, "schedule delete nightly --yes")
def delete(name: ScheduleName, ms: Millstream, consent: Consent) -> Printed:
    """Delete a schedule; its jobs stay. A worker stores a schedule again that its code declares."""
    consent.ask(f"Delete schedule {name!r}?")
    deleted = ScheduleStore(ms.session).delete(name)
    done = "deleted" if deleted else "does not exist"
    return Printed({"schedule": name, "deleted": deleted}, f"schedule {safe(name)} {done}")


def _object(text: str) -> dict[str, Any]:
    try:
        return msgspec.json.decode(text, type=dict[str, Any])
    except msgspec.MsgspecError:
        raise typer.BadParameter(
            f'--arguments must be a JSON object such as {{"day": 1}}, not {text!r:.100}'
        ) from None


def _every(info: ScheduleInfo) -> str:
    return info.every if isinstance(info.every, str) else f"{info.every:g} s"


def _next(info: ScheduleInfo) -> str:
    return "never" if info.next is None else info.next.isoformat(timespec="seconds")


def _described(info: ScheduleInfo) -> Printed:
    facts = asdict(info)
    pairs = [("schedule", info.name), ("every", _every(info))]
    pairs += [(name, facts[name]) for name in ("tz", "task", "queue", "missed", "paused")]
    pairs += [("arguments", msgspec.json.encode(info.arguments).decode())]
    pairs += [(name, facts[name]) for name in ("last", "declared", "failure") if facts[name]]
    pairs += [("next", tick.isoformat(timespec="seconds")) for tick in info.upcoming]
    return Printed(facts, FactSheet(pairs, STYLES))
