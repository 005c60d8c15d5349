"""The transactor: one writer, and one sync for all callers that wait.

A caller beside which no other waits commits on its own thread. Under load one caller leads: it runs
and commits the operations of all callers that wait, and meanwhile the next group gathers (`gather`
decides who leads and who waits). Callers without a thread to lend, which are coroutines, are led for
by a thread of the transactor's own; or by their event loop itself, while commits are so fast (`tempo`)
that waking a thread would take longer, and if there is nothing else to wait for.

`turn` is the writer's turn: the committer holds it from the first operation of its group until the
commit is durable. Callers are answered only after that.
"""

from __future__ import annotations

import threading
from _thread import allocate_lock
from time import sleep
from typing import Any, Protocol, TypeVar

from millstream.clock import Clock
from millstream.errors import MillstreamError, OutcomeUnknown, Overloaded, WriteFailed
from millstream.store.commit.gather import LEAD_ALONE, WAIT, Effect, Gather
from millstream.store.commit.pace import Tempo
from millstream.store.commit.ticket import Ticket, finish
from millstream.store.commit.transaction import Operation

T = TypeVar("T")

ORPHANED_S = 1.0
"""How long a caller waits before it looks whether the committer was interrupted and is gone."""

GATHER_STEP_S = 0.00005

PACE_STEP_S = 0.002
PACED_MIN = 64
"""So many callers are enough for a commit that costs a request: it does not wait for more."""


class Committer(Protocol):
    """What runs a group: the store."""

    settled: list[Ticket[Any]] | None
    """The last group whose tickets all have their result or their error."""

    def commit_group(self, group: list[Ticket[Any]], *, waits: bool = True) -> bool:
        """Run and commit; every ticket then has its result or its error.

        Raises nothing but what has interrupted its thread, and then the group is settled too. Without
        `waits`, nothing is done if more than the commit would have to be waited for: False.
        """


