"""A shift: decides what a worker does next, from what has happened. It does nothing itself.

No thread, clock, socket or await: a shell tells it all events that have come with the time, asks
`next`, and carries out the one effect that it answers. So each decision can be replayed
(`tests/unit/worker/transcripts/`).

What `next` answers is the first of these that holds:

1. Nothing is left to do, or an error came on top of another: done.
2. A commit failed for a reason that may pass: wait a little, then the same again, for as long as
   `Endurance` lasts.
3. The run was cancelled: abandon the handlers that run.
4. Handlers that cannot be cancelled are over their time: abandon them.
5. Attempts ended badly: finish them, one commit for each kind of ending; then complain of each.
6. Messages wait and a handler is free: begin them.
7. Stopping: give back what was not begun, acknowledge what is finished, wait for what runs.
8. A claim failed because an acknowledgement came late: acknowledge each by itself.
9. A handler is free, and it is time to look: claim, and acknowledge what is finished along with it.
10. To be drained, and the last claim found nothing: ask whether the queue is empty.
11. Acknowledgements have waited for a claim for `ACK_S`: acknowledge them.
12. Else wait, for outcomes or for the next time at which one of these will hold.

A message is acknowledged only after its handler has returned. Giving back counts as an attempt, so
a message with only this one left is worked on instead, unless the run was cancelled. An error that
does not pass ends the shift as a stop does, and `error` says so.
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
)
from millstream.worker.endurance import Endurance, may_pass
from millstream.worker.leases import ClaimKey, Leases, claim_of
from millstream.worker.reason import reason_of
from millstream.worker.stats import WorkerStats

IDLE_WAIT_S = 0.25
"""How long one claim waits for messages while no handler runs; a stop takes no longer to be seen."""
LOOK_S = 0.05
"""How often new messages are looked for while some handlers run and others could."""
ACK_S = 0.1
"""How long an acknowledgement may wait for the next claim, where more was claimed than can run."""
STOPPED = "given back by a worker that stopped"
CANCELLED = "given back by a worker that was cancelled"


class TimeLimitExceeded(Exception):
    """A handler took longer than the worker's time limit."""


NOTHING = WorkerStats()


@dataclass(frozen=True, slots=True, kw_only=True)
class ShiftPlan:
    """What a shift is to do."""

    concurrency: int
    batch: int
    lease_s: float
    attempts_max: int
    overdue_s: float | None = None
    """How long a handler that cannot be cancelled may take; those that can look after themselves."""
    can_cancel: bool = False
    """Whether a handler that is abandoned ends soon, and tells how."""
    drain: bool = False


