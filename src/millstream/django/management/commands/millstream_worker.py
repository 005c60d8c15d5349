"""`manage.py millstream_worker`: runs the tasks of a project until SIGTERM, then ends its tasks."""

from __future__ import annotations

from argparse import ArgumentParser
from typing import Any

from django.core.management.base import BaseCommand, CommandError

from millstream.django.backend import MillstreamBackend
from millstream.django.framework import framework
from millstream.jobs.reports import JobFinished, JobReport


class RunTasks(BaseCommand):  # type: ignore[misc] # Django has no types
    """Runs tasks."""

    help = "Run the tasks that Django has enqueued with the Millstream backend."

    def add_arguments(self, parser: ArgumentParser) -> None:
        """Add the options of the command."""
        parser.add_argument("--backend", default="default", help="the name of the backend in TASKS")
        parser.add_argument(
            "--queues", default="", help="queues of Django, as in `default,mail`; without it, all"
        )
        parser.add_argument("--concurrency", type=int, default=1, help="tasks that run at a time")
        parser.add_argument(
            "--drain",
            action="store_true",
            help="end when no task waits, is deferred or runs",
        )

    def handle(self, *args: Any, **options: Any) -> None:
        """Run tasks until a signal."""
        backend = framework.task_backends[options["backend"]]
        if not isinstance(backend, MillstreamBackend):
            raise CommandError(
                f"the backend {options['backend']!r} of TASKS is {type(backend).__name__}; this "
                "command is for millstream.django.MillstreamBackend"
            )
        queues = [backend.queue_of(name) for name in self._queue_names(backend, options["queues"])]
        for queue in queues:
            backend.make_queue(queue)
        worker = backend.jobs.worker(
            concurrency=options["concurrency"],
            queues=queues,
            on_job=self._report if options["verbosity"] else None,
        )
        if options["verbosity"]:
            self.stdout.write(f"running tasks of {', '.join(queues)} in {backend.settings.store}")
        stats = worker.run(drain=options["drain"])
        if options["verbosity"]:
            self.stdout.write(f"{stats.done} done, {stats.retried} retried, {stats.failed} failed")

    def _queue_names(self, backend: Any, chosen: str) -> list[str]:
        """Return the names of Django's queues: chosen, in TASKS, or in the store."""
        if chosen:
            return [name.strip() for name in chosen.split(",")]
        if backend.queues:
            return sorted(backend.queues)
        prefix = backend.settings.queue_prefix
        queues = [info.name for info in backend.jobs.opened().queues()]
        return sorted(
            {name[len(prefix) :] for name in queues if name.startswith(prefix)} | {"default"}
        )

    def _report(self, report: JobReport) -> None:
        if isinstance(report, JobFinished):
            reason = f": {report.reason}" if report.reason else ""
            took = f"{report.run_s * 1000:.1f} ms"
            self.stdout.write(f"{report.id} {report.task} {report.outcome} in {took}{reason}")


Command = RunTasks
"""The name by which Django finds a command."""