class Transactor:
    """The threads around a `Gather`: they lead groups, one after the other, through the committer."""

    def __init__(
        self,
        committer: Committer,
        clock: Clock,
        *,
        waiting_max: int,
        group_max: int,
        pace_s: float = 0.0,
    ) -> None:
        self.turn = threading.Lock()
        self._committer = committer
        self._clock = clock
        self._waiting_max = waiting_max
        self._group_max = group_max
        self._pace_s = pace_s
        self._paced = 1
        """How many callers a commit that costs a request may wait for."""
        self._ended_s = -pace_s
        """When the last such commit was over."""
        self._gate = allocate_lock()
        """Guards the gather."""
        self._gather: Gather[Ticket[Any]] = Gather()
        self._leader: Ticket[Any] | None = None
        """Whose caller leads, if one does: it has to pass the lead on, also if it is interrupted."""
        self._answered: Ticket[Any] | None = None
        """Last ticket in the previous group's wake-up chain."""
        self._closed: MillstreamError | None = None
        self._stopping = False
        self._thread: threading.Thread | None = None
        self._thread_turn = threading.Semaphore(0)
        self._tempo = Tempo()

    @property
    def is_fast(self) -> bool:
        """Whether commits take so little time that an event loop can make light ones itself."""
        return self._tempo.is_fast

    def run(self, operation: Operation[T]) -> T:
        """Run an operation and return when it is durable.

        An interrupt of the caller's thread is raised once a commit that has begun is over.
        """
        ticket = Ticket(operation)
        try:
            self._run(ticket)
        except BaseException as error:
            if not isinstance(error, MillstreamError):
                self._interrupted(ticket)
            raise
        if ticket.error is not None:
            raise ticket.error
        return ticket.result  # type: ignore[return-value]

    def _run(self, ticket: Ticket[Any]) -> None:
        with self._gate:
            if self._closed is not None or len(self._gather.waiting) >= self._waiting_max:
                self._admit(1)
            effect = self._gather.arrive(ticket)
            if effect is LEAD_ALONE:
                self._leader = ticket
            elif effect is WAIT:
                ticket.prepare_to_wait()
        if effect is LEAD_ALONE:
            self._commit_alone(ticket)
            return
        # Also if it is done by now: it wakes its successor.
        lead = effect is not WAIT or self._await(ticket)
        while not ticket.done:
            if lead:
                self._lead(ticket)
            else:
                lead = self._await(ticket)

    def attempt(self, operation: Operation[T], *, waits: bool) -> Ticket[T] | None:
        """Run an operation now, as `run` does; None, and nothing done, if a commit is in flight.

        Without `waits`, also if it is another process's turn to write.
        """
        ticket = Ticket(operation)
        with self._gate:
            if self._closed is not None:
                raise fresh(self._closed)
            if self.turn.locked() or not self._gather.arrive_alone():
                return None
            self._leader = ticket
        try:
            self._commit_alone(ticket, waits=waits)
        except BaseException as error:
            if not isinstance(error, MillstreamError):
                self._interrupted(ticket)
            raise
        if ticket.error is not None:
            raise ticket.error
        return ticket if ticket.done else None

    def submit(self, tickets: list[Ticket[Any]], *, light: bool = False) -> None:
        """Hand in tickets that call back; returns at once, or soon if they are light."""
        with self._gate:
            self._admit(len(tickets))
            effect = self._gather.arrive_all(tickets)
            if effect is None:
                return
            self._wake(effect)
        if light and effect.kind == "use thread" and self.is_fast and not self.turn.locked():
            self._lead(waits=False)
        else:
            self._use_thread(effect)

    def refuse(self, reason: MillstreamError) -> None:
        """Refuse what comes from now on, and fail what still waits."""
        with self._gate:
            self._closed = reason
            for ticket in self._gather.refuse():
                ticket.error, ticket.done = fresh(reason), True
                if not ticket.lead:
                    ticket.wake()

    def admit(self, reason: MillstreamError) -> None:
        """Take operations again, unless they are refused for another reason by now."""
        with self._gate:
            if self._closed is reason:
                self._closed = None

    def close(self, reason: MillstreamError) -> None:
        """Refuse from now on, and end the thread."""
        self.refuse(reason)
        self._stopping = True
        if self._thread is not None:
            self._thread_turn.release()
            if self._thread is not threading.current_thread():
                self._thread.join()

    def _admit(self, count: int) -> None:
        if self._closed is not None:
            raise fresh(self._closed)
        waiting = len(self._gather.waiting)
        if waiting + count > self._waiting_max:
            raise Overloaded(f"{waiting} operations are waiting already", waiting=waiting)

    # Leading.

    def _commit_alone(self, ticket: Ticket[Any], *, waits: bool = True) -> None:
        """Commit for one caller, and pass the lead on; also if it is interrupted.

        Without `waits`, a ticket that has to wait is not done.
        """
        try:
            with self.turn:
                if self._closed is None:
                    self._gather.began_s = self._clock.seconds()
                    if not self._committer.commit_group([ticket], waits=waits):
                        return
                    if self._pace_s:
                        self._note_pace(1)
                else:  # since its turn began
                    ticket.error = fresh(self._closed)
            ticket.done = True
        finally:
            self._pass_on(1)

    def _lead(self, own: Ticket[Any] | None = None, *, waits: bool = True) -> None:
        """Commit for all callers that wait, answer them, pass the lead on; also if interrupted.

        A committer that must not wait leaves a group that has to wait to the transactor's thread.
        """
        group: list[Ticket[Any]] = []
        self._leader = own
        try:
            with self.turn:
                self._gather.taken = ()
                try:
                    if self._pace_s and waits:
                        self._keep_pace()
                    group = self._take(patient=waits and (own is None or not own.joint))
                except BaseException:
                    group = list(self._gather.taken)
                    raise
                began_s = self._gather.began_s = self._clock.seconds()
                if not group or self._committer.commit_group(group, waits=waits):
                    self._gather.commit_s = self._clock.seconds() - began_s
                    self._tempo.note(self._gather.commit_s)
                    if self._pace_s:
                        self._note_pace(len(group))
                else:
                    left, group = group, []
                    self._put_back(left)
        except BaseException:
            if self._committer.settled is not group:
                left, group = group, []
                try:
                    self._put_back(left)
                except BaseException:  # interrupted: a second call does what is left
                    self._put_back(left)
                    raise
            with self._gate:
                if own is not None:
                    self._gather.withdraw(own)
            raise
        finally:
            # No call stands before the `try`: an interrupt at a call's entry would leave the callers
            # of a group that was taken without an answer.
            try:
                self._answer(group)
            except BaseException:  # interrupted: a second call does what is left
                self._answer(group)
                raise
            finally:
                self._pass_on(len(group))

    def _take(self, *, patient: bool) -> list[Ticket[Any]]:
        """Take the callers that wait; a patient committer gives those of the last group a moment."""
        gather = self._gather
        steps = int(gather.patience_s(others_sleep=False) / GATHER_STEP_S) if patient else 0
        if steps and not gather.is_complete and gather.leading.pays():
            before = len(gather.waiting)
            for _ in range(steps):
                sleep(GATHER_STEP_S)
                if gather.is_complete:
                    break
            gather.leading.note(came=len(gather.waiting) > before)
        with self._gate:
            return gather.take(self._group_max)

    def _keep_pace(self) -> None:
        """Where each commit costs a request: let callers that come one by one share it.

        Callers that only wait for each other's commit are all here by now, and do not wait.
        """
        gather = self._gather
        while len(gather.waiting) < self._paced and self._closed is None:
            if self._clock.seconds() - self._ended_s >= self._pace_s:
                return
            sleep(PACE_STEP_S)

    def _note_pace(self, answered: int) -> None:
        """A commit is over, and no caller knows yet: those that wait came by themselves meanwhile."""
        self._paced = min(PACED_MIN, answered + len(self._gather.waiting))
        self._ended_s = self._clock.seconds()

    def _answer(self, group: list[Ticket[Any]]) -> None:
        self._answered = finish(group)

    def _put_back(self, group: list[Ticket[Any]]) -> None:
        """The committer was interrupted before the commit of its group began: another leads it."""
        with self._gate:
            closed = self._closed
            if closed is None:
                self._gather.put_back(group)
                return
        for ticket in group:
            ticket.error = fresh(closed)
        finish(group)

    def _pass_on(self, answered: int) -> None:
        with self._gate:
            effect = self._gather.committed(answered)
            self._leader = None
            if effect is None:
                return
            self._wake(effect)
        self._use_thread(effect)

    # Waiting.

    def _await(self, ticket: Ticket[Any]) -> bool:
        """Wait for the answer; True if the caller is to lead.

        A caller that batches well first sleeps through the running commit, and is not woken when that
        is over: its committer has mostly come again by then, and leads for both. A committer that was
        interrupted before it could pass the lead on leaves none: a caller that has waited for long
        and finds the turn free leads in its place.
        """
        gather, rested = self._gather, False
        try:
            while not (ticket.done or ticket.lead):
                if gather.first is ticket:
                    self._await_others(ticket, rested=rested)
                elif not rested and gather.is_only(ticket) and (nap_s := self._nap_s()):
                    ticket.naps = True
                    rested = not ticket.wait(nap_s)
                    ticket.naps = False
                elif not ticket.wait(ORPHANED_S) and self.turn.acquire(blocking=False):
                    self.turn.release()
                    ticket.lead = True
        except BaseException:
            self._abandon(ticket)
            raise
        finally:
            ticket.awake = True
            heir = self._gather.first if self._answered is ticket else ticket.successor
            if heir is not None:
                heir.wake()
        return ticket.lead and not ticket.done

    def _nap_s(self) -> float:
        return self._gather.nap_s(self._clock.seconds())

    def _await_others(self, ticket: Ticket[Any], *, rested: bool) -> None:
        """Wait, as the first caller of a group, for the others; the last that wakes, wakes it."""
        others_sleep = self._answered is not None and not self._answered.awake
        has_waited = rested and not others_sleep
        if has_waited or not ticket.wait(self._gather.patience_s(others_sleep=others_sleep)):
            with self._gate:
                ticket.lead = self._gather.timeout(ticket).kind == "lead" or ticket.lead

    def _abandon(self, ticket: Ticket[Any]) -> None:
        """The caller was interrupted while it waited: withdraw it, or lead for the others."""
        with self._gate:
            if not ticket.lead:
                ticket.lead = self._gather.interrupted(ticket) is not None
        if ticket.lead:
            self._lead(ticket)

    def _interrupted(self, ticket: Ticket[Any]) -> None:
        """Pass the lead on, should the interrupt have hit the code that does."""
        with self._gate:
            if not ticket.done:
                self._gather.withdraw(ticket)
        if self._leader is ticket:
            self._pass_on(1)

    # What the gather asks for.

    def _wake(self, effect: Effect) -> None:
        """Wake the caller that leads or gathers next; called under the gate."""
        if effect.ticket is not None:
            if effect.kind == "wake to lead":
                effect.ticket.lead = True
            effect.ticket.wake()

    def _use_thread(self, effect: Effect) -> None:
        if effect.kind != "use thread":
            return
        if self._thread is None:
            self._thread = threading.Thread(
                target=self._serve, name="millstream-commit", daemon=True
            )
            self._thread.start()
        self._thread_turn.release()

    def _serve(self) -> None:
        while True:
            self._thread_turn.acquire()
            if self._stopping:
                return
            self._lead()


def fresh(error: MillstreamError) -> MillstreamError:
    """A copy to raise: one exception object must not be raised on several threads."""
    return type(error)(error.message, **error.data)


def told(error: BaseException, *, sent: bool) -> MillstreamError:
    """The error that the callers of a failed group get."""
    if isinstance(error, MillstreamError):
        return fresh(error)
    text = f"{type(error).__name__}: {error}"
    if sent or not isinstance(error, Exception):
        return OutcomeUnknown(f"the commit was interrupted by {text}", cause=text)
    return WriteFailed(f"nothing was stored: {text}", cause=text)