class Shift:
    """One run of a worker, as a state machine."""

    def __init__(self, plan: ShiftPlan, before: WorkerStats = NOTHING) -> None:
        self._plan = plan
        self.leases = Leases(plan.lease_s)
        self._counts = before
        self.error: Exception | None = None
        """What ended the shift, if it was not a stop."""
        self._now_s = float("-inf")
        self._waiting: deque[Message] = deque()
        self._running: dict[ClaimKey, tuple[Message, float]] = {}
        self._finished: list[Message] = []
        self._finished_s = 0.0
        self._endings: deque[Finish] = deque()
        self._complaints: deque[Complain] = deque()
        self._look_s = self._now_s
        self._is_stopping = self._is_cancelled = self._is_over = False
        self._to_abandon = False
        self._is_late = self._is_idle = False
        self._asked: Claim | Finish | Look | None = None
        self._asked_s = 0.0
        self._again: Finish | Look | None = None
        self._again_s = 0.0
        self._endurance = Endurance()

    @property
    def stats(self) -> WorkerStats:
        """How it goes. Any thread may look: counts are replaced as a whole."""
        return replace(self._counts, running=len(self._running))

    # What comes next.

    def next(self, now_s: float) -> Effect:
        """The one thing to do now. Time does not go back: an earlier time counts as the last one."""
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
        if begun := self._begun():
            return Begin(begun)
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
        if given := self._given_back():
            reason = CANCELLED if self._is_cancelled else STOPPED
            return self._ask(Finish(given, "nack", reason, 0, is_return=True))
        if self._finished:
            return self._acknowledge()
        if self._running or self._waiting:
            return self._wait([])
        self._is_over = True
        return Over()

    def _given_back(self) -> list[Message]:
        """What has not begun and may be given back. What may not is begun when a handler is free."""
        found = [m for m in self._waiting if self._may_return(m)]
        if found:
            self._waiting = deque(m for m in self._waiting if not self._may_return(m))
        return sorted(found, key=claim_of)

    def _may_return(self, message: Message) -> bool:
        return self._is_cancelled or not self._is_last(message)

    def _claim(self) -> Claim:
        wait_s = None
        if not self._running and not self._finished:  # which are to be known as done before a wait
            wait_s = min(IDLE_WAIT_S, self._plan.lease_s / 4)
        free = self._plan.concurrency - len(self._running)
        asked = Claim(max(free, self._plan.batch), wait_s, sorted(self._finished, key=claim_of))
        self._asked, self._asked_s = asked, self._now_s
        return asked

    def _acknowledge(self) -> Effect:
        self._is_late = False
        acked, self._finished = sorted(self._finished, key=claim_of), []
        return self._ask(Finish(acked, "ack"))

    def _ask(self, what: Finish | Look) -> Effect:
        self._asked = what
        return what

    def _repeat(self, what: Finish | Look) -> Effect:
        if self._now_s < self._again_s:
            return Idle(self._again_s)
        self._again = None
        return self._ask(what)

    def _wait(self, times: list[float]) -> Idle:
        if self._plan.overdue_s is not None and self._running:
            times.append(self._first_s() + self._plan.overdue_s)
        return Idle(min(times, default=None))

    def _first_s(self) -> float:
        """When the oldest handler that runs was begun: they are in that order."""
        return next(iter(self._running.values()))[1]

    def _begun(self) -> list[Message]:
        free = self._plan.concurrency - len(self._running)
        if not self._waiting or free <= 0:
            return []
        if self._is_stopping and any(map(self._may_return, self._waiting)):
            return []
        begun = [self._waiting.popleft() for _ in range(min(free, len(self._waiting)))]
        for message in begun:
            self._running[claim_of(message)] = (message, self._now_s)
        return begun

    def _cancelled(self) -> list[Message]:
        """Handlers to be cancelled, once: those that can be will tell how they ended."""
        if not self._to_abandon:
            return []
        self._to_abandon = False
        found = [message for message, _ in self._running.values()]
        if not self._plan.can_cancel:
            self._let_go(found)
        return found

    def _overdue(self) -> list[Message]:
        limit_s = self._plan.overdue_s
        if limit_s is None or not self._running or self._now_s < self._first_s() + limit_s:
            return []
        late = [m for m, begun_s in self._running.values() if self._now_s >= begun_s + limit_s]
        self._let_go(late)
        error = TimeLimitExceeded(f"took longer than {limit_s:g} s")
        self._complaints.extend(Complain(one, error, "back_when_lease_ends") for one in late)
        return late

    def _let_go(self, messages: Sequence[Message]) -> None:
        for message in messages:
            del self._running[claim_of(message)]
        self.leases.drop(messages)
        if messages:
            self._count(lost=len(messages))
            self._look_s = self._now_s

    # What has happened.

    def claimed(self, messages: Sequence[Message], *, now_s: float) -> None:
        """The claim that was asked for was answered."""
        self._time(now_s)
        asked = self._asked
        assert isinstance(asked, Claim)
        self._asked = None
        if asked.acks:
            self._finished = []
            self._acknowledged(asked.acks)
        self.leases.hold(messages, since_s=self._asked_s)
        self._waiting.extend(messages)
        self._is_idle = not (messages or asked.acks or self._running)
        if messages or self._running:
            self._look_s = self._now_s + LOOK_S

    def finished(self, lost: Iterable[Message]) -> None:
        """Attempts were ended, but for those whose lease was lost."""
        asked = self._asked
        assert isinstance(asked, Finish)
        self._settled()
        gone = {claim_of(message) for message in lost}
        if asked.how == "ack":
            self._acknowledged(asked.messages, lost=len(gone))
            return
        self.leases.drop(asked.messages)
        held = [m for m in asked.messages if claim_of(m) not in gone]
        failed = sum(asked.how == "fail" or self._is_last(m) for m in held)
        if asked.is_return:
            self._count(failed=failed)
        else:
            self._count(failed=failed, retried=len(held) - failed, lost=len(gone))

    def looked(self, *, is_empty: bool) -> None:
        """Whether the queue is empty: then it is drained."""
        self._settled()
        self._is_idle = False
        self._is_over = is_empty

    def failed(self, error: Exception, *, now_s: float) -> None:
        """What was asked for last has failed."""
        self._time(now_s)
        asked, self._asked = self._asked, None
        if isinstance(asked, Claim):
            # What was finished is acknowledged again then, which is harmless; what was claimed and
            # never arrived comes back when its lease ends.
            if isinstance(error, LeaseLost):
                self._is_late = True
            elif may_pass(error):
                self._look_s = self._now_s + LOOK_S
            else:
                self.broke(error)
            return
        assert asked is not None
        if self._endurance.bears(error, is_stopping=self._is_stopping):
            self._again, self._again_s = asked, self._now_s + LOOK_S
        else:
            self.broke(error)

    def ended(self, outcomes: Iterable[Handled], *, now_s: float) -> None:
        """Handlers have ended; the outcome of a message that was let go is ignored."""
        self._time(now_s)
        ended: dict[tuple[str, str, float | None], list[Message]] = {}
        done: list[Message] = []
        for outcome in outcomes:
            message, error = outcome.message, outcome.error
            if self._running.pop(claim_of(message), None) is None:
                continue
            if error is not None:
                how, reason, delay_s = self._ending(error)
                ended.setdefault((how, reason, delay_s), []).append(message)
                if not (self._is_cancelled and isinstance(error, CancelledError)):
                    then = "backoff" if delay_s is None else f"{delay_s:g}s"
                    is_failed = how == "fail" or self._is_last(message)
                    then = "failed" if is_failed else f"retry_after_{then}"
                    self._complaints.append(Complain(message, error, then))
            elif outcome.committed:
                done.append(message)
            else:
                if not self._finished:
                    self._finished_s = self._now_s
                self._finished.append(message)
        if done:
            self._acknowledged(done)
        for (how, reason, delay_s), messages in ended.items():
            messages.sort(key=claim_of)
            self._endings.append(Finish(messages, how, reason, delay_s))
        self._look_s = self._now_s

    def stop(self) -> None:
        """Claim no more; what runs is finished."""
        if not self._is_stopping:
            self._is_stopping, self._is_idle = True, False
            if isinstance(self._again, Look):
                self._again = None

    def cancel(self) -> None:
        """Claim no more; what runs is cancelled, and everything is given back."""
        self.stop()
        self._is_cancelled = self._to_abandon = True

    def broke(self, error: Exception) -> None:
        """Something failed that a repeat will not mend: the first time it is a stop."""
        self._is_over = self.error is not None
        self.error = self.error or error
        self.stop()

    def _time(self, now_s: float) -> None:
        if now_s > self._now_s:
            self._now_s = now_s

    def _settled(self) -> None:
        self._asked = None
        self._endurance = Endurance()

    def _ending(self, error: BaseException) -> tuple[str, str, float | None]:
        if self._is_cancelled and isinstance(error, CancelledError):
            return "nack", CANCELLED, 0
        if isinstance(error, Reject):
            return "fail", reason_of(error), None
        delay_s = None
        if isinstance(error, Retry) and error.after is not None:
            delay_s = to_ms(error.after) / 1000
        return "nack", reason_of(error), delay_s

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
