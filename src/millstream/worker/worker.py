"""A worker: claims messages, has a crew run the handler on them, and ends each attempt.

One thread, the caller of `run`, decides everything; handlers run elsewhere. A message is
acknowledged only after its handler has returned, together with the next claim in one commit. A
worker that dies has acknowledged nothing that it had not finished: the lease ends, and another
worker gets the message. So a handler may run twice, but one acknowledgement is accepted.
"""

from __future__ import annotations

import threading
from collections import defaultdict, deque
from collections.abc import Callable
from contextlib import suppress
from queue import Empty, SimpleQueue
from types import TracebackType
from typing import Self, TypeVar

from msgspec import Struct

from millstream.command import Session
from millstream.errors import (
    InvalidInput,
    LeaseLost,
    MillstreamError,
)
from millstream.queue.model.message import Message, QueueInfo, Reject, Retry
from millstream.queue.model.spec import no_queue
from millstream.record import Seconds, to_ms
from millstream.worker.crew import (
    Crew,
    Handler,
    HandlerTransaction,
    Outcome,
    TimeLimitExceeded,
    is_async,
    make_crew,
)
from millstream.worker.leases import Claim, Leases, claim_of, is_away, may_pass
from millstream.worker.stopping import stopped_by_signals
from millstream.worker.supply import Supply

__all__ = ["HandlerTransaction", "TimeLimitExceeded", "Worker", "WorkerStats"]

CONCURRENCY_MAX = 1_000
IDLE_WAIT_S = 0.25
"""How long one claim waits for messages while no handler runs; a stop takes no longer to be seen."""
LOOK_S = 0.05
"""How often new messages are looked for while some handlers run and others could."""
ACK_S = 0.1
"""How long an acknowledgement may wait for the next claim, where more was claimed than can run."""
REASON_CHARS_MAX = 500
REPEATS = 100
"""How often a commit is tried again that failed for a reason that may pass."""

T = TypeVar("T")


class WorkerStats(Struct, frozen=True, kw_only=True):
    """What a worker has done since it was made."""

    done: int = 0
    failed: int = 0
    """Rejected, or out of attempts."""
    retried: int = 0
    lost: int = 0
    """Handled, but the lease had ended, and another worker has the message. Or over its time limit."""
    running: int = 0


