"""The transactor: group commit, with one writer and one sync for many callers.

A caller commits on its own thread if no other caller waits. Under load one caller leads: its thread
runs and commits the operations of all waiting callers, while the next group gathers (`gather` decides
which caller leads and which callers wait). Coroutines have no thread to lend. The transactor's own
thread leads for coroutines, or their event loop leads while commits are so fast (`Tempo`) that waking a
thread would take longer.

The leader holds `turn`, the writer's turn, from the first operation of its group until the commit is
durable. Callers are answered after that.

A dedicated commit thread for all callers would be simpler, but costs two thread switches per commit: as
much as the sync of a fast disk.
"""

from __future__ import annotations

import threading
from _thread import allocate_lock
from time import sleep
from typing import Any, Protocol, TypeVar

from millstream.clock import Clock
from millstream.errors import MillstreamError, OutcomeUnknown, Overloaded, WriteFailed
from millstream.store.commit.gather import LEAD_ALONE, WAIT, Effect, Gather, Tempo
from millstream.store.commit.ticket import Ticket, finish
from millstream.store.commit.transaction import Operation

T = TypeVar("T")

ORPHANED_S = 1.0
"""A caller checks after this time whether an interrupt has killed the leader of its group."""

GATHER_STEP_S = 0.00005

PACE_STEP_S = 0.002
PACED_MIN = 64
"""A commit that costs a request waits for at most this number of callers."""


class Committer(Protocol):
    """Runs the operations of a group: the store."""

    settled: list[Ticket[Any]] | None
    """The last group in which every ticket has a result or an error."""

    def commit_group(self, group: list[Ticket[Any]], *, waits: bool = True) -> bool:
        """Run and commit a group, and give every ticket its result or its error.

        Raises only an interrupt of the thread, after the group is settled. Without `waits`, returns
        False and does nothing if the group would have to wait for more than its own commit.
        """


