"""A worker of tasks: carries out what its shift decides, in the event loop that calls `run`.

Coroutine functions run as tasks of the same loop, plain functions on threads of their own. It makes
the same promises as the worker of threads (`millstream.worker.worker`), whose names it has.
"""

from __future__ import annotations

import asyncio
from types import TracebackType
from typing import Any, Self

from millstream.command import AsyncSession, Transact
from millstream.errors import Closed, InvalidInput, MillstreamError, OutcomeUnknown
from millstream.queue.model.message import QueueInfo
from millstream.record import Seconds, to_ms
from millstream.worker.crew import Crew, Tasks, ThreadCrew
from millstream.worker.effects import (
    PAUSES,
    Abandon,
    Begin,
    Claim,
    Complain,
    Effect,
    Finish,
    Idle,
    Look,
    Outcome,
    Over,
    Renew,
)
from millstream.worker.endurance import Endurance
from millstream.worker.options import WorkerOptions
from millstream.worker.shell import Shell, found, is_empty
from millstream.worker.shift import LOOK_S, Shift, WorkerStats
from millstream.worker.supply import AsyncSupply

__all__ = ["TaskWorker", "WorkerStats"]


class TaskWorker(Shell):
    """Runs a handler on the messages of a queue, until it is stopped. It runs once."""

    def __init__(self, queue: AsyncSupply, session: AsyncSession, options: WorkerOptions) -> None:
        super().__init__(options)
        self._queue = queue
        self._session = session
        self._clock = session.clock
        self._loop: asyncio.AbstractEventLoop | None = None
        self._outcomes: list[Outcome] = []
        self._happened = asyncio.Event()
        self._held = asyncio.Event()
        self._task: asyncio.Task[WorkerStats] | None = None
        self._is_told = self._is_broken_off = False

    # Beginning and ending.

    async def run(self, *, drain: bool = False) -> WorkerStats:
        """Work until `stop`; with `drain` until the queue is empty.

        Empty is a queue in which nothing waits, is delayed, or is in flight anywhere. Signals are
        left alone. A caller that is cancelled gives everything back first: coroutines that run are
        cancelled, and threads are left behind with leases that end. Cancelled again, it ends at once.
        """
        if self._loop is not None:
            raise InvalidInput("this worker runs already; make another")
        self._loop = asyncio.get_running_loop()
        try:
            plan = self._options.plan((await self._info()).spec, drain=drain)
            self._lease_s = plan.lease_s
            self._shift = shift = Shift(plan, self.stats)
            await self._run(shift)
        finally:
            self._loop = None
        if shift.error is not None:
            raise shift.error
        return shift.stats

    def stop(self) -> None:
        """Claim no more; what runs is finished and acknowledged. From any thread; see `join`."""
        self._stopped = True
        self._call_soon(self._happened.set)

    def start(self, *, drain: bool = False) -> Self:
        """Run as a task of its own."""
        if self._task is not None:
            raise InvalidInput("a worker runs once; make another")
        self._task = asyncio.create_task(self.run(drain=drain), name="millstream-worker")
        return self

    async def join(self, timeout: Seconds | None = None) -> bool:
        """Wait until a started worker has ended, and raise what ended it; False if it still runs."""
        if self._task is None:
            return True
        wait_s = None if timeout is None else to_ms(timeout) / 1000
        await asyncio.wait([self._task], timeout=wait_s)
        if not self._task.done():
            return False
        error = None if self._task.cancelled() else self._task.exception()
        if error is not None and not self._is_told:
            self._is_told = True
            raise error
        return True

    async def __aenter__(self) -> Self:
        return self.start()

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        task = self._task
        if task is not None and isinstance(error, asyncio.CancelledError):
            task.cancel()
        self.stop()
        try:
            await self.join()
        except asyncio.CancelledError:
            if task is not None:
                task.cancel()
                await asyncio.wait([task])
            raise

    async def _run(self, shift: Shift) -> None:
        """Work and keep leases; the work goes on for a while if the caller is cancelled."""
        self._crew = self._make_crew()
        keeping = asyncio.create_task(self._keep(shift))
        working = asyncio.create_task(self._work(shift))
        try:
            await asyncio.shield(working)
        except asyncio.CancelledError:
            self._cancel(shift)
            try:
                await asyncio.shield(working)
            except asyncio.CancelledError:
                self._is_broken_off = True
                working.cancel()
            raise
        finally:
            self._crew.close()
            keeping.cancel()
            await asyncio.wait([working, keeping])

    def _make_crew(self) -> Crew:
        options, limits = self._options, self._session.limits
        if options.is_async:
            return Tasks(
                options.handler,
                limits=limits,
                commit=self._session.execute,
                limit_s=options.limit_s,
                report=self._report,
            )
        return ThreadCrew(
            options.handler,
            limits=limits,
            commit=self._commit,
            size=options.concurrency,
            report=lambda outcome: self._call_soon(self._report, outcome),
        )

    # What handlers and other threads say.

    def _report(self, outcome: Outcome) -> None:
        self._outcomes.append(outcome)
        self._happened.set()

    def _commit(self, steps: Transact) -> list[Any]:
        """Commit the transaction of a handler, from its thread."""
        loop = self._loop
        if loop is None:
            raise Closed("the worker has ended")
        return asyncio.run_coroutine_threadsafe(self._session.execute(steps), loop).result()

    def _call_soon(self, call: Any, *given: Any) -> None:
        """Call in the worker's loop, from any thread; not at all if the worker does not run."""
        loop = self._loop
        if loop is None:
            return
        try:
            loop.call_soon_threadsafe(call, *given)
        except RuntimeError:
            if not loop.is_closed():
                raise

    def _cancel(self, shift: Shift) -> None:
        self._stopped = True
        shift.cancel()
        self._happened.set()

    def _break(self, shift: Shift, error: Exception) -> None:
        shift.broke(error)
        self._happened.set()

    # Working.

    async def _work(self, shift: Shift) -> None:
        """Ask the shift what to do, until it is done; an error of a hook is told to it too."""
        now_s = self._clock.seconds()
        while True:
            if self._outcomes:
                ended, self._outcomes = self._outcomes, []
                shift.ended(ended, now_s=now_s)
            if self._stopped:
                shift.stop()
            step = shift.next(now_s)
            try:
                if isinstance(step, PAUSES):
                    self._tell(shift)
                if isinstance(step, Over):
                    return
                if isinstance(step, Idle):
                    now_s = await self._wait(step.until_s, now_s)
                else:
                    await self._carry_out(shift, step)
                    now_s = self._clock.seconds()
            except asyncio.CancelledError:
                if self._is_broken_off:
                    raise
                self._cancel(shift)  # so it is if the loop cancels all its tasks
            except Exception as error:
                self._break(shift, error)

    async def _carry_out(self, shift: Shift, step: Effect) -> None:
        if isinstance(step, Begin):
            for message in step.messages:
                self._crew.begin(message)
        elif isinstance(step, Claim | Finish | Look):
            await self._ask(shift, step)
        elif isinstance(step, Complain):
            self._complain(shift, step.message, step.error)
        elif isinstance(step, Abandon):
            for message in step.messages:
                self._crew.abandon(message)

    async def _ask(self, shift: Shift, step: Claim | Finish | Look) -> None:
        """Ask the queue, and tell the shift what it answered."""
        try:
            if isinstance(step, Claim):
                claimed = await self._queue.claim(
                    step.n, lease=self._lease_s, wait=step.wait_s, ack=step.acks
                )
                shift.claimed(claimed, now_s=self._clock.seconds())
                self._held.set()
            elif isinstance(step, Finish):
                lost = await self._queue.finish_each(
                    step.messages, step.how, delay=step.delay_s, reason=step.reason
                )
                shift.finished(lost)
            else:
                info = found(await self._queue.info(), self._queue.name)
                shift.looked(is_empty=is_empty(info))
        except asyncio.CancelledError:
            unknown = OutcomeUnknown("cancelled before the answer came")
            shift.failed(unknown, now_s=self._clock.seconds())
            raise
        except Exception as error:
            shift.failed(error, now_s=self._clock.seconds())

    async def _wait(self, until_s: float | None, now_s: float) -> float:
        """Wait for a handler to end, or a stop; the time then."""
        if await happens(self._happened, None if until_s is None else until_s - now_s):
            return self._clock.seconds()
        return max(until_s or now_s, self._clock.seconds())

    async def _keep(self, shift: Shift) -> None:
        """Prolong leases beside everything else."""
        now_s = self._clock.seconds()
        while True:
            step = shift.leases.next(now_s)
            if isinstance(step, Renew):
                try:
                    await self._queue.renew(step.messages, lease=self._lease_s)
                except Exception as error:
                    if not shift.leases.refused(step.messages, error, now_s=self._clock.seconds()):
                        self._break(shift, error)
                        return
                else:
                    shift.leases.renewed(step.messages, since_s=now_s)
                now_s = self._clock.seconds()
            elif step.until_s is None:
                self._held.clear()
                await self._held.wait()
                now_s = self._clock.seconds()
            else:
                await asyncio.sleep(step.until_s - now_s)
                now_s = max(step.until_s, self._clock.seconds())

    async def _info(self) -> QueueInfo:
        """How the queue stands, once its store can be asked."""
        endurance = Endurance()
        while True:
            try:
                return found(await self._queue.info(), self._queue.name)
            except MillstreamError as error:
                if not endurance.bears(error, is_stopping=self._stopped):
                    raise
            await asyncio.sleep(LOOK_S)


async def happens(event: asyncio.Event, within_s: float | None) -> bool:
    """Whether an event is set within a time; it is cleared then."""
    try:
        async with asyncio.timeout(within_s):
            await event.wait()
    except TimeoutError:
        return False
    event.clear()
    return True
