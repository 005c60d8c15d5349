"""A worker of jobs: a worker for each queue, with one crew for functions of both kinds."""

from __future__ import annotations

from collections import Counter
from functools import partial
from typing import Any

from millstream.aio.background_run import BackgroundRun
from millstream.aio.job_schedules import PAUSE_S, JobSchedules
from millstream.aio.job_store import JobStore
from millstream.aio.queue import Queue
from millstream.aio.worker import Worker
from millstream.aio.worker_runtime import (
    Bell,
    SideCall,
    idle_wait_s,
    make_job_crew,
    work_through,
)
from millstream.errors import Denied, InvalidInput, MillstreamError
from millstream.jobs.chore_steps import chore_steps
from millstream.jobs.chores import CHORES, make_chores
from millstream.jobs.driving import drive_async
from millstream.jobs.reports import OnJob
from millstream.jobs.runner import Runner
from millstream.jobs.shares import QueueShares, shares_of
from millstream.numbers import checked_numbers
from millstream.queue.model.message import Message
from millstream.record import Seconds
from millstream.worker.effects import Complain
from millstream.worker.endurance import may_pass
from millstream.worker.options import WorkerOptions
from millstream.worker.stats import WorkerStats

BATCH_MAX = 1_000
"""The most jobs of a claim."""


