"""A shift decides what a worker does next, from the events so far. It executes nothing itself.

No thread, clock, socket or await: the worker's shell reports every event with its time, calls
`next`, and executes the returned effect. Decisions can therefore be replayed
(`tests/unit/worker/transcripts/`).

`next` returns the effect of the first rule that applies:

1. Nothing is left to do, or a second error came: done.
2. A commit failed for a reason that may pass: wait a little, then repeat the commit, as long as
   `Endurance` lasts.
3. The run was cancelled: abandon the running handlers.
4. Handlers that cannot be cancelled are overdue: abandon them.
5. Attempts ended badly: finish the attempts, with a commit for each kind of ending, and report them.
6. Messages wait and a handler is free: begin the messages.
7. Stopping: return messages that were not begun, acknowledge finished ones, wait for running ones.
8. A claim failed because an acknowledgement came late: acknowledge the messages separately.
9. A handler is free, and it is time to look: claim, and acknowledge finished messages with it.
10. Draining, and the last claim returned nothing: ask whether the queue is empty.
11. Acknowledgements have waited for a claim for `ACK_S`: send the acknowledgements.
12. Otherwise wait, for outcomes or for the time at which a rule will apply.

Events may come while an effect is on its way, and `take` begins a waiting message at once: the
thread whose handler has ended goes on by itself, without the worker's shell in between.

A message is acknowledged only after its handler has returned. Returning a message counts as an
attempt, so a message on its last attempt is handled instead, unless the run was cancelled. An error
that does not pass ends the shift like a stop, and `error` holds it.
"""

from __future__ import annotations

from asyncio import CancelledError
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from msgspec.structs import replace

from millstream.errors import LeaseLost
from millstream.queue.model.message import Message, Reject, Retry
from millstream.record import to_ms
from millstream.worker.effects import (
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
    Verdict,
)
from millstream.worker.endurance import Endurance, may_pass
from millstream.worker.leases import Leases, claim_of
from millstream.worker.reason import reason_of
from millstream.worker.stats import WorkerStats

IDLE_WAIT_S = 0.25
"""How long a claim waits for messages while no handler runs, if a stop cannot end the wait."""
LONG_WAIT_S = 5.0
"""How long a claim waits for messages while no handler runs, if a stop ends the wait. An idle worker
of jobs then takes 0.7 % of a core less than with the short wait (2026-11)."""
LOOK_S = 0.05
"""How often to look for new messages while some handlers run and others are free."""
ACK_S = 0.1
"""How long an acknowledgement may wait for the next claim, if more was claimed than can run."""
PACE_S = 0.05
"""The most work, in seconds, that a worker which adapts its batches claims at once."""
STOPPED = "given back by a worker that stopped"
CANCELLED = "given back by a worker that was cancelled"


class TimeLimitExceeded(Exception):
    """A handler took longer than the worker's time limit."""


NOTHING = WorkerStats()


@dataclass(frozen=True, slots=True, kw_only=True)
class ShiftPlan:
    """The parameters of a shift."""

    concurrency: int
    batch: int
    lease_s: float
    attempts_max: int
    overdue_s: float | None = None
    """How long a handler may take that cannot be cancelled; a coroutine has a timeout of its own.
    """
    can_cancel: bool = False
    """Whether an abandoned handler ends soon, and reports its end."""
    drain: bool = False
    wait_s: float = IDLE_WAIT_S
    """How long a claim waits for messages while no handler runs."""
    adapts: bool = False
    """Whether `batch` is the most that a claim takes: claims grow while batches are short work."""