class Worker:
    """Runs a handler on the messages of a queue, until it is stopped. It runs once."""

    def __init__(
        self,
        queue: Supply,
        session: Session,
        handler: Handler,
        *,
        concurrency: int = 1,
        batch: int | None = None,
        lease: Seconds | None = None,
        time_limit: Seconds | None = None,
        on_error: Callable[[Message, BaseException], None] | None = None,
        on_progress: Callable[[WorkerStats], None] | None = None,
    ) -> None:
        if not 1 <= concurrency <= CONCURRENCY_MAX:
            raise InvalidInput(
                f"concurrency must be from 1 to {CONCURRENCY_MAX:,} handlers, got {concurrency:,}"
            )
        if batch is not None and batch < 1:
            raise InvalidInput(f"batch must be at least 1 message, got {batch:,}")
        if time_limit is not None and to_ms(time_limit) < 1:
            raise InvalidInput(f"time_limit must be at least 1 ms, got {time_limit!r}")
        self._queue = queue
        self._session = session
        self._handler = handler
        self._concurrency = concurrency
        self._batch = batch or 1
        self._lease = lease
        self._time_limit = time_limit
        limit_s = None if time_limit is None else to_ms(time_limit) / 1000
        self._overdue_s = None if is_async(handler) else limit_s
        self._on_error = on_error
        self._on_progress = on_progress
        self._stats = WorkerStats()
        self._told = self._stats
        self._stopped = False
        self._outcomes: SimpleQueue[Outcome | None] = SimpleQueue()
        self._running: dict[Claim, tuple[Message, float]] = {}
        self._waiting: deque[Message] = deque()
        self._finished: list[Message] = []
        self._finished_s = 0.0
        self._thread: threading.Thread | None = None
        self._error: BaseException | None = None

    @property
    def stats(self) -> WorkerStats:
        """How it goes, at this moment."""
        return self._stats

    @property
    def stopping(self) -> bool:
        """Whether it was told to stop; a long handler may look, and end early with `Retry`."""
        return self._stopped

    # Beginning and ending.

    def run(self, *, drain: bool = False) -> WorkerStats:
        """Work until `stop`; with `drain` until the queue is empty.

        Empty is a queue in which nothing waits, is delayed, or is in flight anywhere. In the main
        thread SIGTERM and SIGINT stop it as `stop` does; a second one has its usual effect.
        """
        info = self._patiently(self._need_info)
        lease_ms = info.spec.lease_ms if self._lease is None else to_ms(self._lease)
        self._lease_s = max(1, min(lease_ms, info.spec.lease_max_ms)) / 1000
        self._attempts_max = info.spec.max_attempts
        self._leases = Leases(self._queue, lease_s=self._lease_s, clock=self._session.clock)
        self._crew: Crew = make_crew(
            self._handler,
            self._session,
            size=self._concurrency,
            time_limit=self._time_limit,
            report=self._outcomes.put,
        )
        try:
            with stopped_by_signals(self.stop):
                self._work(drain=drain)
        finally:
            self._crew.close()
            self._leases.close()
        return self._stats

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

    # Working.

    def _work(self, *, drain: bool) -> None:
        try:
            while not self._stopped and self._turn(drain=drain):
                self._tell()
        except Exception:
            self._on_error = self._on_progress = None  # one of them may be what went wrong
            with suppress(MillstreamError):
                self._wind_down()
            raise
        self._wind_down()

    def _turn(self, *, drain: bool) -> bool:
        """Begin what can begin, and wait for something to happen; False once all is drained."""
        if self._leases.error is not None:
            raise self._leases.error
        self._begin_waiting()
        if len(self._running) < self._concurrency:
            if not self._claim() and not self._running:
                return not (drain and self._is_empty())
            wait_s = LOOK_S
        else:
            wait_s = ACK_S
        if self._running:
            self._take_outcomes(wait_s)
        if self._finished and self._session.clock.seconds() - self._finished_s >= ACK_S:
            self._acknowledge()
        return True

    def _begin_waiting(self) -> None:
        while self._waiting and len(self._running) < self._concurrency:
            self._begin(self._waiting.popleft())

    def _begin(self, message: Message) -> None:
        self._running[claim_of(message)] = (message, self._session.clock.seconds())
        self._crew.begin(message)

    def _claim(self) -> bool:
        """Acknowledge what is finished and claim more, in one commit; whether there was more."""
        free = self._concurrency - len(self._running)
        since_s = self._session.clock.seconds()
        wait_s = None if self._running else min(IDLE_WAIT_S, self._lease_s / 4)
        acked = sorted(self._finished, key=claim_of)
        try:
            if acked:
                wait_s = None  # they are to be known as done before anything is waited for
            claimed = self._queue.claim(
                max(free, self._batch), lease=self._lease_s, wait=wait_s, ack=acked
            )
        except LeaseLost:
            self._acknowledge()
            return True
        except MillstreamError as error:
            # What was finished is acknowledged again then, which is harmless; what was claimed and
            # never arrived comes back when its lease ends.
            if not may_pass(error):
                raise
            self._take_outcomes(LOOK_S)
            return True
        self._note_acknowledged(acked, lost=0)
        self._leases.hold(claimed, since_s=since_s)
        self._waiting.extend(claimed)
        self._begin_waiting()
        return bool(claimed or acked)

    def _take_outcomes(self, wait_s: float) -> None:
        """Wait for handlers to end, and deal with those that have."""
        found: list[Outcome] = []
        with suppress(Empty):
            outcome = self._outcomes.get(timeout=wait_s)
            while True:
                if outcome is not None:
                    found.append(outcome)
                outcome = self._outcomes.get_nowait()
        self._settle([o for o in found if self._running.pop(claim_of(o.message), None)])
        self._abandon_overdue()

    def _abandon_overdue(self) -> None:
        if self._overdue_s is None:
            return
        now_s = self._session.clock.seconds()
        late = [m for m, begun_s in self._running.values() if now_s - begun_s >= self._overdue_s]
        for message in late:
            del self._running[claim_of(message)]
            self._crew.abandon(message)
            self._leases.drop([message])
            self._count(lost=1)
            self._complain(message, TimeLimitExceeded(f"took longer than {self._overdue_s:g} s"))

    # Ending attempts.

    def _settle(self, outcomes: list[Outcome]) -> None:
        ended: dict[tuple[str, str], list[Message]] = defaultdict(list)
        for outcome in outcomes:
            message, error = outcome.message, outcome.error
            if error is None and not outcome.committed:
                if not self._finished:
                    self._finished_s = self._session.clock.seconds()
                self._finished.append(message)
            elif error is None:
                self._note_acknowledged([message], lost=0)
            else:
                how = "fail" if isinstance(error, Reject) else "nack"
                ended[how, reason_of(error)].append(message)
        for (how, reason), messages in ended.items():
            self._refuse(messages, how, reason)
        for outcome in outcomes:
            if outcome.error is not None:
                self._complain(outcome.message, outcome.error)

    def _refuse(self, messages: list[Message], how: str, reason: str) -> None:
        messages.sort(key=claim_of)
        gone = self._patiently(lambda: self._queue.finish_each(messages, how, reason=reason))
        lost = {claim_of(message) for message in gone}
        held = [m for m in messages if claim_of(m) not in lost]
        failed = sum(how == "fail" or m.attempt >= self._attempts_max for m in held)
        self._leases.drop(messages)
        self._count(failed=failed, retried=len(held) - failed, lost=len(lost))

    def _acknowledge(self) -> None:
        """Acknowledge what is finished, without claiming; lost leases are counted."""
        acked = sorted(self._finished, key=claim_of)
        if acked:
            lost = self._patiently(lambda: self._queue.finish_each(acked, "ack"))
            self._note_acknowledged(acked, lost=len(lost))

    def _note_acknowledged(self, messages: list[Message], *, lost: int) -> None:
        self._leases.drop(messages)
        gone = {claim_of(message) for message in messages}
        self._finished = [m for m in self._finished if claim_of(m) not in gone]
        self._count(done=len(messages) - lost, lost=lost)

    def _wind_down(self) -> None:
        """Give back what was not begun, finish what runs, acknowledge it."""
        self._give_back()
        while self._running or self._waiting:
            self._begin_waiting()
            self._take_outcomes(ACK_S)
            self._acknowledge()
            self._tell()
        self._acknowledge()
        self._tell()

    def _give_back(self) -> None:
        """Giving back counts as an attempt: what has only this one left is worked on instead."""
        last = [m for m in self._waiting if m.attempt >= self._attempts_max]
        for message in self._waiting:
            if message.attempt < self._attempts_max:
                with suppress(LeaseLost):
                    self._queue.nack(message, delay=0, reason="given back by a worker that stopped")
                self._leases.drop([message])
        self._waiting = deque(last)

    def _patiently(self, commit: Callable[[], T]) -> T:
        """Repeat a commit that failed for a reason that may pass.

        A server that is away is waited for until the worker is stopped: its session has been
        patient already.
        """
        tries = 0
        while True:
            try:
                return commit()
            except MillstreamError as error:
                tries += not is_away(error)
                if not may_pass(error) or tries > REPEATS or (is_away(error) and self._stopped):
                    raise
            threading.Event().wait(LOOK_S)

    # Telling.

    def _count(self, *, done: int = 0, failed: int = 0, retried: int = 0, lost: int = 0) -> None:
        was = self._stats
        self._stats = WorkerStats(
            done=was.done + done,
            failed=was.failed + failed,
            retried=was.retried + retried,
            lost=was.lost + lost,
            running=len(self._running),
        )

    def _tell(self) -> None:
        self._count()
        if self._on_progress is not None and self._stats != self._told:
            self._told = self._stats
            self._on_progress(self._stats)

    def _complain(self, message: Message, error: BaseException) -> None:
        if self._on_error is not None:
            self._on_error(message, error)

    def _need_info(self) -> QueueInfo:
        info = self._queue.info()
        if info is None:
            raise no_queue(self._queue.name)
        return info

    def _is_empty(self) -> bool:
        info = self._patiently(self._need_info)
        return not (info.available or info.unrouted or info.delayed or info.in_flight)


def reason_of(error: BaseException) -> str:
    """What is kept of an error: its kind and text, or the reason that a handler gave."""
    if isinstance(error, Reject | Retry):
        return error.reason[:REASON_CHARS_MAX]
    text = str(error)
    kind = type(error).__name__
    return (f"{kind}: {text}" if text else kind)[:REASON_CHARS_MAX]
