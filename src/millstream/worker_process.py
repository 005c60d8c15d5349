"""The worker of a process of `millstream worker`: it runs the jobs of an application.

A module of its own, since such a process needs the nouns and not the command line.
"""

from __future__ import annotations

import asyncio
import sys
from typing import TYPE_CHECKING, Any

from millstream.errors import InvalidInput
from millstream.jobs.processes.application import UnusableApplication, load_application
from millstream.jobs.processes.child import ChildWorker
from millstream.jobs.processes.reports import ChildPlan, Orphan
from millstream.jobs.reports import OnJob
from millstream.queue.commands import FinishClaims
from millstream.threads.database import Millstream
from millstream.threads.database import open as open_store
from millstream.threads.jobs import Jobs
from millstream.worker.shift import STOPPED

if TYPE_CHECKING:
    from millstream import aio

FACTORY = "millstream.worker_process:make_worker"


def make_worker(plan: ChildPlan, on_job: OnJob) -> ChildWorker:
    """Import the application, open its store, and return its worker."""
    jobs = load_application(plan.application, folder=plan.folder, is_jobs=is_jobs)
    worker = JobProcess if isinstance(jobs, Jobs) else AsyncJobProcess
    return worker(jobs, plan, on_job)


def is_jobs(value: Any) -> bool:
    """Whether a value is an object of either `Jobs` class."""
    return isinstance(value, Jobs) or _is_async_jobs(value)


def _is_async_jobs(value: Any) -> bool:
    """Whether a value is `millstream.aio.Jobs`, without importing coroutines for other programs."""
    module = sys.modules.get("millstream.aio")
    return module is not None and isinstance(value, module.Jobs)


class JobProcess:
    """The worker of `Jobs`."""

    def __init__(self, jobs: Jobs, plan: ChildPlan, on_job: OnJob) -> None:
        self._jobs = jobs
        self._plan = plan
        self._bound: Millstream | None = None
        if plan.store is not None:
            self._bound = open_store(plan.store, token=plan.token, ca=plan.ca)
            jobs.bind(self._bound)
        try:
            session = jobs.opened().session
        except InvalidInput as error:
            raise _without_store(plan, error) from None
        for operation in endings_of(plan.orphans):
            session.execute(operation)
        self._worker = jobs.worker(
            concurrency=plan.concurrency,
            queues=dict(plan.queues) or None,
            on_job=on_job,
            lease=plan.lease_s,
        )

    def run(self) -> None:
        """Run jobs, and close the store."""
        try:
            self._worker.run(drain=self._plan.drain)
        finally:
            self._jobs.close()
            if self._bound is not None:
                self._bound.close()

    def stop(self) -> None:
        """Claim no more jobs."""
        self._worker.stop()


class AsyncJobProcess:
    """The worker of `millstream.aio.Jobs`, in an event loop of its own."""

    def __init__(self, jobs: aio.Jobs, plan: ChildPlan, on_job: OnJob) -> None:
        self._jobs = jobs
        self._plan = plan
        self._worker = jobs.worker(
            concurrency=plan.concurrency,
            queues=dict(plan.queues) or None,
            on_job=on_job,
            lease=plan.lease_s,
        )

    def run(self) -> None:
        """Run jobs, and close the store."""
        asyncio.run(self._run())

    def stop(self) -> None:
        """Claim no more jobs."""
        self._worker.stop()

    async def _run(self) -> None:
        from millstream.aio import open as open_async

        plan = self._plan
        bound = None
        if plan.store is not None:
            bound = await open_async(plan.store, token=plan.token, ca=plan.ca)
            self._jobs.bind(bound)
        try:
            try:
                ms = await self._jobs.opened()
            except InvalidInput as error:
                raise _without_store(plan, error) from None
            for operation in endings_of(plan.orphans):
                await ms.session.execute(operation)
            await self._worker.run(drain=plan.drain)
        finally:
            await self._jobs.close()
            if bound is not None:
                await bound.close()


def endings_of(orphans: tuple[Orphan, ...]) -> list[FinishClaims]:
    """Return the commands that end the attempts of a dead process.

    An attempt counts if its process died because of it. Claims without a valid lease are ignored.
    """
    return [
        FinishClaims(
            orphan.queue,
            [(orphan.claim_id, 1, orphan.attempt)],
            "nack",
            None if orphan.is_to_blame else 0,
            orphan.reason if orphan.is_to_blame else f"{STOPPED}: {orphan.reason}",
            each=True,
        )
        for orphan in orphans
    ]


def _without_store(plan: ChildPlan, error: InvalidInput) -> UnusableApplication:
    return UnusableApplication(
        f"{plan.application} has no store: start the worker with --store PLACE, or write "
        "Jobs('shop.db')",
        application=plan.application,
        cause=str(error),
    )