class Shift:
    """A run of a worker, as a state machine."""

    def __init__(self, plan: ShiftPlan, before: WorkerStats = NOTHING) -> None:
        self._plan = plan
        self.leases = Leases(plan.lease_s)
        self._counts = before
        self.error: Exception | None = None
        """The error that ended the shift; None after a stop."""
        self._now_s = float("-inf")
        self._waiting: deque[Message] = deque()
        self._running: dict[int, tuple[Message, float]] = {}
        """The running messages by `id`, and when each was begun."""
        self._finished: list[Message] = []
        self._results: dict[int, bytes] = {}
        """The results of finished messages, by claim id."""
        self._batch = 1 if plan.adapts else plan.batch
        self._finished_s = 0.0
        self._endings: deque[Finish] = deque()
        self._complaints: deque[Complain] = deque()
        self._look_s = self._now_s
        self._is_stopping = self._is_cancelled = self._is_over = False
        self._to_abandon = False
        self._is_late = self._is_idle = self._was_full = False
        self._has_news = False
        """Whether a handler has ended since the last claim was sent."""
        self._may_wait = not plan.drain
        """Whether a claim may wait for messages; a drain first asks whether the queue is empty."""
        self._asked: Claim | Finish | Look | None = None
        self._asked_s = 0.0
        self._again: Finish | Look | None = None
        self._again_s = 0.0
        self._endurance = Endurance()

    @property
    def stats(self) -> WorkerStats:
        """Return the counters; safe for all threads, because counters are replaced atomically."""
        return replace(self._counts, running=len(self._running))

    # Decisions.

    def next(self, now_s: float) -> Effect:
        """Return the next effect. Time does not go back: an earlier time counts as the last one."""
        self._time(now_s)
        if self._is_over:
            return Over()
        if self._again is not None:
            return self._repeat(self._again)
        if abandoned := self._cancelled() or self._overdue():
            return Abandon(abandoned)
        if self._endings:
            return self._ask(self._endings.popleft())
        if self._complaints:
            return self._complaints.popleft()
        if messages := self._begun():
            return Begin(messages)
        return self._wind_down() if self._is_stopping else self._work()

    def _work(self) -> Effect:
        is_free = len(self._running) < self._plan.concurrency
        if self._is_late:
            return self._acknowledge()
        if self._is_idle and self._plan.drain:
            return self._ask(Look())
        if is_free and self._now_s >= self._look_s:
            return self._claim()
        if self._finished and self._now_s >= self._finished_s + ACK_S:
            return self._acknowledge()
        times = [self._look_s] if is_free else []
        if self._finished:
            times.append(self._finished_s + ACK_S)
        return self._wait(times)

    def _wind_down(self) -> Effect:
        if returned := self._given_back():
            reason = CANCELLED if self._is_cancelled else STOPPED
            return self._ask(Finish(returned, "nack", reason, 0, is_return=True))
        if self._finished:
            return self._acknowledge()
        if self._running or self._waiting:
            return self._wait([])
        self._is_over = True
        return Over()

    def _given_back(self) -> list[Message]:
        """Remove and return waiting messages that may go back to the queue.

        The others begin when a handler is free.
        """
        returned = [m for m in self._waiting if self._may_return(m)]
        if returned:
            self._waiting = deque(m for m in self._waiting if not self._may_return(m))
        return sorted(returned, key=claim_of)

    def _may_return(self, message: Message) -> bool:
        return self._is_cancelled or not self._is_last(message)

    def _claim(self) -> Claim:
        wait_s = None
        if self._may_wait and not self._running and not self._finished:
            wait_s = min(self._plan.wait_s, self._plan.lease_s / 4)  # acknowledgements do not wait
        free = self._plan.concurrency - len(self._running)
        if self._plan.adapts:
            self._adapt()
        claim = Claim(max(free, self._batch), wait_s, *self._take_finished())
        self._asked, self._asked_s = claim, self._now_s
        self._has_news = False
        return claim

    def _take_finished(self) -> tuple[list[Message], dict[int, bytes]]:
        """Remove and return the finished messages, in the order of their claims, and their results."""
        finished, self._finished = sorted(self._finished, key=claim_of), []
        results, self._results = self._results, {}
        return finished, results

    def _adapt(self) -> None:
        """Double the batch after a full and short batch; halve the batch after a long batch.

        A worker holds little more than `PACE_S` of work and leaves the rest to other workers.
        """
        took_s = self._now_s - self._asked_s
        if took_s > PACE_S:
            self._batch = max(1, self._batch // 2)
        elif self._was_full:
            self._batch = min(self._plan.batch, 2 * max(self._batch, self._plan.concurrency))

    def _acknowledge(self) -> Effect:
        self._is_late = False
        acked, results = self._take_finished()
        return self._ask(Finish(acked, "ack", results=results))

    def _ask(self, effect: Finish | Look) -> Effect:
        self._asked = effect
        return effect

    def _repeat(self, effect: Finish | Look) -> Effect:
        if self._now_s < self._again_s:
            return Idle(self._again_s)
        self._again = None
        return self._ask(effect)

    def _wait(self, times: list[float]) -> Idle:
        if self._plan.overdue_s is not None and self._running:
            times.append(self._first_s() + self._plan.overdue_s)
        return Idle(min(times, default=None))

    def _first_s(self) -> float:
        """Return when the oldest running handler was begun; `_running` keeps that order."""
        return next(iter(self._running.values()))[1]

    def _begun(self) -> list[Message]:
        messages: list[Message] = []
        while (message := self._begun_next()) is not None:
            messages.append(message)
        return messages

    def _begun_next(self) -> Message | None:
        if not self._waiting or len(self._running) >= self._plan.concurrency:
            return None
        if self._is_stopping and any(map(self._may_return, self._waiting)):
            return None
        message = self._waiting.popleft()
        self._running[id(message)] = message, self._now_s
        return message

    def _cancelled(self) -> list[Message]:
        """Return the handlers to cancel, once. A coroutine will report its end."""
        if not self._to_abandon:
            return []
        self._to_abandon = False
        running = [message for message, _ in self._running.values()]
        if not self._plan.can_cancel:
            self._let_go(running)
        return running

    def _overdue(self) -> list[Message]:
        limit_s = self._plan.overdue_s
        if limit_s is None or not self._running or self._now_s < self._first_s() + limit_s:
            return []
        late = [m for m, begun_s in self._running.values() if self._now_s >= begun_s + limit_s]
        self._let_go(late)
        error = TimeLimitExceeded(f"took longer than {limit_s:g} s")
        self._complaints.extend(
            Complain(message, error, "back_when_lease_ends") for message in late
        )
        return late

    def _let_go(self, messages: Sequence[Message]) -> None:
        for message in messages:
            del self._running[id(message)]
        self.leases.drop(messages)
        if messages:
            self._count(lost=len(messages))
            self._look_s = self._now_s

    # Events.

    def claimed(self, messages: Sequence[Message], *, now_s: float) -> None:
        """Note the answer to the claim."""
        self._time(now_s)
        claim = self._asked
        assert isinstance(claim, Claim)
        self._asked = None
        self._was_full = len(messages) >= claim.n
        if claim.acks:
            self._acknowledged(claim.acks)
        self.leases.hold(messages, since_s=self._asked_s)
        self._waiting.extend(messages)
        self._is_idle = not (messages or self._running or self._finished)
        self._may_wait = not self._plan.drain
        if (messages or self._running) and not self._has_news:
            self._look_s = self._now_s + LOOK_S

    def finished(self, lost: Iterable[Message]) -> None:
        """Note that attempts were ended, except those with a lost lease."""
        finish = self._asked
        assert isinstance(finish, Finish)
        self._settled()
        gone = {claim_of(message) for message in lost}
        if finish.how == "ack":
            self._acknowledged(finish.messages, lost=len(gone))
            return
        self.leases.drop(finish.messages)
        held = [m for m in finish.messages if claim_of(m) not in gone]
        failed = sum(finish.how == "fail" or self._is_last(m) for m in held)
        if finish.is_return:
            self._count(failed=failed)
        else:
            self._count(failed=failed, retried=len(held) - failed, lost=len(gone))

    def looked(self, *, is_empty: bool) -> None:
        """Note whether the queue is empty; an empty queue is drained."""
        self._settled()
        self._is_idle = False
        self._may_wait = True
        self._is_over = is_empty

    def failed(self, error: Exception, *, now_s: float) -> None:
        """Note that the last effect failed."""
        self._time(now_s)
        if isinstance(self._asked, Claim):
            # Finished messages are then acknowledged again, which is harmless. Messages that were
            # claimed and never arrived come back when their lease ends.
            self.withdrawn()
            if isinstance(error, LeaseLost):
                self._is_late = True
            elif may_pass(error):
                self._look_s = self._now_s + LOOK_S
            else:
                self.broke(error)
            return
        effect, self._asked = self._asked, None
        assert effect is not None
        if self._endurance.bears(error, is_stopping=self._is_stopping):
            self._again, self._again_s = effect, self._now_s + LOOK_S
        else:
            self.broke(error)

    def withdrawn(self) -> None:
        """Note that the claim was not sent: its acknowledgements wait again."""
        claim, self._asked = self._asked, None
        assert isinstance(claim, Claim)
        self._finished = [*claim.acks, *self._finished]
        self._results = {**claim.results, **self._results}

    def take(self, now_s: float) -> Message | None:
        """Begin the next waiting message on a handler that has ended; None if the handler is to rest."""
        self._time(now_s)
        return None if self._to_abandon else self._begun_next()

    def ended(self, outcomes: Iterable[Handled], *, now_s: float) -> bool:
        """Note that handlers have ended; the outcome of an abandoned message is ignored.

        Returns whether `next` has more to do than before.
        """
        self._time(now_s)
        had_finished = bool(self._finished)
        ended: dict[Verdict, list[Message]] = {}
        done: list[Message] = []
        for outcome in outcomes:
            message, error = outcome.message, outcome.error
            if self._running.pop(id(message), None) is None:
                continue
            if error is not None:
                verdict = outcome.verdict or self._ending(error)
                if outcome.committed:
                    self.leases.drop([message])
                    self._count(failed=1)
                    continue
                ended.setdefault(verdict, []).append(message)
                if not (self._is_cancelled and isinstance(error, CancelledError)):
                    delay_s = verdict.delay_s
                    then = "backoff" if delay_s is None else f"{delay_s:g}s"
                    is_failed = verdict.how == "fail" or self._is_last(message)
                    then = "failed" if is_failed else f"retry_after_{then}"
                    self._complaints.append(Complain(message, error, then))
            elif outcome.committed:
                done.append(message)
            else:
                if not self._finished:
                    self._finished_s = self._now_s
                self._finished.append(message)
                if outcome.result is not None:
                    self._results[message.claim_id] = outcome.result
        if done:
            self._acknowledged(done)
        for verdict, messages in ended.items():
            messages.sort(key=claim_of)
            self._endings.append(
                Finish(
                    messages,
                    verdict.how,
                    verdict.reason,
                    verdict.delay_s,
                    error=verdict.error,
                )
            )
        self._look_s = self._now_s
        self._has_news = True
        return bool(ended) or bool(self._finished) != had_finished

    def stop(self) -> None:
        """Stop claiming; running handlers finish."""
        if not self._is_stopping:
            self._is_stopping, self._is_idle = True, False
            if isinstance(self._again, Look):
                self._again = None

    def cancel(self) -> None:
        """Stop claiming; cancel running handlers, and return all messages."""
        self.stop()
        self._is_cancelled = self._to_abandon = True

    def broke(self, error: Exception) -> None:
        """Note an error that no repeat can mend: the first such error is a stop."""
        self._is_over = self.error is not None
        self.error = self.error or error
        self.stop()

    def _time(self, now_s: float) -> None:
        if now_s > self._now_s:
            self._now_s = now_s

    def _settled(self) -> None:
        self._asked = None
        self._endurance = Endurance()

    def _ending(self, error: BaseException) -> Verdict:
        if self._is_cancelled and isinstance(error, CancelledError):
            return Verdict("nack", CANCELLED, 0)
        if isinstance(error, Reject):
            return Verdict("fail", reason_of(error))
        delay_s = None
        if isinstance(error, Retry) and error.after is not None:
            delay_s = to_ms(error.after) / 1000
        return Verdict("nack", reason_of(error), delay_s)

    def _is_last(self, message: Message) -> bool:
        return message.attempt >= self._plan.attempts_max

    def _acknowledged(self, messages: Sequence[Message], *, lost: int = 0) -> None:
        self.leases.drop(messages)
        self._count(done=len(messages) - lost, lost=lost)

    def _count(self, *, done: int = 0, failed: int = 0, retried: int = 0, lost: int = 0) -> None:
        was = self._counts
        self._counts = WorkerStats(
            done=was.done + done,
            failed=was.failed + failed,
            retried=was.retried + retried,
            lost=was.lost + lost,
        )
