"""The transactor: one writer, and one sync for everybody who waits.

When nobody else waits, a caller commits on its own thread. Under load whoever is first leads:
it runs and commits the operations of all who wait, and meanwhile the next group gathers. Callers
without a thread to lend (coroutines) are led for by a thread of the transactor's own.

Those who were answered together mostly come again together. Where their operations are faster
together (`Joint`, in `group`), the first does not lead at once: it waits for the others, and whoever
completes their number leads.

The mutex guards the state; it is held from the first operation of a group until the commit is
durable. An answer is given only after that.
"""

from __future__ import annotations

import threading
from _thread import allocate_lock
from collections import deque
from itertools import islice
from time import sleep
from typing import Any, Protocol, TypeVar

from millstream.clock import Clock
from millstream.errors import MillstreamError, OutcomeUnknown, Overloaded, WriteFailed
from millstream.store.ticket import Ticket, finish
from millstream.store.transaction import Operation

T = TypeVar("T")

GATHER_SHARE = 0.4
"""How much of a commit's time is waited for those whom that commit answered, once they are awake."""

ORPHANED_S = 1.0
"""How long somebody waits before looking whether the leader was interrupted and is gone."""

GATHER_S_MAX = 0.002
GATHER_STEP_S = 0.00005


_NOBODY: deque[Any] = deque()


class Committer(Protocol):
    """What runs a group: the store."""

    settled: list[Ticket[Any]] | None
    """The last group whose tickets all have their result or their error."""

    def commit_group(self, group: list[Ticket[Any]]) -> None:
        """Run and commit; every ticket then has its result or its error.

        Raises nothing but what has interrupted its thread, and then the group is settled too.
        """