@checked_numbers
class JobWorker(BackgroundRun):
    """Runs jobs until a stop. A worker starts once."""

    _name = "millstream-jobs"

    def __init__(
        self,
        jobs: JobStore,
        schedules: JobSchedules,
        *,
        concurrency: int,
        queues: QueueShares | None,
        on_job: OnJob | None,
        lease: Seconds | None,
    ) -> None:
        super().__init__()
        self._jobs = jobs
        self._schedules = schedules
        self._concurrency = concurrency
        self._wanted = queues
        self._on_job = on_job
        self._lease = lease
        self.consumer: str | None = None
        """The name of this worker in the attempts of jobs; None for the host and the process."""
        self._workers: list[Worker] = []
        self._runners: list[Runner] = []
        self._queues: list[Queue] = []
        self._stopped = self._is_done = False

    @property
    def stats(self) -> WorkerStats:
        """Return the present counts, of all queues together."""
        counts = [worker.stats for worker in self._workers]
        return WorkerStats(
            done=sum(count.done for count in counts),
            failed=sum(count.failed for count in counts),
            retried=sum(count.retried for count in counts),
            lost=sum(count.lost for count in counts),
            running=sum(count.running for count in counts),
        )

    @property
    def unknown_tasks(self) -> dict[str, int]:
        """How many jobs named a task that this process does not know, by the name of the task."""
        counts: dict[str, int] = {}
        for runner in self._runners:
            for name, count in runner.unknown.items():
                counts[name] = counts.get(name, 0) + count
        return counts

    @property
    def stopping(self) -> bool:
        """Whether the worker was told to stop."""
        return self._stopped

    async def run(self, *, drain: bool = False) -> WorkerStats:
        """Work until `stop`; with `drain` until no job waits, is scheduled, or runs."""
        self._workers = await self._make_workers()
        schedules = self._schedules
        await schedules.sync()
        if self._stopped:
            return self.stats
        if drain:
            await schedules.fire()
            return await self._run_jobs(drain=True)
        firing = SideCall(partial(schedules.serve, self._is_over), name="millstream-schedules")
        try:
            return await self._run_jobs(drain=False)
        finally:
            self._stopped = True
            await firing.close()

    def _is_over(self) -> bool:
        return self._stopped

    async def _run_jobs(self, *, drain: bool) -> WorkerStats:
        chores = await self._start_chores()
        watches = [
            SideCall(partial(self._watch_cancels, *pair), name="millstream-cancels")
            for pair in zip(self._queues, self._runners, strict=True)
        ]
        try:
            if len(self._workers) == 1:
                return await self._workers[0].run(drain=drain)
            await work_through(
                partial(self._run_all, drain=drain), stop=self.stop, cancel=self.stop
            )
            return self.stats
        finally:
            self._is_done = True
            for watch in watches:
                await watch.close()
            if chores is not None:
                chores.stop()
                await chores.join()

    async def _watch_cancels(self, queue: Queue, runner: Runner) -> None:
        """Ask running jobs of a queue to end when they are cancelled, until the worker ends."""
        request_count, wait_s = 0, idle_wait_s(queue.session)
        bell = Bell()  # nobody rings: it measures the pause after a failure
        while not self._is_done:
            try:
                requests = await queue.wait_cancels(request_count, timeout=wait_s)
            except MillstreamError as error:
                if not may_pass(error):
                    raise
                await bell.wait(PAUSE_S)
                continue
            if requests is not None:
                request_count = requests.total
                runner.cancel(requests.claims)

    async def _is_drained(self) -> bool:
        """Whether no queue has a job left; the other workers then stop too.

        A job may put a job into another queue while the queues are looked at one by one. So several
        queues are looked at twice: if none has ended a job in between, none got a job.
        """
        before = await self._ended_jobs()
        if before is None or (len(self._queues) > 1 and before != await self._ended_jobs()):
            return False
        for worker in self._workers:
            worker.stop()
        return True

    async def _ended_jobs(self) -> list[int] | None:
        """Return how many jobs have ended in each queue; None if a queue has a job left."""
        infos = [await queue.info() for queue in self._queues]
        if not all(info.is_empty for info in infos):
            return None
        return [info.done + info.failed + info.cancelled for info in infos]

    async def _start_chores(self) -> Worker | None:
        """Start a worker of chores; None without the right to make the queue of chores."""
        ms = await self._jobs.opened()
        session, queue = ms.session, await ms.queue(CHORES)
        try:
            if not await queue.exists():
                await session.execute(make_chores())
        except Denied:
            return None

        async def do(message: Message) -> None:
            steps = chore_steps(message.value, session.limits, session.clock.wall_ms())
            await drive_async(steps, session.execute)

        return queue.worker(do).start()

    async def _run_all(self, *, drain: bool) -> None:
        for worker in self._workers:
            worker.start(drain=drain)
        for worker in self._workers:
            await worker.join()

    def stop(self) -> None:
        """Claim no more; running jobs finish. Does not wait: see `join`."""
        self._stopped = True
        for worker in self._workers:
            worker.stop()

    async def _make_workers(self) -> list[Worker]:
        """Make the queues of the tasks, and a worker for each."""
        ms = await self._jobs.opened()
        for task in list(self._jobs.tasks.values()):
            await self._jobs.make_queue(task.options)
        served = Counter(sorted(task.options.queue for task in self._jobs.tasks.values()))
        workers = []
        for name, share in shares_of(self._wanted, served, self._concurrency).items():
            runner = Runner(
                self._jobs.tasks,
                ms.session.limits,
                ms.session.clock,
                on_job=self._on_job,
                keep_s=self._jobs.results_s,
            )
            self._runners.append(runner)
            options = WorkerOptions(
                handler=_handled_by_the_crew,
                concurrency=share,
                batch=BATCH_MAX,
                adapts=True,
                lease=self._lease,
                log=_reported_by_the_runner,
                consumer=self.consumer,
            )
            crew = partial(make_job_crew, runner, share, ms.session)
            queue = await ms.queue(name)
            if name not in served and not await queue.exists():
                raise InvalidInput(
                    f"there is no queue {name!r}; the queues of the tasks are "
                    f"{', '.join(served)[:300] or 'none'}"
                )
            self._queues.append(queue)
            workers.append(
                Worker(queue, ms.session, options, crew=crew, is_drained=self._is_drained)
            )
        return workers


def _handled_by_the_crew(message: Any) -> None:
    """Stand in for a handler: the crew of jobs finds the task of each message."""


def _reported_by_the_runner(complaint: Complain) -> None:
    """Log nothing, because the runner reports failed jobs."""
