"""The transactor: group commit, with one writer and one sync for many callers.

A caller commits on its own thread if no other caller waits. Under load one caller commits for all: its
thread runs and commits the operations of all waiting callers, while the next group gathers (`gather`
decides which caller commits and which callers wait). Coroutines have no thread to lend. The transactor's
own thread commits for coroutines, or their event loop does while commits are so fast (`Tempo`) that
waking a thread would take longer.

The committing caller holds `turn`, the writer's turn, from the first operation of its group until the
commit is durable. Callers are answered after that. A caller of an interactive transaction (`WriterTurn`)
takes the turn without a group. Interactive transactions and groups alternate, so that neither starves.

A dedicated commit thread for all callers would be simpler, but costs two thread switches per commit: as
much as the sync of a fast disk.

Signal handlers wait while the main thread commits or changes the gather (`interrupts`). A caller that
waits when a signal comes leaves the line, and joins it again if the handler raises nothing.
"""

from __future__ import annotations

import os
import threading
from _thread import allocate_lock, get_ident
from collections import deque
from collections.abc import Callable
from time import sleep
from typing import Any, Protocol, TypeVar

from millstream.clock import Clock
from millstream.engine.process_fork import native_fork
from millstream.errors import MillstreamError, OutcomeUnknown, Overloaded, WriteFailed
from millstream.interrupts import acquire, deferred
from millstream.store.commit.gather import COMMIT_ALONE, WAIT, Effect, Gather, Tempo
from millstream.store.commit.ticket import Ticket, TurnWaiter, finish, held_by_caller
from millstream.store.commit.transaction import Operation

T = TypeVar("T")

GATHER_STEP_S = 0.00005

PACE_STEP_S = 0.002
PACED_MIN = 64
"""A commit that costs a request waits for at most this number of callers."""


class Committer(Protocol):
    """Runs the operations of a group: the store."""

    def commit_group(self, group: list[Ticket[Any]], *, waits: bool = True) -> bool:
        """Run and commit a group, and give every ticket its result or its error.

        Return False and do nothing if a signal comes while another process writes; without `waits`,
        also if the group would have to wait for more than its own commit. Raise only what ends the
        thread (no `Exception`), after every ticket has its error.
        """


