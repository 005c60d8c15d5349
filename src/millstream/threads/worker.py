# Generated from src/millstream/aio/worker.py by `make generate`: change that file, not this one.

"""A worker: runs the decisions of its shift in the thread that calls `run`.

Handlers run elsewhere (`millstream.worker.crew`). A worker that dies has acknowledged only
finished messages: the lease ends, and another worker gets the message. So a handler may run twice,
but one acknowledgement is accepted.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Protocol

from millstream.command import Session
from millstream.errors import InvalidInput, MillstreamError, OutcomeUnknown
from millstream.numbers import checked_numbers
from millstream.queue.model.message import Message, QueueInfo
from millstream.store.wait_breaker import WaitBreaker
from millstream.threads.background_run import BackgroundRun
from millstream.threads.claim_source import ClaimSource
from millstream.threads.worker_runtime import (
    Bell,
    SideCall,
    idle_wait_s,
    make_crew,
    work_through,
)
from millstream.worker.crew import Crew, Report
from millstream.worker.effects import (
    PAUSES,
    Abandon,
    Begin,
    Claim,
    Complain,
    Effect,
    Finish,
    Handled,
    Idle,
    Look,
    Over,
)
from millstream.worker.endurance import Endurance
from millstream.worker.options import WorkerOptions
from millstream.worker.shift import LOOK_S, Shift
from millstream.worker.stats import WorkerStats


class DrainCheck(Protocol):
    """Decides whether a drain is complete. Without this check, a drain ends when the queue is empty."""

    def __call__(self) -> bool:
        """Return whether nothing is left to do."""


@checked_numbers
class Worker(BackgroundRun):
    """Runs a handler on the messages of a queue until a stop. A worker starts once."""

    _name = "millstream-worker"

    def __init__(
        self,
        queue: ClaimSource,
        session: Session,
        options: WorkerOptions,
        *,
        crew: Callable[[Report], Crew] | None = None,
        is_drained: DrainCheck | None = None,
    ) -> None:
        super().__init__()
        self._make_crew = crew or partial(make_crew, options, session)
        self._is_drained = is_drained or self._is_empty
        self._queue = queue
        self._clock = session.clock
        self._wait_s = idle_wait_s(session)
        self._options = options
        self._shift: Shift | None = None
        self._stopped = self._runs = self._sleeps = False
        self._told = WorkerStats()
        self._lock = threading.Lock()
        """Guards the shift and its leases."""

    @property
    def stats(self) -> WorkerStats:
        """Return the present counts of the worker."""
        return WorkerStats() if self._shift is None else self._shift.stats

    @property
    def stopping(self) -> bool:
        """Whether it was told to stop; a long handler may look, and end early with `Retry`."""
        return self._stopped

    # Beginning and ending.

    def run(self, *, drain: bool = False) -> WorkerStats:
        """Work until `stop`; with `drain` until the queue is empty.

        Empty is a queue in which nothing waits, is delayed, or is in flight anywhere. How signals
        and a cancelled caller end it is described in `docs/QUEUES.md`.
        """
        if self._runs:
            raise InvalidInput("this worker runs already; make another")
        self._happened = Bell()
        """Rung when a handler has ended, or the worker is to stop."""
        self._waiting = WaitBreaker()
        """Ended when the worker is to stop: a claim that waits ends then."""
        self._held = Bell()
        """Rung when there are leases again to be kept."""
        self._runs = True
        try:
            spec = self._info().spec
            plan = self._options.plan(spec, drain=drain, wait_s=self._wait_s)
            self._lease_s = plan.lease_s
            self._shift = shift = Shift(plan, self.stats)
            self._run(shift)
        finally:
            self._runs = False
        if shift.error is not None:
            raise shift.error
        return shift.stats

    def stop(self) -> None:
        """Claim no more; what runs is finished and acknowledged. Does not wait: see `join`."""
        self._stopped = True
        if self._runs:
            self._waiting.end()
            self._happened.ring()

    def _run(self, shift: Shift) -> None:
        """Work and keep leases."""
        self._crew = self._make_crew(self._report)
        keeping = SideCall(partial(self._keep, shift), name="millstream-leases")
        try:
            work_through(partial(self._work, shift), stop=self.stop, cancel=self._cancel)
        finally:
            self._runs = False
            self._crew.close()
            self._held.ring()
            keeping.close()

    # Take events from any thread.

    def _report(self, outcome: Handled) -> Message | None:
        """Note the end of a handler, and return the message that the free handler begins next."""
        shift, now_s = self._shift, self._clock.seconds()
        assert shift is not None
        with self._lock:
            has_more = shift.ended((outcome,), now_s=now_s)
            if self._stopped:
                shift.stop()
            message = shift.take(now_s) if self._runs else None
        if has_more or message is None:
            self._happened.ring()
        return message

    def _cancel(self) -> None:
        """Have everything given back, and end."""
        assert self._shift is not None
        with self._lock:
            self._shift.cancel()
        self.stop()

    def _break(self, shift: Shift, error: Exception) -> None:
        """Tell the shift about an error outside its commits."""
        with self._lock:
            shift.broke(error)
        self._waiting.end()
        self._happened.ring()

    # Working.

    def _work(self, shift: Shift) -> None:
        """Ask the shift what to do, until it is done; an error of a hook is told to it too."""
        now_s = self._clock.seconds()
        while True:
            self._happened.clear()
            with self._lock:
                if self._stopped:
                    shift.stop()
                step = shift.next(now_s)
            try:
                if isinstance(step, PAUSES):
                    self._tell(shift)
                if isinstance(step, Over):
                    return
                if isinstance(step, Idle):
                    now_s = self._wait(self._happened, step.until_s, now_s)
                else:
                    self._carry_out(shift, step)
                    now_s = self._clock.seconds()
            except Exception as error:
                if isinstance(step, Claim):  # the hook of the progress raised before the claim
                    with self._lock:
                        shift.withdrawn()
                self._break(shift, error)

    def _carry_out(self, shift: Shift, step: Effect) -> None:
        if isinstance(step, Begin):
            for message in step.messages:
                self._crew.begin(message)
        elif isinstance(step, Claim | Finish | Look):
            self._ask(shift, step)
        elif isinstance(step, Complain):
            self._options.log(step)
            if self._options.on_error is not None and shift.error is None:
                self._options.on_error(step.message, step.error)
        elif isinstance(step, Abandon):
            for message in step.messages:
                self._crew.abandon(message)

    def _tell(self, shift: Shift) -> None:
        """Tell how it goes, unless an error of a hook may be what ends the worker."""
        hook = self._options.on_progress
        if hook is not None and shift.error is None and shift.stats != self._told:
            self._told = shift.stats
            hook(self._told)

    def _ask(self, shift: Shift, step: Claim | Finish | Look) -> None:
        """Ask the queue, and tell the shift what it answered."""
        try:
            if isinstance(step, Claim):
                claimed = self._claim(step)
                with self._lock:
                    shift.claimed(claimed, now_s=self._clock.seconds())
                    if self._sleeps:
                        self._held.ring()
            elif isinstance(step, Finish):
                lost = self._queue.finish_each(
                    step.messages,
                    step.how,
                    delay=step.delay_s,
                    reason=step.reason,
                    result=_in_order(step.results, step.messages),
                    error=step.error,
                )
                with self._lock:
                    shift.finished(lost)
            else:
                is_empty = self._is_drained()
                with self._lock:
                    shift.looked(is_empty=is_empty)
        except Exception as error:
            with self._lock:
                shift.failed(error, now_s=self._clock.seconds())
        except BaseException:
            unknown = OutcomeUnknown("broken off before the answer came")
            with self._lock:
                shift.failed(unknown, now_s=self._clock.seconds())
            raise

    def _claim(self, step: Claim) -> list[Message]:
        """Claim messages; a stop ends a claim that waits."""
        with self._waiting:
            return self._queue.claim(
                step.n,
                lease=self._lease_s,
                wait=step.wait_s,
                ack=step.acks,
                results=_in_order(step.results, step.acks),
                consumer=self._options.consumer,
            )

    def _wait(self, bell: Bell, until_s: float | None, now_s: float) -> float:
        """Wait for a bell, or for a time at most; the time then."""
        if bell.wait(None if until_s is None else max(0, until_s - now_s)):
            return self._clock.seconds()
        return max(until_s or now_s, self._clock.seconds())

    def _keep(self, shift: Shift) -> None:
        """Prolong leases beside everything else, for as long as the worker runs."""
        leases, now_s = shift.leases, self._clock.seconds()
        while self._runs:
            self._held.clear()
            with self._lock:
                step = leases.next(now_s)
                self._sleeps = isinstance(step, Idle) and step.until_s is None
            if isinstance(step, Idle):
                now_s = self._wait(self._held, step.until_s, now_s)
                continue
            try:
                self._queue.renew(step.messages, lease=self._lease_s)
            except Exception as error:
                with self._lock:
                    may_pass = leases.refused(step.messages, error, now_s=self._clock.seconds())
                if not may_pass:
                    self._break(shift, error)
                    return
            else:
                with self._lock:
                    leases.renewed(step.messages, since_s=now_s)
            now_s = self._clock.seconds()

    def _is_empty(self) -> bool:
        return self._queue.info().is_empty

    def _info(self) -> QueueInfo:
        """How the queue stands, once its store can be asked."""
        endurance = Endurance()
        while True:
            try:
                return self._queue.info()
            except MillstreamError as error:
                if not endurance.bears(error, is_stopping=self._stopped):
                    raise
            self._happened.wait(LOOK_S)


def _in_order(
    results: Mapping[int, bytes], messages: Sequence[Message]
) -> list[bytes | None] | None:
    """Return the result of each message, or None if no message has a result."""
    return [results.get(message.claim_id) for message in messages] if results else None
