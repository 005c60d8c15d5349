"""The worker of a process of `millstream worker`: it runs the jobs of an application.

A module of its own, since such a process needs the nouns and not the command line.
"""

from __future__ import annotations

import asyncio
import os
import sys
from typing import TYPE_CHECKING, Any

from millstream.errors import Denied, InvalidInput, NotFound
from millstream.jobs.driving import Steps, drive, drive_async
from millstream.jobs.processes.application import UnusableApplication, load_application
from millstream.jobs.processes.child import ChildWorker
from millstream.jobs.processes.reports import ChildPlan, Orphan, consumer_of
from millstream.jobs.reports import OnJob
from millstream.queue.commands import FinishClaims, GetAttempts, PeekMessages, Run
from millstream.queue.model.message import messages_of
from millstream.threads.database import Millstream
from millstream.threads.database import open as open_store
from millstream.threads.jobs import Jobs
from millstream.worker.shift import STOPPED

if TYPE_CHECKING:
    from millstream import aio

FACTORY = "millstream.worker_process:make_worker"

LOOKED_MAX = 5_000
"""Messages in flight, of all workers, at which a new process looks for claims of a dead one."""

PEEKED = 500


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
        drive(give_back_steps(plan, _queues_of(plan, jobs)), session.execute)
        self._worker = jobs.worker(
            concurrency=plan.concurrency,
            queues=dict(plan.queues) or None,
            on_job=on_job,
            lease=plan.lease_s,
        )
        self._worker.consumer = consumer_of(os.getpid(), plan.mark)

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
        self._worker.consumer = consumer_of(os.getpid(), plan.mark)

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
            steps = give_back_steps(plan, _queues_of(plan, self._jobs))
            await drive_async(steps, ms.session.execute)
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


def give_back_steps(plan: ChildPlan, queues: list[str]) -> Steps[None]:
    """Give back the claims of dead processes that are still in flight.

    These attempts do not count. Jobs that are not found here wait for the end of their lease.
    """
    for queue in queues if plan.dead else ():
        try:
            claims = yield from _claims_of(set(plan.dead), queue)
            if claims:
                yield FinishClaims(
                    queue, claims, "nack", 0, f"{STOPPED}: its process died", each=True
                )
        except (Denied, NotFound):
            continue  # a worker may claim without the right to look; a queue may be deleted


def _claims_of(consumers: set[str], queue: str) -> Steps[list[Run]]:
    """Return the claims of consumers, among the first messages in flight."""
    claims: list[Run] = []
    looked, after = 0, -1
    while looked < LOOKED_MAX:
        lots = yield PeekMessages(queue, "in_flight", PEEKED, after, False)
        messages = messages_of(lots)
        if not messages:
            break
        looked, after = looked + len(messages), messages[-1].claim_id
        for message in messages:
            tries = yield GetAttempts(queue, message.claim_id)
            if tries and tries[-1].outcome == "in_flight" and tries[-1].consumer in consumers:
                claims.append((message.claim_id, 1, message.attempt))
    return claims


def _queues_of(plan: ChildPlan, jobs: Jobs | aio.Jobs) -> list[str]:
    """Return the queues that the children of a pool serve."""
    of_tasks = {task.options.queue for task in jobs.tasks.values()}
    return [name for name, _ in plan.queues] or sorted(of_tasks)


def _without_store(plan: ChildPlan, error: InvalidInput) -> UnusableApplication:
    return UnusableApplication(
        f"{plan.application} has no store: start the worker with --store PLACE, or write "
        "Jobs('shop.db')",
        application=plan.application,
        cause=str(error),
    )
