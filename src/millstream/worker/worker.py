"""A worker of threads: carries out what its shift decides, on the thread that calls `run`.

Handlers run elsewhere: on threads of their own, or on an event loop that has one. A worker that
dies has acknowledged nothing that it had not finished: the lease ends, and another worker gets the
message. So a handler may run twice, but one acknowledgement is accepted.
"""

from __future__ import annotations

import threading
from contextlib import suppress
from queue import Empty, SimpleQueue
from types import TracebackType
from typing import Self

from millstream.command import Session
from millstream.errors import InvalidInput, MillstreamError
from millstream.queue.model.message import QueueInfo
from millstream.record import Seconds, to_ms
from millstream.worker.crew import Crew, LoopCrew, ThreadCrew
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
)
from millstream.worker.endurance import Endurance
from millstream.worker.handler import HandlerTransaction
from millstream.worker.options import WorkerOptions
from millstream.worker.renewing import Renewing
from millstream.worker.shell import Shell, found, is_empty
from millstream.worker.shift import LOOK_S, Shift, TimeLimitExceeded, WorkerStats
from millstream.worker.stopping import stopped_by_signals
from millstream.worker.supply import Supply

__all__ = ["HandlerTransaction", "TimeLimitExceeded", "Worker", "WorkerStats"]


class Worker(Shell):
    """Runs a handler on the messages of a queue, until it is stopped. It runs once."""

    def __init__(self, queue: Supply, session: Session, options: WorkerOptions) -> None:
        super().__init__(options)
        self._queue = queue
        self._session = session
        self._clock = session.clock
        self._outcomes: SimpleQueue[Outcome | None] = SimpleQueue()
        self._came: list[Outcome | None] = []
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._error: BaseException | None = None

    # Beginning and ending.

    def run(self, *, drain: bool = False) -> WorkerStats:
        """Work until `stop`; with `drain` until the queue is empty.

        Empty is a queue in which nothing waits, is delayed, or is in flight anywhere. In the main
        thread SIGTERM and SIGINT stop it as `stop` does; a second one has its usual effect.
        """
        plan = self._options.plan(self._info().spec, drain=drain)
        self._lease_s = plan.lease_s
        self._shift = shift = Shift(plan, self.stats)
        self._renewing = Renewing(
            self._queue,
            shift.leases,
            lease_s=plan.lease_s,
            lock=self._lock,
            clock=self._clock,
            on_failure=self._break,
        )
        self._crew = self._make_crew()
        try:
            with stopped_by_signals(self.stop):
                self._work(shift)
        finally:
            self._crew.close()
            self._renewing.close()
        if shift.error is not None:
            raise shift.error
        return shift.stats

    def stop(self) -> None:
        """Claim no more; what runs is finished and acknowledged. Does not wait: see `join`."""
        self._stopped = True
        self._outcomes.put(None)

    def start(self, *, drain: bool = False) -> Self:
        """Run on a thread of its own."""
        if self._thread is not None:
            raise InvalidInput("a worker runs once; make another")
        self._thread = threading.Thread(
            target=self._run_apart, kwargs={"drain": drain}, name="millstream-worker", daemon=True
        )
        self._thread.start()
        return self

    def join(self, timeout: Seconds | None = None) -> bool:
        """Wait until a started worker has ended, and raise what ended it; False if it still runs."""
        if self._thread is None:
            return True
        self._thread.join(None if timeout is None else to_ms(timeout) / 1000)
        if self._thread.is_alive():
            return False
        error, self._error = self._error, None
        if error is not None:
            raise error
        return True

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()
        self.join()

    def _run_apart(self, *, drain: bool) -> None:
        try:
            self.run(drain=drain)
        except BaseException as error:  # raised again by join
            self._error = error

    def _make_crew(self) -> Crew:
        options, limits = self._options, self._session.limits
        commit, report = self._session.execute, self._outcomes.put
        if options.is_async:
            return LoopCrew(
                options.handler,
                limits=limits,
                commit=commit,
                limit_s=options.limit_s,
                report=report,
            )
        return ThreadCrew(
            options.handler, limits=limits, commit=commit, size=options.concurrency, report=report
        )

    # Working.

    def _work(self, shift: Shift) -> None:
        """Ask the shift what to do, until it is done; an error of a hook is told to it too."""
        now_s = self._clock.seconds()
        while True:
            ended = self._take_outcomes()
            with self._lock:
                if ended:
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
                    now_s = self._wait(step.until_s, now_s)
                else:
                    self._carry_out(shift, step)
                    now_s = self._clock.seconds()
            except Exception as error:
                self._break(error)

    def _carry_out(self, shift: Shift, step: Effect) -> None:
        if isinstance(step, Begin):
            for message in step.messages:
                self._crew.begin(message)
        elif isinstance(step, Claim | Finish | Look):
            self._ask(shift, step)
        elif isinstance(step, Complain):
            self._complain(shift, step.message, step.error)
        elif isinstance(step, Abandon):
            for message in step.messages:
                self._crew.abandon(message)

    def _ask(self, shift: Shift, step: Claim | Finish | Look) -> None:
        """Ask the queue, and tell the shift what it answered."""
        try:
            if isinstance(step, Claim):
                claimed = self._queue.claim(
                    step.n, lease=self._lease_s, wait=step.wait_s, ack=step.acks
                )
                with self._lock:
                    shift.claimed(claimed, now_s=self._clock.seconds())
                    self._renewing.notice()
            elif isinstance(step, Finish):
                lost = self._queue.finish_each(
                    step.messages, step.how, delay=step.delay_s, reason=step.reason
                )
                with self._lock:
                    shift.finished(lost)
            else:
                info = found(self._queue.info(), self._queue.name)
                with self._lock:
                    shift.looked(is_empty=is_empty(info))
        except Exception as error:
            with self._lock:
                shift.failed(error, now_s=self._clock.seconds())

    def _wait(self, until_s: float | None, now_s: float) -> float:
        """Wait for a handler to end, or a stop; the time then."""
        wait_s = None if until_s is None else max(0, until_s - now_s)
        try:
            self._came.append(self._outcomes.get(timeout=wait_s))
        except Empty:
            return max(until_s or now_s, self._clock.seconds())
        return self._clock.seconds()

    def _take_outcomes(self) -> list[Outcome]:
        """All that have come: the shift knows of them before it looks at the time."""
        with suppress(Empty):
            while not self._outcomes.empty():
                self._came.append(self._outcomes.get_nowait())
        came, self._came = self._came, []
        return [outcome for outcome in came if outcome is not None]

    def _break(self, error: Exception) -> None:
        """Tell the shift of an error that is none of its commits'; from any thread."""
        assert self._shift is not None
        with self._lock:
            self._shift.broke(error)
        self._outcomes.put(None)

    def _info(self) -> QueueInfo:
        """How the queue stands, once its store can be asked."""
        endurance = Endurance()
        while True:
            try:
                return found(self._queue.info(), self._queue.name)
            except MillstreamError as error:
                if not endurance.bears(error, is_stopping=self._stopped):
                    raise
            threading.Event().wait(LOOK_S)
