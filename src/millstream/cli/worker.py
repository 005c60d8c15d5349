"""`millstream worker`: run the jobs of an application, in child processes under a supervisor."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import typer

from millstream.cli.arguments import duration, parse_size
from millstream.cli.command import AsJson
from millstream.cli.place import CA, TOKEN, StorePlace, or_value_of_root

if TYPE_CHECKING:
    from millstream.jobs.processes.lines import EventWriter
    from millstream.jobs.processes.pool import ProcessPool

KILL_AFTER_S = 10.0


class StartMethodName(StrEnum):
    """How child processes start."""

    spawn = "spawn"
    forkserver = "forkserver"


@dataclass(frozen=True)
class JobsPlace:
    """The options that name the store of jobs, if the application does not."""

    store: Annotated[
        str | None,
        typer.Option(
            "--store",
            "-s",
            metavar="PLACE",
            envvar="MILLSTREAM_STORE",
            help="The store: a file, a bucket at s3://…, or a server at http://… or https://….",
            callback=or_value_of_root,
            show_default="the store of the application",
        ),
    ] = None
    secret: Annotated[str | None, TOKEN] = None
    ca: Annotated[str | None, CA] = None

    def checked(self) -> StorePlace | None:
        """Return the place; None for the store of the application."""
        if self.store is None:
            if self.secret is not None or self.ca is not None:
                raise typer.BadParameter("--token and --ca need --store with a server's address")
            return None
        return StorePlace(self.store, self.secret, self.ca)


@dataclass(frozen=True)
class RunOptions:
    """Which jobs run, and how many of them at a time."""

    concurrency: Annotated[
        int,
        typer.Option(
            "--concurrency", "-c", metavar="N", min=1, max=1000, help="Jobs at a time per process."
        ),
    ] = 8
    queues: Annotated[
        str | None,
        typer.Option(
            metavar="NAME:WEIGHT,…",
            help="Queues, and their shares of the concurrency.",
            show_default="the queues of all tasks",
        ),
    ] = None
    lease: Annotated[
        float | None,
        duration("The lease of a job, renewed while it runs.", default="the queue's"),
    ] = None
    drain: Annotated[bool, typer.Option("--drain", help="End when the queues are empty.")] = False


@dataclass(frozen=True)
class PoolOptions:
    """The child processes, and when they are replaced."""

    processes: Annotated[
        int,
        typer.Option("--processes", "-p", metavar="N", min=1, max=1000, help="Child processes."),
    ] = 1
    start: Annotated[
        StartMethodName,
        typer.Option(
            "--start", metavar="HOW", help="How child processes start: spawn, or forkserver."
        ),
    ] = StartMethodName.spawn
    reload: Annotated[
        bool, typer.Option("--reload", help="Restart when a Python file below this folder changes.")
    ] = False
    max_jobs: Annotated[
        int | None, typer.Option(metavar="N", min=1, help="Replace a process after so many jobs.")
    ] = None
    max_memory: Annotated[
        int | None,
        typer.Option(
            parser=parse_size, metavar="SIZE", help="Replace a process that uses more, after a job."
        ),
    ] = None
    stall: Annotated[
        float | None,
        duration("Replace a process without progress for so long, and log its stack."),
    ] = None
    kill_after: Annotated[
        float | None,
        duration(
            "How long a job may go on that was cancelled, or is over its timeout.", default="10s"
        ),
    ] = None


@dataclass(frozen=True)
class MetricsOptions:
    """Where the metrics are."""

    metrics_port: Annotated[
        int | None,
        typer.Option(metavar="PORT", min=0, max=65535, help="Serve /metrics for Prometheus."),
    ] = None
    metrics_host: Annotated[
        str, typer.Option(metavar="HOST", help="The address for --metrics-port.")
    ] = "127.0.0.1"

    def serve(self, pool: ProcessPool, writer: EventWriter) -> None:
        """Serve the metrics of a pool, if a port was named."""
        from millstream.jobs.processes.metrics import MetricsServer, metrics_text

        if self.metrics_port is None:
            return
        server = MetricsServer(
            lambda: metrics_text(pool.figures.snapshot(), pool.running),
            host=self.metrics_host,
            port=self.metrics_port,
        )
        text = f"metrics are at http://{self.metrics_host}:{server.port}/metrics"
        writer.event("info", "metrics", text, {"port": server.port})


def parse_queues(text: str) -> tuple[tuple[str, int], ...]:
    """Parse `mail:3,reports:1` or `mail,reports` into names and weights."""
    queues: dict[str, int] = {}
    for part in text.split(","):
        name, colon, weight = part.strip().partition(":")
        if not name or (colon and not (weight.isdecimal() and int(weight) > 0)) or name in queues:
            raise typer.BadParameter(
                f"queues must look like mail:3,reports:1 (names and weights), not {text!r}"
            )
        queues[name] = int(weight or 1)
    return tuple(queues.items())


def worker(
    application: Annotated[
        str, typer.Argument(metavar="MODULE:NAME", help="The Jobs object, as in shop.tasks:jobs.")
    ],
    run: RunOptions,
    children: PoolOptions,
    metrics: MetricsOptions,
    place: JobsPlace,
    json: AsJson = False,
) -> None:
    """Run the jobs of an application.

    The module is imported with the current folder on sys.path. SIGTERM or Ctrl-C: no new jobs,
    running jobs finish. A second signal ends at once. Each job has a log line on standard error:
    text in a terminal; JSON otherwise, and with --json.
    """
    from millstream.clock import SystemClock
    from millstream.jobs.processes.application import parse_application
    from millstream.jobs.processes.lines import EventWriter
    from millstream.jobs.processes.pool import ProcessPool
    from millstream.jobs.processes.reports import ChildPlan
    from millstream.jobs.processes.supervisor import PoolPlan
    from millstream.worker_process import FACTORY

    parse_application(application)
    store = place.checked()
    is_json = json or not sys.stderr.isatty()
    child = ChildPlan(
        factory=FACTORY,
        application=application,
        folder=os.getcwd(),
        store=None if store is None else store.store,
        token=None if store is None else store.token(),
        ca=place.ca,
        concurrency=run.concurrency,
        queues=parse_queues(run.queues) if run.queues else (),
        lease_s=run.lease,
        drain=run.drain,
        max_jobs=children.max_jobs,
        max_memory_bytes=children.max_memory,
        kill_after_s=KILL_AFTER_S if children.kill_after is None else children.kill_after,
        is_json=is_json,
    )
    plan = PoolPlan(
        processes=children.processes,
        stall_s=children.stall,
        is_draining=run.drain,
        is_reloading=children.reload,
    )
    clock = SystemClock()
    writer = EventWriter(
        clock, is_json=is_json, has_colour=not is_json and "NO_COLOR" not in os.environ
    )
    pool = ProcessPool(
        plan,
        child,
        clock=clock,
        tell=lambda tell: writer.event(tell.level, tell.event, tell.text, tell.facts),
        method=children.start.value,
    )
    metrics.serve(pool, writer)
    if code := pool.run():
        raise typer.Exit(code)
