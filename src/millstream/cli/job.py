"""`millstream job`: look at jobs, cancel them, try them again, and print their results."""

from __future__ import annotations

from typing import Annotated, get_args

import typer
from msgspec import Raw

from millstream import Millstream
from millstream.cli.arguments import duration
from millstream.cli.command import command
from millstream.cli.display import FactSheet, Printed, Table, cell, plural, safe
from millstream.errors import InvalidInput, MillstreamError
from millstream.jobs.description import JobDetail, ListedState
from millstream.jobs.results import JobError
from millstream.threads.jobs import Jobs
from millstream.threads.stored_jobs import StoredJobs

job = typer.Typer(help="Look at jobs, cancel them, try them again.", no_args_is_help=True)

STATES: tuple[ListedState, ...] = get_args(ListedState)
TEXT_SHOWN = 60
"""So many characters of the arguments, and of a reason, are in a list."""

JobId = Annotated[str, typer.Argument(metavar="JOB", help="The id of the job, as in jobs-17.")]
JobIds = Annotated[
    list[str], typer.Argument(metavar="JOB...", help="The ids of the jobs, as in jobs-17.")
]


def list_jobs(
    ms: Millstream,
    state: Annotated[
        str | None,
        typer.Option(
            metavar="STATE",
            help="waiting, scheduled, running, done, failed or cancelled.",
            show_default="all states",
        ),
    ] = None,
    task: Annotated[
        str | None, typer.Option(metavar="NAME", help="Only jobs of this task.")
    ] = None,
    queue: Annotated[
        str | None, typer.Option(metavar="QUEUE", help="Only jobs of this queue.")
    ] = None,
    limit: Annotated[
        int, typer.Option("--limit", "-n", metavar="N", min=1, max=1000, help="Jobs per state.")
    ] = 20,
    after: Annotated[
        str | None,
        typer.Option(metavar="JOB", help="Continue after a page, with its `next`; needs --state."),
    ] = None,
) -> Printed:
    """List jobs, newest first in each state and queue."""
    if state is not None and state not in STATES:
        raise typer.BadParameter(f"--state must be one of {', '.join(STATES)}; not {state!r}")
    if after is not None and state is None:
        raise typer.BadParameter("--after continues the list of one state: name it with --state")
    stored = StoredJobs(ms.session)
    chosen_states = [name for name in STATES if state in (None, name)]
    pages = [
        stored.page(name, task=task, queue=queue, limit=limit, after=after)
        for name in chosen_states
    ]
    jobs = [info for page in pages for info in page.jobs]
    more = {name: page.next for name, page in zip(chosen_states, pages, strict=True) if page.next}
    rows = [
        (
            info.id,
            info.task,
            info.state,
            info.attempts,
            info.put,
            _short(bytes(info.arguments).decode()),
            _short(info.reason),
        )
        for info in jobs
    ]
    columns = ("job", "task", "state", "attempts", "put", "arguments", "reason")
    styles = {"job": "cyan", "reason": "red"}
    table = Table(columns, rows, none="no jobs", styles=styles, spare=("put", "arguments"))
    return Printed({"jobs": jobs, "next": more}, table)


def show_job(ms: Millstream, id: JobId) -> Printed:
    """Show a job: arguments, attempts, progress, result or error."""
    detail = StoredJobs(ms.session).get(id)
    pairs = [
        ("job", detail.id),
        ("task", detail.task),
        ("state", _state(detail)),
        ("arguments", _text(detail.arguments)),
        ("put", detail.put),
        ("until", detail.until),
        ("attempts", detail.attempts),
        ("schedule", detail.schedule),
        ("progress", _text(detail.progress)),
        ("result", _text(detail.result)),
        ("error", _error_line(detail.error)),
    ]
    facts = FactSheet([(name, value) for name, value in pairs if cell(value) != "-"])
    tries = Table(
        ("attempt", "claimed", "ended", "outcome", "reason"),
        [
            (number, made.claimed, made.ended, made.outcome, made.reason.partition("\n")[0])
            for number, made in enumerate(detail.tries, start=1)
        ],
        none="no attempts",
    )
    trace = detail.error.trace if detail.error is not None else ""
    lines = [safe(line) for line in trace.splitlines()]
    return Printed(detail, facts, tries, *lines)


