"""The gather of group commit: which caller leads, which callers wait, and which one is woken.

A machine without threads, locks or clocks; the transactor calls it under its gate and does what it
answers. Callers released by one commit usually submit again at about the same time. For operations
that batch well (`joint`) the first caller therefore delays the commit; the caller that completes the
expected number leads it.

    phase       event                                next        effect
    idle        arrive, none expected beside it      committing  the caller leads, alone
    idle        arrive, joint, more are expected     gathering   the caller is first, and waits a moment
                (unless the last group were two callers of different kinds: they would gain nothing)
    idle        arrive                               committing  the caller leads
    idle        arrive_all (coroutines)              committing  the transactor's thread leads
    idle        arrive_alone                         committing  the caller leads, alone
    other       arrive_alone                         the same    none; its operation is not run
    gathering   arrive, completes the number         committing  the caller leads
    gathering   arrive                               gathering   the caller waits
    gathering   arrive_all, completes the number     committing  wake the first: it leads
    gathering   arrive_all                           gathering   none
    gathering   timeout of the first                 committing  the first leads
    gathering   interrupted: the first               committing  the first leads, and ends then
    committing  arrive, arrive_all                   committing  the caller waits; none
    committing  committed(n), none waits             idle        none
    committing  committed(n), a joint caller waits   gathering   wake it: it is first
    committing  committed(n), a joint caller naps    gathering   none: it wakes by itself, and is first
    committing  committed(n), a caller waits         committing  wake it: it leads
    committing  committed(n), a coroutine waits      committing  the transactor's thread leads
    any         interrupted: a caller that waits     the same    none; its operation is not run
    any         refuse                               idle, unless committing   all that wait get an error

After `committed(n)` the expected number is `n` and all callers that wait already.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable, Sequence
from itertools import islice
from typing import Any, Generic, Literal, NamedTuple, Protocol, TypeVar

GATHER_SHARE = 0.4
"""How much of a commit's time the first caller waits for the others, once they are awake."""

GATHER_S_MAX = 0.002
"""The longest that it waits."""

NAP_S_MAX = 0.02
"""The longest time until a commit is over through which a caller sleeps unwoken."""

VAIN_MAX = 4
"""Waits in a row that brought no other caller: then it does not pay to wait."""

RETRY = 16
"""So often it is tried again whether it pays by now."""

Phase = Literal["idle", "gathering", "committing"]


class Waiter(Protocol):
    """A caller's ticket."""

    @property
    def joint(self) -> bool:
        """Whether its operation batches well with others."""

    @property
    def joins(self) -> Hashable:
        """With which others: they have the same; None if it is not joint."""

    @property
    def has_thread(self) -> bool:
        """Whether its caller can lead; a coroutine lends no thread."""

    @property
    def naps(self) -> bool:
        """Whether its caller wakes by itself, soon after the running commit should be over."""


W = TypeVar("W", bound=Waiter)


class Effect(NamedTuple):
    """What the transactor does."""

    kind: Literal["lead", "lead alone", "wait", "wake to lead", "wake to gather", "use thread"]
    ticket: Any = None
    """Which ticket is woken."""


LEAD, LEAD_ALONE, WAIT = Effect("lead"), Effect("lead alone"), Effect("wait")
USE_THREAD = Effect("use thread")


class Payoff:
    """Whether it pays to wait for other callers: the last waits tell.

    A producer that waits for its consumer's acknowledgement does not come before that is committed.
    """

    __slots__ = ("_asked", "_vain")

    def __init__(self) -> None:
        self._asked = self._vain = 0

    def pays(self) -> bool:
        """Whether a caller is to wait now."""
        self._asked += 1
        return self._vain < VAIN_MAX or self._asked % RETRY == 0

    def note(self, *, came: bool) -> None:
        """A wait is over, in which another caller came or did not."""
        self._vain = 0 if came else self._vain + 1