class Transactor:
    """The threads around a `Gather`, which commit one group after the other through the committer."""

    def __init__(
        self,
        committer: Committer,
        clock: Clock,
        *,
        waiting_max: int,
        group_max: int,
        turn: threading.Lock | None = None,
        pace_s: float = 0.0,
        recover: Callable[[], None] = lambda: None,
    ) -> None:
        """`recover` is called while operations are refused: it may let them be admitted again."""
        self._pid = os.getpid()
        self._recover = recover
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
        self._answered: Ticket[Any] | None = None
        """Last ticket in the previous group's wake-up chain."""
        self._closed: MillstreamError | None = None
        self._stopping = False
        self._thread: threading.Thread | None = None
        self._thread_turn = threading.Semaphore(0)
        self._tempo = Tempo()
        self._turn_waiters: deque[TurnWaiter] = deque()
        self._holder = 0
        """The thread that holds the turn for an interactive transaction; 0 without such a thread."""

    @property
    def is_fast(self) -> bool:
        """Whether commits are fast enough for an event loop to make light commits itself."""
        return self._tempo.is_fast

    def run(self, operation: Operation[T]) -> T:
        """Run an operation and return when its effect is durable.

        Signal handlers of the caller's thread run after the commit that has begun.
        """
        if self._pid != os.getpid():
            raise native_fork()
        if self._closed is not None:
            self._recover()
        if self._holder:
            self.refuse_holder()
        ticket: Ticket[T] | None = None
        # A second round follows if a signal has ended the wait, and its handler raised nothing.
        while ticket is None or not ticket.done:
            with deferred:
                if ticket is not None and not ticket.has_thread:
                    ticket.wait()  # another caller is committing the operation
                    continue
                ticket = Ticket(operation)
                with self._gate:
                    if self._closed is not None or len(self._gather.waiting) >= self._waiting_max:
                        self._admit(1)
                    effect = self._gather.arrive(ticket)
                    if effect is WAIT:
                        ticket.prepare_to_wait()
                if effect is COMMIT_ALONE:
                    self._commit_alone(ticket)
                else:
                    self._commit_or_wait(ticket, waits=effect is WAIT)
        if ticket.error is not None:
            raise ticket.error
        return ticket.result  # type: ignore[return-value]

    def _commit_or_wait(self, ticket: Ticket[Any], *, waits: bool) -> None:
        """Commit for all callers, or wait for the caller that does; a signal ends the wait."""
        # Call `_await` for a finished ticket as well: the call wakes the next caller of the chain.
        must_commit = not waits or self._await(ticket)
        while must_commit and not ticket.done:
            must_commit = self._commit_for_all(ticket)

    def attempt(self, operation: Operation[T], *, waits: bool) -> Ticket[T] | None:
        """Run an operation as `run` does; return None and do nothing if a commit is in flight.

        Without `waits`, also return None while another process writes.
        """
        ticket = Ticket(operation)
        with deferred:
            with self._gate:
                if self._closed is not None:
                    raise fresh(self._closed)
                if self.turn.locked() or not self._gather.arrive_alone():
                    return None
            self._commit_alone(ticket, waits=waits)
        if ticket.error is not None:
            raise ticket.error
        return ticket if ticket.done else None

    def submit(self, tickets: list[Ticket[Any]], *, light: bool = False) -> None:
        """Submit tickets that call back; return at once, or after the commit of light tickets."""
        with deferred:
            with self._gate:
                self._admit(len(tickets))
                effect = self._gather.arrive_all(tickets)
                if effect is None:
                    return
                self._wake(effect)
            if light and effect.kind == "use thread" and self.is_fast and not self.turn.locked():
                self._commit_for_all(waits=False)
            else:
                self._use_thread(effect)

    # The turn of an interactive transaction.

    def take_turn(self) -> bool:
        """Take the writer's turn without a group; return False if a signal comes during the wait."""
        waiter = None
        with self._gate:
            if self._closed is not None:
                raise fresh(self._closed)
            if len(self._turn_waiters) >= self._waiting_max:
                raise Overloaded(f"{len(self._turn_waiters)} transactions are waiting already")
            if not self._gather.arrive_alone():
                waiter = TurnWaiter()
                self._turn_waiters.append(waiter)
        if waiter is not None and not self._await_turn(waiter):
            return False
        if not (self.turn.acquire(False) or acquire(self.turn)):
            self._pass_on(0)
            return False
        if self._closed is not None:
            self.return_turn()
            raise fresh(self._closed)
        self._holder = get_ident()
        return True

    def return_turn(self) -> None:
        """Return the turn that `take_turn` has taken; for any thread."""
        self._holder = 0
        self.turn.release()
        self._pass_on(0, after_group=False)

    def refuse_holder(self) -> None:
        """Raise if the calling thread would wait for its own interactive transaction."""
        if self._holder == get_ident():
            raise held_by_caller()

    def _await_turn(self, waiter: TurnWaiter) -> bool:
        """Wait until the turn is offered; return False if a signal comes."""
        acquire(waiter.wake)
        with self._gate:
            if not waiter.is_first and waiter in self._turn_waiters:
                self._turn_waiters.remove(waiter)
                return False
        if not waiter.is_first:  # `refuse` has woken the caller
            return False
        if deferred.have_come:
            self._pass_on(0)
            return False
        return True

    def _offer_turn(self) -> None:
        """Wake the first caller that waits for the turn; the caller holds the gate and the phase."""
        waiter = self._turn_waiters.popleft()
        waiter.is_first = True
        waiter.wake.release()

    def refuse(self, reason: MillstreamError) -> None:
        """Refuse new operations, and fail the waiting operations."""
        with deferred, self._gate:
            self._closed = reason
            while self._turn_waiters:
                self._turn_waiters.popleft().wake.release()
            for ticket in self._gather.refuse():
                ticket.error, ticket.done = fresh(reason), True
                if not ticket.commits:
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

    # Committing.

    def _commit_alone(self, ticket: Ticket[Any], *, waits: bool = True) -> None:
        """Commit for one caller, and pass the turn on.

        The ticket stays undone if a signal comes during a wait, or if it would have to wait without
        `waits`.
        """
        try:
            if not (self.turn.acquire(False) or acquire(self.turn)):
                return
            try:
                if self._closed is None:
                    self._gather.began_s = self._clock.seconds()
                    ticket.done = self._committer.commit_group([ticket], waits=waits)
                    if self._pace_s and ticket.done:
                        self._note_pace(1)
                else:  # the store was closed after the caller arrived
                    ticket.error, ticket.done = fresh(self._closed), True
            finally:
                self.turn.release()
        finally:
            self._pass_on(1)

    def _commit_for_all(self, caller: Ticket[Any] | None = None, *, waits: bool = True) -> bool:
        """Commit for all waiting callers, answer the callers, and pass the turn on.

        Return False if nothing was committed: the caller is withdrawn, the others of its group wait
        again. A caller that must not wait leaves them to the transactor's thread.
        """
        group: list[Ticket[Any]] = []
        is_over = False
        try:
            if self.turn.acquire(False) or acquire(self.turn):
                try:
                    if self._pace_s and waits:
                        self._keep_pace()
                    group = self._take(patient=waits and (caller is None or not caller.joint))
                    began_s = self._gather.began_s = self._clock.seconds()
                    is_over = True  # also if the commit raises, and the tickets have the errors
                    if group:
                        is_over = self._committer.commit_group(group, waits=waits)
                    if is_over:
                        self._gather.commit_s = self._clock.seconds() - began_s
                        self._tempo.note(self._gather.commit_s)
                        if self._pace_s:
                            self._note_pace(len(group))
                finally:
                    self.turn.release()
        finally:
            if not is_over:
                self._put_back(group, caller)
                group = []
            try:
                self._answered = finish(group)
            finally:
                self._pass_on(len(group))
        return is_over

    def _take(self, *, patient: bool) -> list[Ticket[Any]]:
        """Take the waiting callers; a patient caller first gives the callers of the last group a moment."""
        gather = self._gather
        steps = int(gather.patience_s(others_sleep=False) / GATHER_STEP_S) if patient else 0
        if steps and not gather.is_complete and gather.taking.pays():
            before = len(gather.waiting)
            for _ in range(steps):
                sleep(GATHER_STEP_S)
                if gather.is_complete:
                    break
            gather.taking.note(came=len(gather.waiting) > before)
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

    def _put_back(self, group: list[Ticket[Any]], caller: Ticket[Any] | None) -> None:
        """Return a group that was not committed to the waiting callers, without the caller that took it."""
        others = [ticket for ticket in group if ticket is not caller]
        with self._gate:
            if caller is not None:
                self._gather.withdraw(caller)
            closed = self._closed
            if closed is None:
                self._gather.put_back(others)
                return
        for ticket in others:
            ticket.error = fresh(closed)
        finish(others)

    def _pass_on(self, answered: int, *, after_group: bool = True) -> None:
        """Let the next caller commit: callers that wait for the turn come after each group."""
        with self._gate:
            if self._turn_waiters and (after_group or not self._gather.waiting):
                self._offer_turn()
                return
            effect = self._gather.committed(answered)
            if effect is None:
                return
            self._wake(effect)
        self._use_thread(effect)

    # Waiting.

    def _await(self, ticket: Ticket[Any]) -> bool:
        """Wait for the answer; return True if the caller must commit.

        A joint caller first naps through the running commit, and is not woken at its end: the
        committing caller has usually submitted again by then, and commits for both. A caller
        whose thread is sent a signal leaves the line.
        """
        gather, rested = self._gather, False
        try:
            while not (ticket.done or ticket.commits):
                if gather.first is ticket:
                    self._await_others(ticket, rested=rested)
                elif not rested and gather.is_only(ticket) and (nap_s := self._nap_s()):
                    ticket.naps = True
                    rested = not ticket.wait(nap_s)
                    ticket.naps = False
                elif not ticket.wait():  # a signal has come
                    self._leave(ticket)
                    break
        finally:
            self._wake_next(ticket)
        return ticket.commits and not ticket.done

    def _wake_next(self, ticket: Ticket[Any]) -> None:
        """Wake the caller behind an answered caller: the next of its group, or the first of the next."""
        ticket.awake = True
        heir = self._gather.first if self._answered is ticket else ticket.successor
        if heir is not None:
            heir.wake()

    def _nap_s(self) -> float:
        return self._gather.nap_s(self._clock.seconds())

    def _await_others(self, ticket: Ticket[Any], *, rested: bool) -> None:
        """Wait as the first caller of a group until the group is complete or the time is up."""
        others_sleep = self._answered is not None and not self._answered.awake
        has_waited = rested and not others_sleep
        if has_waited or not ticket.wait(self._gather.patience_s(others_sleep=others_sleep)):
            with self._gate:
                ticket.commits = self._gather.timeout(ticket).kind == "commit" or ticket.commits

    def _leave(self, ticket: Ticket[Any]) -> None:
        """Withdraw a waiting caller, unless another caller is committing its operation already.

        The caller may be gone when that commit ends. So its ticket calls back, as that of a coroutine
        does, and wakes the next caller.
        """
        with self._gate:
            if ticket.done or ticket.commits:
                return
            if not self._gather.withdraw(ticket):
                ticket.on_done = self._end_wait
                return
            effect = self._gather.left(ticket)
            if effect is None:
                if self._turn_waiters and self._gather.arrive_alone():
                    self._offer_turn()
                return
            self._wake(effect)
        self._use_thread(effect)

    def _end_wait(self, ticket: Ticket[Any]) -> None:
        self._wake_next(ticket)
        ticket.end_wait()

    # Effects of the gather.

    def _wake(self, effect: Effect) -> None:
        """Wake the caller that commits or gathers next; the caller of this method holds the gate."""
        if effect.ticket is not None:
            if effect.kind == "wake to commit":
                effect.ticket.commits = True
            effect.ticket.wake()

    def _use_thread(self, effect: Effect) -> None:
        if effect.kind != "use thread":
            return
        if self._thread is None:
            thread = threading.Thread(target=self._serve, name="millstream-commit", daemon=True)
            thread.start()
            self._thread = thread  # only now: `close` joins the thread that it finds
        self._thread_turn.release()

    def _serve(self) -> None:
        while True:
            self._thread_turn.acquire()
            if self._stopping:
                return
            self._commit_for_all()


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