def cancel_jobs(ms: Millstream, ids: JobIds) -> Printed:
    """Cancel jobs. A job that waits never starts; a job that runs is asked to end.

    The exit code is 1 if a job had ended before. A wrong id cancels no job.
    """
    stored = StoredJobs(ms.session)
    for id in ids:
        stored.get(id)
    outcomes = {id: stored.cancel(id) for id in ids}
    words = {True: "cancelled", "requested": "asked to end", False: "has ended already"}
    lines = [f"{safe(id)} {words[outcome]}" for id, outcome in outcomes.items()]
    answers = [
        {"id": id, "cancelled": outcome is True, "requested": outcome == "requested"}
        for id, outcome in outcomes.items()
    ]
    return Printed(answers, *lines, code=int(False in outcomes.values()))


def retry_jobs(ms: Millstream, ids: JobIds) -> Printed:
    """Try failed jobs again, with all attempts of their tasks.

    If a job has not failed, or its id is wrong, no job runs again.
    """
    stored = StoredJobs(ms.session)
    has_failed = {id: stored.get(id).state == "failed" for id in ids}
    for id in sorted(has_failed, key=has_failed.__getitem__):  # those to refuse come first
        stored.retry(id)
    return Printed(
        {"retried": list(has_failed)}, f"{plural(len(has_failed), 'job')} will run again"
    )


def limit_key(
    ms: Millstream,
    key: Annotated[
        str, typer.Argument(metavar="KEY", help="The key, as in the arguments of the jobs.")
    ],
    running: Annotated[
        int | None, typer.Option(metavar="N", min=1, help="Most jobs that run at a time.")
    ] = None,
    per_minute: Annotated[
        float | None, typer.Option(metavar="N", help="Most jobs that start in a minute.")
    ] = None,
    queue: Annotated[
        str | None,
        typer.Option(metavar="QUEUE", help="Only in this queue.", show_default="all with limits"),
    ] = None,
    remove: Annotated[
        bool, typer.Option("--remove", help="Use the limits of the task again.")
    ] = False,
) -> Printed:
    """Set the limits of one key, instead of the limits of the task."""
    if remove == (running is not None or per_minute is not None):
        raise InvalidInput("a limit needs --running, --per-minute or both; or --remove alone")
    stored = StoredJobs(ms.session)
    queues = stored.limited_queues(queue)
    if remove:
        stored.remove_limit(key, queues=queues)
    else:
        stored.limit(key, running=running, per_minute=per_minute, queues=queues)
    return list_limits(ms, queue)


def list_limits(
    ms: Millstream,
    queue: Annotated[
        str | None, typer.Option(metavar="QUEUE", help="Only keys of this queue.")
    ] = None,
) -> Printed:
    """List the keys that have limits of their own."""
    stored = StoredJobs(ms.session)
    limits = stored.limits(stored.limited_queues(queue))
    rows = [(limit.key, limit.queue, limit.running, limit.per_minute) for limit in limits]
    table = Table(("key", "queue", "running", "per minute"), rows, none="no limits of keys")
    return Printed({"limits": limits}, table)


def show_result(
    ms: Millstream,
    id: JobId,
    timeout: Annotated[
        float | None, duration("How long to wait for the end of the job.", default="no wait")
    ] = None,
) -> Printed:
    """Print the result of a job as JSON.

    Fails if the job failed, was cancelled, or has not ended.
    """
    handle = Jobs(ms).get(id)
    try:
        handle.result(timeout=timeout or 0)  # raises the error of a failed job
    except TimeoutError:
        state = handle.state()
        raise MillstreamError(f"job {id!r} has not ended: it is {state}; --timeout waits") from None
    result = StoredJobs(ms.session).get(id).result
    return Printed(result, bytes(result).decode())


def _state(detail: JobDetail) -> str:
    return f"{detail.state}, asked to end" if detail.is_cancel_requested else detail.state


def _text(value: Raw) -> str:
    text = bytes(value).decode()
    return "" if text == "null" else text


def _short(text: str) -> str:
    return text if len(text) <= TEXT_SHOWN else f"{text[: TEXT_SHOWN - 1]}…"


def _error_line(error: JobError | None) -> str:
    return "" if error is None else error.text


command(job, "job list --state failed", "job list --task shop.tasks:send_mail", name="list")(
    list_jobs
)
command(job, "job show jobs-17", name="show")(show_job)
command(job, "job cancel jobs-17", name="cancel")(cancel_jobs)
command(job, "job retry jobs-17 jobs-18", name="retry")(retry_jobs)
command(job, "job result jobs-17", "job result jobs-17 --timeout 30s", name="result")(show_result)
command(job, "job limit acme --running 10", "job limit acme --remove", name="limit")(limit_key)
command(job, "job limits", name="limits")(list_limits)