class Gather(Generic[W]):
    """The tickets that wait, and the phase."""

    def __init__(self) -> None:
        self.phase: Phase = "idle"
        self.waiting: deque[W] = deque()
        self.taken: Sequence[W] = ()
        """The group that the committer took last: each ticket is here or in `waiting`."""
        self.first: W | None = None
        """The first caller of the group that is gathered; None unless one is."""
        self.expected = 1
        """How many callers are expected: those of the last group, and those that waited then."""
        self.commit_s = 0.0
        """How long the last commit took."""
        self.began_s = 0.0
        """When the last commit began."""
        self.leading = Payoff()
        """Of committers whose own operation is not joint."""
        self._are_alike = True
        """Whether the callers of the last group could run together, if they were two."""
        self._joining = Payoff()
        """Of first callers whose operation is."""

    @property
    def is_complete(self) -> bool:
        """Whether as many callers wait as are expected."""
        return len(self.waiting) >= self.expected

    def patience_s(self, *, others_sleep: bool) -> float:
        """How long the first waits: while callers of the last group still sleep, there is no hurry."""
        if others_sleep:
            return GATHER_S_MAX
        return min(max(0.0, self.commit_s * GATHER_SHARE), GATHER_S_MAX)

    def is_only(self, ticket: W) -> bool:
        """Whether no other caller waits, and it batches well: it may sleep unwoken."""
        return len(self.waiting) == 1 and ticket.joint

    def nap_s(self, now_s: float) -> float:
        """How long a caller may sleep unwoken: through the running commit and, if it is short, the next.

        The committer of a commit mostly comes again before that, and leads for this caller too: to wake
        it before would only have it sleep again. So would a nap that ends while that commit runs, and
        it would take the interpreter from the committer: 6.2 switches of threads for a message of one
        producer to one consumer, 4.6 without (2026-11). 0 if the commit should be over by now, or if
        the last naps were in vain.
        """
        left_s = self.began_s + self.commit_s - now_s
        if not 0 < left_s <= NAP_S_MAX or not self._joining.pays():
            return 0.0
        return left_s + self.patience_s(others_sleep=False) + min(self.commit_s, GATHER_S_MAX)

    def arrive(self, ticket: W) -> Effect:
        """A caller submits an operation; one that leads alone is not among those that wait."""
        if self.phase == "idle" and self.expected <= 1 and not self.waiting:
            self.phase = "committing"
            return LEAD_ALONE
        self.waiting.append(ticket)
        if self.phase == "gathering":
            self._joining.note(came=True)
        if self.phase == "committing" or not (self.is_complete or self._leads_at_once(ticket)):
            if self.phase == "idle":
                self.phase, self.first = "gathering", ticket
            return WAIT
        return self._lead()

    def arrive_alone(self) -> bool:
        """A caller submits an operation that is run at once or not at all; True if it leads, alone."""
        if self.phase != "idle" or self.waiting:
            return False
        self.phase = "committing"
        return True

    def arrive_all(self, tickets: Sequence[W]) -> Effect | None:
        """Coroutines submit operations."""
        self.waiting.extend(tickets)
        if self.phase == "committing":
            return None
        first = self.first
        if first is None:
            self.phase = "committing"
            return USE_THREAD
        if not self.is_complete:
            return None
        self._lead()
        return Effect("wake to lead", first)

    def timeout(self, ticket: W) -> Effect:
        """A caller has waited for as long as it may."""
        if self.first is not ticket:
            return WAIT
        if len(self.waiting) == 1:
            self._joining.note(came=False)
        return self._lead()

    def interrupted(self, ticket: W) -> Effect | None:
        """A caller's thread was interrupted while it waited."""
        if self.first is ticket:
            return self._lead()
        self.withdraw(ticket)
        return None

    def committed(self, answered: int) -> Effect | None:
        """The committer's commit is over; `answered` callers get their answers."""
        self.expected = answered + len(self.waiting)
        self.first = None
        if not self.waiting:
            self.phase = "idle"
            return None
        self.phase, heir = "committing", self.waiting[0]
        if not heir.has_thread:
            return USE_THREAD
        if not heir.joint:
            return Effect("wake to lead", heir)
        self.phase, self.first = "gathering", heir
        return None if heir.naps else Effect("wake to gather", heir)

    def refuse(self) -> list[W]:
        """No operation is taken any more; answers the tickets that waited."""
        if self.phase == "gathering":
            self.phase, self.first = "idle", None
        refused = list(self.waiting)
        self.waiting.clear()
        return refused

    def take(self, most: int) -> list[W]:
        """The committer takes the callers that wait, at most so many."""
        rest: deque[W] = deque()
        group = self.waiting
        if len(group) > most:
            rest, group = deque(islice(group, most, None)), deque(islice(group, most))
        # No call stands between these two: an interrupt finds a ticket in exactly one place.
        self.taken, self.waiting = group, rest
        self._are_alike = len(group) != 2 or group[0].joins == group[1].joins
        return list(group)

    def put_back(self, group: Sequence[W]) -> None:
        """The committer was interrupted before the commit of its group began: another leads it."""
        waiting = set(map(id, self.waiting))
        self.waiting.extendleft(one for one in reversed(group) if id(one) not in waiting)

    def withdraw(self, ticket: W) -> None:
        """The caller is gone: its operation is not run, unless a committer has taken it."""
        if ticket in self.waiting:
            self.waiting.remove(ticket)

    def _leads_at_once(self, ticket: W) -> bool:
        return self.phase == "idle" and not (
            ticket.joint and self._are_alike and self._joining.pays()
        )

    def _lead(self) -> Effect:
        self.phase, self.first = "committing", None
        return LEAD