class Transactor:
    """Gathers tickets and leads them, group by group, through the committer."""

    def __init__(
        self, committer: Committer, clock: Clock, *, waiting_max: int, group_max: int
    ) -> None:
        self.turn = threading.Lock()
        self._committer = committer
        self._clock = clock
        self._waiting_max = waiting_max
        self._group_max = group_max
        self._gate = allocate_lock()
        self._queue: deque[Ticket[Any]] = deque()
        self._taken: deque[Ticket[Any]] = _NOBODY
        self._leading = False
        """Whether somebody leads, or waits for the others in order to lead."""
        self._leader: Ticket[Any] | None = None
        """Whose caller leads, if one does: it has to pass the lead on, also if it is interrupted."""
        self._first: Ticket[Any] | None = None
        """Of those who wait for the others."""
        self._answered: Ticket[Any] | None = None
        """The last of those who were answered by the last commit, and wake one after the other."""
        self._closed: MillstreamError | None = None
        self._stopping = False
        self._thread: threading.Thread | None = None
        self._thread_turn = threading.Semaphore(0)
        self._crowd = 1
        self._commit_s = 0.0

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
        return ticket.answer()

    def _run(self, ticket: Ticket[Any]) -> None:
        with self._gate:
            if self._closed is not None or len(self._queue) >= self._waiting_max:
                self._admit(1)
            alone = self._crowd <= 1 and not (self._leading or self._queue)
            if alone:
                self._leader = ticket
                lead = self._leading = True
            else:
                self._queue.append(ticket)
                waits = ticket.joint or self._first is not None
                lead = self._completes() if waits else not self._leading
                if not lead:
                    ticket.prepare_to_wait()
                    if not self._leading:
                        self._first = ticket
                self._leading = True
        if alone:
            self._commit_alone(ticket)
        elif not lead:
            lead = self._await(ticket)
        while not ticket.done:
            if lead:
                self._lead(ticket)
            else:
                lead = self._await(ticket)

    def _interrupted(self, ticket: Ticket[Any]) -> None:
        """Pass the lead on, should the interrupt have hit the code that does."""
        with self._gate:
            if ticket in self._queue and not ticket.done:
                self._queue.remove(ticket)
        if self._leader is ticket:
            self._pass_on(1)

    def _completes(self) -> bool:
        """Whether all are there who are waited for, and nobody leads: then the caller is to lead."""
        if (self._leading and self._first is None) or len(self._queue) < self._crowd:
            return False
        self._first = None
        return True

    def _commit_alone(self, ticket: Ticket[Any]) -> None:
        """Commit for a caller beside whom nobody waits, and pass the lead on; also if interrupted."""
        try:
            with self.turn:
                if self._closed is None:
                    self._committer.commit_group([ticket])
                else:  # since its turn began
                    ticket.error = fresh(self._closed)
            ticket.done = True
        finally:
            self._pass_on(1)

    def _await(self, ticket: Ticket[Any]) -> bool:
        """Wait for the answer; True if the caller is to lead.

        A leader that was interrupted before it could pass the lead on leaves nobody committing: who
        has waited for long and finds the mutex free leads in its place.
        """
        try:
            while not (ticket.done or ticket.lead):
                if self._first is ticket:
                    if self._await_others(ticket):
                        return True
                elif not ticket.wait(ORPHANED_S) and self.turn.acquire(blocking=False):
                    self.turn.release()
                    ticket.lead = True
        except BaseException:
            self._abandon(ticket)
            raise
        finally:
            ticket.awake = True
            heir = self._first if self._answered is ticket else ticket.successor
            if heir is not None:
                heir.wake()
        return ticket.lead and not ticket.done

    def _await_others(self, ticket: Ticket[Any]) -> bool:
        """Wait, as the first, for those who mostly come together; True if it is time to lead.

        While some of them still sleep, there is no hurry: the last of them wakes the first.
        """
        asleep = self._answered is not None and not self._answered.awake
        patience_s = GATHER_S_MAX if asleep else self._patience_s()
        if ticket.wait(patience_s):
            return False
        with self._gate:
            if self._first is ticket:
                self._first, ticket.lead = None, True
        return ticket.lead

    def _patience_s(self) -> float:
        return min(max(0.0, self._commit_s * GATHER_SHARE), GATHER_S_MAX)

    def submit(self, tickets: list[Ticket[Any]]) -> None:
        """Hand in tickets that call back; returns at once."""
        with self._gate:
            self._admit(len(tickets))
            self._queue.extend(tickets)
            first = self._first
            if first is not None and self._completes():
                first.lead = True
                first.wake()
            if self._leading:
                return
            self._leading = True
        self._use_thread()

    def refuse(self, reason: MillstreamError) -> None:
        """Refuse what comes from now on, and fail what still waits."""
        with self._gate:
            self._closed = reason
            if self._first is not None:
                self._leading, self._first = False, None
            waiting = list(self._queue)
            self._queue.clear()
            for ticket in waiting:
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
        if len(self._queue) + count > self._waiting_max:
            raise Overloaded(
                f"{len(self._queue)} operations are waiting already", waiting=len(self._queue)
            )

    def _lead(self, own: Ticket[Any] | None = None) -> None:
        """Commit for all who wait, answer them, and pass the lead on; also when interrupted."""
        group: list[Ticket[Any]] = []
        self._leader = own
        try:
            with self.turn:
                self._taken = _NOBODY
                try:
                    group = self._gather(patient=own is None or not own.joint)
                except BaseException:
                    group = list(self._taken)
                    raise
                began_s = self._clock.seconds()
                if group:
                    self._committer.commit_group(group)
                self._commit_s = self._clock.seconds() - began_s
        except BaseException:
            if self._committer.settled is not group:
                left, group = group, []
                self._put_back(left)
            self._withdraw(own)
            raise
        finally:
            try:
                self._answer(group)
            finally:
                self._pass_on(len(group))

    def _answer(self, group: list[Ticket[Any]]) -> None:
        try:
            self._answered = finish(group)
        except BaseException:
            self._answered = finish(group)
            raise

    def _put_back(self, group: list[Ticket[Any]]) -> None:
        """The leader was interrupted before their commit began: another caller leads them."""
        try:
            self._requeue(group)
        except BaseException:
            self._requeue(group)
            raise

    def _requeue(self, group: list[Ticket[Any]]) -> None:
        with self._gate:
            closed = self._closed
            if closed is None:
                waiting = set(map(id, self._queue))
                self._queue.extendleft(one for one in reversed(group) if id(one) not in waiting)
                return
        for ticket in group:
            ticket.error = fresh(closed)
        finish(group)

    def _withdraw(self, ticket: Ticket[Any] | None) -> None:
        """Its caller was interrupted before its turn: nobody waits for it any more."""
        with self._gate:
            if ticket is not None and ticket in self._queue:
                self._queue.remove(ticket)

    def _pass_on(self, answered: int) -> None:
        with self._gate:
            self._crowd = answered + len(self._queue)
            if not self._queue:
                self._leading, self._first, self._leader = False, None, None
                return
            heir = self._queue[0]
            if heir.on_done is None:
                if heir.joint:
                    self._first = heir
                else:
                    heir.lead = True
                self._leader = None
                heir.wake()
                return
        self._leader = None
        self._use_thread()

    def _abandon(self, ticket: Ticket[Any]) -> None:
        """The caller was interrupted while it waited: withdraw it, or lead for the others."""
        with self._gate:
            if self._first is ticket:
                self._first, ticket.lead = None, True
            if not ticket.lead and ticket in self._queue:
                self._queue.remove(ticket)
        if ticket.lead:
            self._lead(ticket)

    def _gather(self, *, patient: bool) -> list[Ticket[Any]]:
        """Take who waits; if many were just answered, give them a moment to come again."""
        if patient and self._crowd > 1:
            for _ in range(int(self._patience_s() / GATHER_STEP_S)):
                if len(self._queue) >= self._crowd:
                    break
                sleep(GATHER_STEP_S)
        rest: deque[Ticket[Any]] = deque()
        with self._gate:
            if len(self._queue) > self._group_max:
                rest = deque(islice(self._queue, self._group_max, None))
                group = deque(islice(self._queue, self._group_max))
            else:
                group = self._queue
            # No call stands between these two: an interrupt finds a ticket in exactly one place.
            self._taken, self._queue = group, rest
        return list(group)

    def _use_thread(self) -> None:
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
    """What the callers of a failed group are told."""
    if isinstance(error, MillstreamError):
        return fresh(error)
    text = f"{type(error).__name__}: {error}"
    if sent or not isinstance(error, Exception):
        return OutcomeUnknown(f"the commit was interrupted by {text}", cause=text)
    return WriteFailed(f"nothing was stored: {text}", cause=text)
