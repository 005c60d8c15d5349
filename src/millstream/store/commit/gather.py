"""The gather of group commit: decides which callers commit, wait and wake.

`Gather` is a state machine without threads, locks or clocks. The transactor calls it under its gate and
carries out the returned effect. Callers released by one commit usually submit again at about the same
time. Therefore the first caller of joint operations delays the commit, and the caller that completes
the expected number commits.

The alternative is a fixed delay before each commit (as `commit_delay` of PostgreSQL). A fixed delay
slows a single caller down, and has to be tuned for each disk. The machine instead waits only for callers
that it expects, for a share of the last commit's time, and stops waiting when that was in vain.

    phase       event                                next        effect
    idle        arrive, none expected beside it      committing  the caller commits, alone
    idle        arrive, joint, more are expected     gathering   the caller is first, and waits a moment
                (unless the last group were two callers of different kinds: they would gain nothing)
    idle        arrive                               committing  the caller commits
    idle        arrive_all (coroutines)              committing  the transactor's thread commits
    idle        arrive_alone                         committing  the caller commits, alone
    other       arrive_alone                         unchanged   no effect; the operation does not run
    gathering   arrive, completes the number         committing  the caller commits
    gathering   arrive                               gathering   the caller waits
    gathering   arrive_all, completes the number     committing  wake the first: it commits
    gathering   arrive_all                           gathering   none
    gathering   timeout of the first                 committing  the first commits
    gathering   left: the first                      as after committed(0)
    committing  arrive, arrive_all                   committing  the caller waits; none
    committing  committed(n), none waits             idle        none
    committing  committed(n), a joint caller waits   gathering   wake it: it is first
    committing  committed(n), a joint caller naps    gathering   none: it wakes by itself, and is first
    committing  committed(n), a caller waits         committing  wake it: it commits
    committing  committed(n), a coroutine waits      committing  the transactor's thread commits
    any         left: another waiting caller         unchanged   none
    any         refuse                               idle, unless committing   waiting callers get an error

After `committed(n)` the expected number is `n` and all callers that wait already.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable, Sequence
from itertools import islice
from typing import Any, Generic, Literal, NamedTuple, Protocol, TypeVar

GATHER_SHARE = 0.4
"""The share of the last commit's time for which the first caller waits, once the others are awake."""

GATHER_S_MAX = 0.002
"""The longest wait of a first caller."""

NAP_S_MAX = 0.02
"""A caller naps only if the running commit ends within this time."""

VAIN_MAX = 4
"""Callers stop waiting after this number of waits in a row that brought no other caller."""

RETRY = 16
"""Every nth caller waits again, to find out whether waiting pays by now."""

Phase = Literal["idle", "gathering", "committing"]


class Waiter(Protocol):
    """A caller's ticket."""

    @property
    def joint(self) -> bool:
        """Whether the operation can run together with others of its kind."""

    @property
    def joins(self) -> Hashable:
        """Joint operations with equal values can run together; None if the operation runs alone."""

    @property
    def has_thread(self) -> bool:
        """Whether the caller has a thread to commit with; a coroutine has not."""

    @property
    def naps(self) -> bool:
        """Whether the caller wakes without help, soon after the expected end of the running commit."""


W = TypeVar("W", bound=Waiter)


class Effect(NamedTuple):
    """An instruction for the transactor."""

    kind: Literal[
        "commit", "commit alone", "wait", "wake to commit", "wake to gather", "use thread"
    ]
    ticket: Any = None
    """The ticket to wake."""


COMMIT, COMMIT_ALONE, WAIT = Effect("commit"), Effect("commit alone"), Effect("wait")
USE_THREAD = Effect("use thread")


class Payoff:
    """Decides from the last waits whether waiting for other callers pays.

    Waiting never pays, for example, if a producer submits only after the commit of its consumer.
    """

    __slots__ = ("_asked", "_vain")

    def __init__(self) -> None:
        self._asked = self._vain = 0

    def pays(self) -> bool:
        """Return whether the next caller should wait."""
        self._asked += 1
        return self._vain < VAIN_MAX or self._asked % RETRY == 0

    def note(self, *, came: bool) -> None:
        """Note whether another caller came during a wait."""
        self._vain = 0 if came else self._vain + 1