class Transactor:
    """The threads around a `Gather`, which lead one group after the other through the committer."""

    def __init__(
        self,
        committer: Committer,
        clock: Clock,
        *,
        waiting_max: int,
        group_max: int,
        turn: threading.Lock | None = None,
        pace_s: float = 0.0,
    ) -> None:
        self.turn = turn or threading.Lock()
        self._committer = committer
        self._clock = clock
        self._waiting_max = waiting_max
        self._group_max = group_max
        self._pace_s = pace_s
        self._paced = 1
        """The number of callers for which a commit that costs a request may wait."""
        self._ended_s = -pace_s
        """The end of the last commit that cost a request."""
        self._gate = allocate_lock()
        """Guards the gather."""
        self._gather: Gather[Ticket[Any]] = Gather()
        self._leader: Ticket[Any] | None = None
        """The ticket of the leading caller, which must pass the lead on even if it is interrupted."""
        self._answered: Ticket[Any] | None = None
        """Last ticket in the previous group's wake-up chain."""
        self._closed: MillstreamError | None = None
        self._stopping = False
        self._thread: threading.Thread | None = None
        self._thread_turn = threading.Semaphore(0)
        self._tempo = Tempo()

    @property
    def is_fast(self) -> bool:
        """Whether commits are fast enough for an event loop to make light commits itself."""
        return self._tempo.is_fast

    def run(self, operation: Operation[T]) -> T:
        """Run an operation and return when its effect is durable.

        An interrupt of the caller's thread is raised after the commit that has begun.
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
        # Call `_await` for a finished ticket as well: the call wakes the next caller of the chain.
        lead = effect is not WAIT or self._await(ticket)
        while not ticket.done:
            if lead:
                self._lead(ticket)
            else:
                lead = self._await(ticket)

    def attempt(self, operation: Operation[T], *, waits: bool) -> Ticket[T] | None:
        """Run an operation as `run` does; return None and do nothing if a commit is in flight.

        Without `waits`, also return None while another process writes.
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
        """Submit tickets that call back; return at once, or after the commit of light tickets."""
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
        """Refuse new operations, and fail the waiting operations."""
        with self._gate:
            self._closed = reason
            for ticket in self._gather.refuse():
                ticket.error, ticket.done = fresh(reason), True
                if not ticket.lead:
                    ticket.wake()

    def admit(self, reason: MillstreamError) -> None:
        """Accept operations again, unless a later call refused them for another reason."""
        with self._gate:
            if self._closed is reason:
                self._closed = None

    def close(self, reason: MillstreamError) -> None:
        """Refuse new operations for good, and end the thread."""
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
        """Commit for one caller, and pass the lead on, even after an interrupt.

        Without `waits`, a ticket that would have to wait stays undone.
        """
        try:
            with self.turn:
                if self._closed is None:
                    self._gather.began_s = self._clock.seconds()
                    if not self._committer.commit_group([ticket], waits=waits):
                        return
                    if self._pace_s:
                        self._note_pace(1)
                else:  # the store was closed after the caller arrived
                    ticket.error = fresh(self._closed)
            ticket.done = True
        finally:
            self._pass_on(1)

    def _lead(self, leader: Ticket[Any] | None = None, *, waits: bool = True) -> None:
        """Commit for all waiting callers, answer the callers, and pass the lead on.

        A leader that must not wait leaves a group that has to wait to the transactor's thread.
        """
        # The nested `try` blocks exist for interrupts (Ctrl-C, a signal handler that raises), which can
        # hit the main thread between any two steps. Three rules hold on every path: a ticket is in
        # exactly one of `waiting` and the group; a group that was not committed goes back to `waiting`;
        # the lead is passed on. A guard that defers signals for the length of a commit could replace
        # these blocks; it would cost two changes of the signal handlers for each commit.
        group: list[Ticket[Any]] = []
        self._leader = leader
        try:
            with self.turn:
                self._gather.group = ()
                try:
                    if self._pace_s and waits:
                        self._keep_pace()
                    group = self._take(patient=waits and (leader is None or not leader.joint))
                except BaseException:
                    group = list(self._gather.group)
                    raise
                began_s = self._gather.began_s = self._clock.seconds()
                if not group or self._committer.commit_group(group, waits=waits):
                    self._gather.commit_s = self._clock.seconds() - began_s
                    self._tempo.note(self._gather.commit_s)
                    if self._pace_s:
                        self._note_pace(len(group))
                else:
                    uncommitted, group = group, []
                    self._put_back(uncommitted)
        except BaseException:
            if self._committer.settled is not group:
                uncommitted, group = group, []
                try:
                    self._put_back(uncommitted)
                except BaseException:  # interrupted again: the second call does the remaining work
                    self._put_back(uncommitted)
                    raise
            with self._gate:
                if leader is not None:
                    self._gather.withdraw(leader)
            raise
        finally:
            # No call stands before this `try`: an interrupt at the entry of a call would leave the
            # callers of the group without an answer.
            try:
                self._answer(group)
            except BaseException:  # interrupted: the second call does the remaining work
                self._answer(group)
                raise
            finally:
                self._pass_on(len(group))

    def _take(self, *, patient: bool) -> list[Ticket[Any]]:
        """Take the waiting callers; a patient leader first gives the callers of the last group a moment."""
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
        """Delay a commit that costs a request, so that more callers can share the request.

        Callers that wait only for the commits of each other have all arrived, and cause no delay.
        """
        gather = self._gather
        while len(gather.waiting) < self._paced and self._closed is None:
            if self._clock.seconds() - self._ended_s >= self._pace_s:
                return
            sleep(PACE_STEP_S)

    def _note_pace(self, answered: int) -> None:
        """Note the callers that arrived during a commit, before the callers of that commit are answered."""
        self._paced = min(PACED_MIN, answered + len(self._gather.waiting))
        self._ended_s = self._clock.seconds()

    def _answer(self, group: list[Ticket[Any]]) -> None:
        self._answered = finish(group)

    def _put_back(self, group: list[Ticket[Any]]) -> None:
        """Return a group that was not committed to the waiting callers, so that another caller leads."""
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
        """Wait for the answer; return True if the caller must lead.

        A joint caller first naps through the running commit, and is not woken at its end: the leader
        has usually submitted again by then, and leads for both. An interrupt can hit a leader before
        the lead is passed on. Therefore a caller that has waited for `ORPHANED_S` and finds the turn
        free leads in place of the lost leader.
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
        """Wait as the first caller of a group until the group is complete or the time is up."""
        others_sleep = self._answered is not None and not self._answered.awake
        has_waited = rested and not others_sleep
        if has_waited or not ticket.wait(self._gather.patience_s(others_sleep=others_sleep)):
            with self._gate:
                ticket.lead = self._gather.timeout(ticket).kind == "lead" or ticket.lead

    def _abandon(self, ticket: Ticket[Any]) -> None:
        """Withdraw a waiting caller after an interrupt, or lead if the group waits for this caller."""
        with self._gate:
            if not ticket.lead:
                ticket.lead = self._gather.interrupted(ticket) is not None
        if ticket.lead:
            self._lead(ticket)

    def _interrupted(self, ticket: Ticket[Any]) -> None:
        """Pass the lead on if an interrupt hit the code that should have done so."""
        with self._gate:
            if not ticket.done:
                self._gather.withdraw(ticket)
        if self._leader is ticket:
            self._pass_on(1)

    # Effects of the gather.

    def _wake(self, effect: Effect) -> None:
        """Wake the caller that leads or gathers next; the caller of this method holds the gate."""
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
    """Copy an error before raising it: two threads must not raise the same exception object."""
    return type(error)(error.message, **error.data)


def error_for_callers(error: BaseException, *, sent: bool) -> MillstreamError:
    """Return the error that the callers of a failed group get."""
    if isinstance(error, MillstreamError):
        return fresh(error)
    text = f"{type(error).__name__}: {error}"
    if sent or not isinstance(error, Exception):
        return OutcomeUnknown(f"the commit was interrupted by {text}", cause=text)
    return WriteFailed(f"nothing was stored: {text}", cause=text)