class Gather(Generic[W]):
    """The tickets that wait, and the phase."""

    def __init__(self) -> None:
        self.phase: Phase = "idle"
        self.waiting: deque[W] = deque()
        self.first: W | None = None
        """The first caller of the gathering group; None outside of the gathering phase."""
        self.expected = 1
        """The number of expected callers: the last group, and the callers that waited at its end."""
        self.commit_s = 0.0
        """The duration of the last commit."""
        self.began_s = 0.0
        """The start of the last commit."""
        self.taking = Payoff()
        """For committing callers whose own operation is not joint."""
        self._are_alike = True
        """False if the last group had two callers whose operations could not run together."""
        self._joining = Payoff()
        """For first callers, whose operation is joint."""

    @property
    def is_complete(self) -> bool:
        """Whether all expected callers wait."""
        return len(self.waiting) >= self.expected

    def patience_s(self, *, others_sleep: bool) -> float:
        """Return how long the first caller waits; longer while callers of the last group still sleep."""
        if others_sleep:
            return GATHER_S_MAX
        return min(max(0.0, self.commit_s * GATHER_SHARE), GATHER_S_MAX)

    def is_only(self, ticket: W) -> bool:
        """Return whether a joint caller is the only waiting caller, and so may nap."""
        return len(self.waiting) == 1 and ticket.joint

    def nap_s(self, now_s: float) -> float:
        """Return how long a caller naps: through the running commit and, if that is short, the next.

        Returns 0 if the commit should be over by now, or if the last naps were in vain.
        """
        # The committing caller usually submits again before the nap ends, and commits for the napping
        # caller too. A caller that is woken earlier only falls asleep again, and takes the interpreter
        # from the committing caller: 6.2 thread switches for each message from one producer to one
        # consumer, 4.6 with naps (2026-11).
        left_s = self.began_s + self.commit_s - now_s
        if not 0 < left_s <= NAP_S_MAX or not self._joining.pays():
            return 0.0
        return left_s + self.patience_s(others_sleep=False) + min(self.commit_s, GATHER_S_MAX)

    def arrive(self, ticket: W) -> Effect:
        """Handle a caller that submits an operation; a caller that commits alone is not added to `waiting`."""
        if self.phase == "idle" and self.expected <= 1 and not self.waiting:
            self.phase = "committing"
            return COMMIT_ALONE
        self.waiting.append(ticket)
        if self.phase == "gathering":
            self._joining.note(came=True)
        if self.phase == "committing" or not (self.is_complete or self._leads_at_once(ticket)):
            if self.phase == "idle":
                self.phase, self.first = "gathering", ticket
            return WAIT
        return self._begin_commit()

    def arrive_alone(self) -> bool:
        """Handle a caller whose operation runs at once or never; return True if the caller commits alone."""
        if self.phase != "idle" or self.waiting:
            return False
        self.phase = "committing"
        return True

    def arrive_all(self, tickets: Sequence[W]) -> Effect | None:
        """Handle operations that coroutines submit."""
        self.waiting.extend(tickets)
        if self.phase == "committing":
            return None
        first = self.first
        if first is None:
            self.phase = "committing"
            return USE_THREAD
        if not self.is_complete:
            return None
        self._begin_commit()
        return Effect("wake to commit", first)

    def timeout(self, ticket: W) -> Effect:
        """Handle the end of a caller's patience."""
        if self.first is not ticket:
            return WAIT
        if len(self.waiting) == 1:
            self._joining.note(came=False)
        return self._begin_commit()

    def left(self, ticket: W) -> Effect | None:
        """Handle the leaving of a caller that was withdrawn."""
        return self._pass_on() if self.first is ticket else None

    def committed(self, answered: int) -> Effect | None:
        """Handle the end of a commit that answers `answered` callers."""
        self.expected = answered + len(self.waiting)
        if self.waiting:
            return self._pass_on()
        self.phase, self.first = "idle", None
        return None

    def refuse(self) -> list[W]:
        """Stop gathering, and return the tickets that waited."""
        if self.phase == "gathering":
            self.phase, self.first = "idle", None
        refused = list(self.waiting)
        self.waiting.clear()
        return refused

    def take(self, count_max: int) -> list[W]:
        """Return the next group for the committing caller: at most `count_max` waiting tickets."""
        remaining: deque[W] = deque()
        group = self.waiting
        if len(group) > count_max:
            remaining = deque(islice(group, count_max, None))
            group = deque(islice(group, count_max))
        self.waiting = remaining
        self._are_alike = len(group) != 2 or group[0].joins == group[1].joins
        return list(group)

    def put_back(self, group: Sequence[W]) -> None:
        """Return the tickets of a group that was not committed to `waiting`."""
        self.waiting.extendleft(reversed(group))

    def withdraw(self, ticket: W) -> bool:
        """Remove the ticket of a caller that leaves; return False if a committing caller has taken it."""
        if ticket not in self.waiting:
            return False
        self.waiting.remove(ticket)
        return True

    def _leads_at_once(self, ticket: W) -> bool:
        return self.phase == "idle" and not (
            ticket.joint and self._are_alike and self._joining.pays()
        )

    def _begin_commit(self) -> Effect:
        self.phase, self.first = "committing", None
        return COMMIT

    def _pass_on(self) -> Effect | None:
        """Choose the caller that commits or gathers next."""
        self.first = None
        if not self.waiting:
            self.phase = "idle"
            return None
        self.phase, heir = "committing", self.waiting[0]
        if not heir.has_thread:
            return USE_THREAD
        if not heir.joint:
            return Effect("wake to commit", heir)
        self.phase, self.first = "gathering", heir
        return None if heir.naps else Effect("wake to gather", heir)


KEPT = 16
"""The number of remembered commits; `Tempo` decides only once it has seen this number."""

FAST_S = 0.001
"""The limit for the median of the remembered commits."""

WORST_S = 0.010
"""The limit for the slowest remembered commit, so that an event loop rarely blocks for longer."""


class Tempo:
    """The durations of the last commits: are they short enough for an event loop to commit itself?

    Handing a commit to a thread and the answer back costs two wake-ups, as much as the sync of a fast
    disk. With a slow disk the event loop would block for the length of a sync.
    """

    __slots__ = ("_last_s", "is_fast")

    def __init__(self) -> None:
        self.is_fast = False
        """Whether the last commits were fast and none was slow."""
        self._last_s: deque[float] = deque(maxlen=KEPT)

    def note(self, commit_s: float) -> None:
        """Note the duration of a commit."""
        last_s = self._last_s
        last_s.append(commit_s)
        if len(last_s) == KEPT:
            ordered = sorted(last_s)
            self.is_fast = ordered[KEPT // 2] <= FAST_S and ordered[-1] <= WORST_S
