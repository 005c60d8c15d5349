"""Prefetching: a consumer claims messages ahead and sends acknowledgements in groups.

A machine without thread, clock, socket or await. Its shell (`aio/consumer.py`) calls `take` for each
turn of the loop and `ack` for each acknowledgement, asks for steps, carries the steps out, and reports
their outcome. The shell has two parts. The loop takes messages, and asks `next_refill` when no message
is ready. The keeper runs beside the loop and asks `next_chore`.

1. At most `prefetch` messages are held: ready for the loop, or yielded and not settled.
2. A refill asks for all free places, and carries the acknowledgements that wait, in the same commit.
   The loop refills when no message is ready. The keeper refills for a slow loop as soon as half of the
   places are free, if the last refill was filled: the queue then had more messages.
3. A refill waits for messages only if no acknowledgement has to be sent, so that none waits with it.
   A refill that is no commit, as the read of a log, carries none (`acks_apart`).
4. The keeper sends acknowledgements that no refill has carried for `linger_s`.
5. If a refill fails because of a lost lease, the acknowledgements are sent apart, and those with a lost
   lease are counted.
6. An error that may pass is followed by a pause and a repeat. Another error ends the consumer.
7. After `close` every held message is given back once, and later answers of claims too.

Threads call `take`, `ack` and `finish` without a lock, because these methods change containers by
atomic steps of the interpreter: a lock for each message cost a tenth of the loop. A message leaves
`_held` after its ending was noted: an interrupt in between leaves a message in both containers, and
the store ignores the second ending. The shell calls the remaining methods under its lock.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Generic, Literal, Protocol, TypeVar

from millstream.errors import InvalidInput, LeaseLost, RecordsLost
from millstream.limits import MiB
from millstream.queue.model.message import Ending
from millstream.worker.effects import Idle, Over, Renew
from millstream.worker.endurance import Endurance, is_away, may_pass


class Valued(Protocol):
    """A message or a record."""

    @property
    def value(self) -> bytes | None:
        """Return the value."""


T = TypeVar("T", bound=Valued)

PREFETCH_MAX = 10_000
"""The most messages of one claim."""
APART_MAX = 10_000
"""The most acknowledgements that wait, if refills do not carry them."""
REFILL_BYTES = 16 * MiB
"""About so many bytes are asked for at once, by the size of the last message."""
AGAIN_S = 0.05
"""The pause after a failure that may pass."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PrefetchPlan:
    """The parameters of a consumer."""

    prefetch: int
    linger_s: float
    wait_s: float
    """How long a refill waits for messages at most."""
    timeout_s: float | None = None
    """The loop ends after this time without a message; None: only `stop` ends the loop."""
    acks_apart: bool = False
    """Whether acknowledgements are always sent apart from refills, because a refill is no commit."""

    def __post_init__(self) -> None:
        if not 1 <= self.prefetch <= PREFETCH_MAX:
            raise InvalidInput(
                f"prefetch must be from 1 to {PREFETCH_MAX:,} messages, got {self.prefetch:,}"
            )
        if self.linger_s < 0:
            raise InvalidInput(f"linger must be 0 or more seconds, got {self.linger_s:g}")
        if self.timeout_s is not None and self.timeout_s < 0:
            raise InvalidInput(f"timeout must be 0 or more seconds, got {self.timeout_s:g}")

    def limited(self, *, wait_s: float) -> PrefetchPlan:
        """Return the plan with refills that wait no longer than `wait_s`."""
        return replace(self, wait_s=min(wait_s, self.wait_s))


@dataclass(frozen=True, slots=True)
class Refill(Generic[T]):
    """Get up to `n` messages, and send acknowledgements; answered by `refilled` or `failed`."""

    n: int
    wait_s: float | None
    acks: Sequence[T]
    results: Sequence[bytes | None] | None
    """The result of each acknowledged message; None: no message has a result."""
    asked_s: float


@dataclass(frozen=True, slots=True)
class Settle(Generic[T]):
    """End messages in one commit, except those with a lost lease; answered by `settled` or `failed`."""

    messages: Sequence[T]
    how: Ending | Literal["return"]
    """`return` gives messages back that the loop did not get."""
    reason: str = ""
    delay_s: float | None = None
    error: bytes | None = None
    results: Sequence[bytes | None] | None = None


FinishKind = tuple[Ending, str, float | None, bytes | None]
"""How messages end: by nack or fail, the reason, the delay in seconds, the stored error."""


class Prefetching(Generic[T]):
    """The messages that a consumer holds, and the endings that wait to be sent."""

    def __init__(self, plan: PrefetchPlan) -> None:
        self._plan = plan
        self.ready: deque[T] = deque()
        """The messages that the loop takes next; after a disturbance the loop calls `take`."""
        self._held: dict[int, T] = {}
        """The messages that are ready or yielded, by `id`."""
        self._acks: list[T] = []
        self._results: dict[int, bytes] = {}
        """The results of acknowledged messages, by `id` of the message."""
        self._finishes: deque[tuple[FinishKind, T]] = deque()
        """Messages that end otherwise than by an acknowledgement."""
        self._endurance = Endurance()
        self._absence: Exception | None = None
        self.error: Exception | None = None
        """The error that ended the consumer; `stop` sets no error."""
        self.is_stopped = False
        self.is_closed = False
        self.is_disturbed = False
        """Whether the loop was stopped, or a message that is ready has lost its lease."""
        self.lost = 0
        """Endings that came after the lease was lost."""
        self._unreported_lost = 0
        """The part of `lost` that no `flush` has reported."""
        self.loop_rests = False
        """Whether the loop rests until a message is settled: it has no free place."""
        self.keeper_rests = False
        """Whether the keeper rests until a message is settled: no ending waits."""
        self.keeper_sleeps = False
        """Whether the keeper rests without an end, because no lease is held."""
        self._is_waiting = False
        """Whether a refill waits for messages."""
        self._is_late = False
        """Whether acknowledgements have to be sent apart from refills."""
        self._was_full = False
        self._refill_max = plan.prefetch
        """The most messages of a refill: large messages come in small refills."""
        self._was_empty = False
        self._dry_s: float | None = None
        """Since when the loop is without a message."""
        self._noticed_s: float | None = None
        """When the keeper noticed the endings that wait."""
        self._again_s = float("-inf")

    # Called without a lock.

    def take(self) -> T | None:
        """Return the next message for the loop; None if no message is ready, or after a stop."""
        while self.ready and not self.is_stopped:
            message = self.ready.popleft()
            if id(message) in self._held:  # a message with a lost lease is not held
                return message
        return None

    def ack(self, message: T, result: bytes | None = None) -> bool:
        """Note an acknowledgement; True if the shell has to wake its parts.

        Raises `KeyError` for a message that is not held.
        """
        key = id(message)
        if key not in self._held:
            raise KeyError(key)
        return self._note_ack(message, result)

    def ack_held(self, message: T) -> bool:
        """Note an acknowledgement unless the message was ended before, as `ack` does."""
        return id(message) in self._held and self._note_ack(message, None)

    def ack_unknown(self, message: T, result: bytes | None = None) -> bool:
        """Note an acknowledgement of a message that may not be held: the store decides about it."""
        message = self._held_as(message)
        return not self._is_ended(message) and self._note_ack(message, result)

    def _held_as(self, message: T) -> T:
        """Return the held message of which a message is a copy, such as a copy from a process pool."""
        if id(message) in self._held:
            return message
        name = self._name_of(message)
        held = list(self._held.values())  # other threads settle messages meanwhile
        return next((other for other in held if self._name_of(other) == name), message)

    def _name_of(self, message: T) -> object:
        """Return what a message and its copies have in common; records are equal to their copies."""
        return message

    def _is_ended(self, message: T) -> bool:
        """Return whether an ending of a message waits to be sent: the first ending counts."""
        if id(message) in self._held:
            return False
        endings = [*self._acks, *(finished for _, finished in list(self._finishes))]
        return any(ended is message for ended in endings)

    def _note_ack(self, message: T, result: bytes | None) -> bool:
        if result is not None:
            self._results[id(message)] = result
        self._acks.append(message)
        self._held.pop(id(message), None)
        return (self.keeper_rests or self.loop_rests) and self._must_wake()

    def finish(self, message: T, kind: FinishKind) -> bool:
        """Note another ending of a message; True if the shell has to wake its parts."""
        message = self._held_as(message)
        if self._is_ended(message):
            return False
        self._finishes.append((kind, message))
        self._held.pop(id(message), None)
        return (self.keeper_rests or self.loop_rests) and self._must_wake()

    def _must_wake(self) -> bool:
        """Return True for the first ending of a rest: a ring per message took 0.4 of 5 µs (2026-11)."""
        self.keeper_rests = self.loop_rests = False
        return True

    def stop(self) -> None:
        """End the loop before its next message."""
        self.is_stopped = self.is_disturbed = True

    def take_error(self) -> Exception | None:
        """Return the error that ended the loop; after lost records, a later loop goes on behind them."""
        error = self.error
        if isinstance(error, RecordsLost):
            self.error = None
        return error

    # Steps of the loop, of the keeper and of a flush.

    def begin_loop(self) -> None:
        """Let a loop begin: its timeout counts from now, and it asks for messages once at least."""
        self._dry_s = None
        self._was_empty = False

    def next_refill(self, now_s: float) -> Refill[T] | Settle[T] | Idle | Over | None:
        """Return the next step of a loop without a message; None: a message is ready now."""
        if self.error is not None or self.is_stopped:
            return Over()
        if self.ready:
            return None
        if self._dry_s is None:
            self._dry_s = now_s
        if now_s < self._again_s:
            return Idle(self._again_s)
        if self._finishes:
            return self._next_settle()
        if self._must_settle:
            return self._settle_acks()
        self.loop_rests = True  # before the look at the messages, because `ack` has no lock
        is_full = self._free < 1
        timeout_s = self._plan.timeout_s
        left_s = None if timeout_s is None else max(0, self._dry_s + timeout_s - now_s)
        if left_s == 0 and (self._was_empty or is_full):
            return Over()
        if is_full:
            return Idle(None if left_s is None else now_s + left_s)
        self.loop_rests = False
        wait_s = self._plan.wait_s if left_s is None else min(left_s, self._plan.wait_s)
        return self._refill(
            now_s, wait_s=None if self._acks and not self._plan.acks_apart else wait_s
        )

    def next_chore(self, now_s: float) -> Refill[T] | Settle[T] | Renew | Idle | Over:
        """Return the next step of the keeper."""
        if self.is_closed:
            return Over()
        renewal = self._next_renewal(now_s)
        if isinstance(renewal, Renew):
            return renewal
        times = [] if renewal.until_s is None else [renewal.until_s]
        if now_s < self._again_s:
            return Idle(min([*times, self._again_s]))
        self.keeper_rests = True  # before the look at the endings, because `ack` has no lock
        if self._acks or self._finishes:
            self.keeper_rests = False
            if self._noticed_s is None:
                self._noticed_s = now_s
            due_s = self._noticed_s + self._plan.linger_s
            if self._may_refill_early():
                return self._refill(now_s, wait_s=None)
            if now_s >= due_s:
                return self._next_settle()
            times.append(due_s)
        self.keeper_sleeps = not times
        return Idle(min(times, default=None))

    def waiting_endings(self) -> list[Settle[T]]:
        """Remove and return all endings that wait, as steps in order."""
        steps: list[Settle[T]] = []
        while self._finishes or self._acks:
            steps.append(self._next_settle())
        return steps

    @property
    def has_endings(self) -> bool:
        """Whether endings wait to be sent."""
        return bool(self._acks or self._finishes)

    @property
    def absence(self) -> Exception | None:
        """The error of an unreachable server for which endings wait."""
        return self._absence if self.has_endings else None

    def pause_s(self, now_s: float) -> float:
        """Return how long to wait before the next step of a flush."""
        return max(0.0, self._again_s - now_s)

    def take_lost(self) -> int:
        """Return how many messages were lost since the last call."""
        count, self._unreported_lost = self._unreported_lost, 0
        return count

    # Outcomes.

    def refilled(self, refill: Refill[T], messages: Sequence[T]) -> Settle[T] | None:
        """Note the answer to a refill. After `close`, return the step that gives the messages back."""
        self._is_waiting = False
        if self.is_closed:
            return Settle(messages, "return") if messages else None
        self._was_full = len(messages) >= refill.n
        self._was_empty = not messages
        if messages:
            self._refill_max = max(1, REFILL_BYTES // (len(messages[-1].value or b"") + 1))
            self._dry_s = None
            self._held.update(zip(map(id, messages), messages, strict=True))
            self.ready.extend(messages)
        return None

    def settled(self, lost: int) -> None:
        """Note that messages are settled, except for a number of messages with a lost lease."""
        self._endurance = Endurance()
        self._absence = None
        self._count_lost(lost)

    def failed(self, step: Refill[T] | Settle[T], error: Exception, *, now_s: float) -> None:
        """Note that a step failed: acknowledgements wait again, which is harmless if they were stored."""
        if isinstance(step, Refill):
            self._is_waiting = False
            if isinstance(error, LeaseLost):
                self._is_late = True
            elif may_pass(error) or self.is_closed:
                self._again_s = now_s + AGAIN_S
            else:
                self._break(error)
            self._put_back(step.acks, step.results)
        elif self._endurance.bears(error, is_stopping=self.is_closed):
            self._again_s = now_s + AGAIN_S
            self._absence = error if is_away(error) else None
            if step.how == "ack":
                self._put_back(step.messages, step.results)
            elif step.how != "return":
                kind = (step.how, step.reason, step.delay_s, step.error)
                self._finishes.extendleft((kind, message) for message in reversed(step.messages))
        elif step.how != "return":  # unreturned messages come again when their leases end
            self._break(error)

    def close(self) -> None:
        """Begin the end: the loop and the keeper get no further step, and nothing is held from now on."""
        self.is_closed = True
        self.stop()

    def given_back(self) -> tuple[list[T], list[T]]:
        """Remove all held messages, and return the yielded messages and the messages that were ready."""
        ready = {id(message) for message in self.ready}
        held, self._held = self._held, {}
        yielded = [message for key, message in held.items() if key not in ready]
        return yielded, [message for key, message in held.items() if key in ready]

    def _next_renewal(self, now_s: float) -> Renew | Idle:
        """Return the leases to prolong now, or until when no lease is due; here messages have no lease."""
        return Idle()

    # Parts of steps.

    @property
    def _free(self) -> int:
        return self._plan.prefetch - len(self._held)

    def _may_refill_early(self) -> bool:
        prefetch = self._plan.prefetch
        return (
            self._was_full
            and not (self._is_waiting or self._is_late or self.is_stopped or self._finishes)
            and self.error is None
            and 2 * len(self.ready) <= min(prefetch, self._refill_max)
            and prefetch <= 2 * self._free
        )

    @property
    def _must_settle(self) -> bool:
        """Whether acknowledgements have to be sent before the loop gets further messages."""
        if self._plan.acks_apart:
            return len(self._acks) >= APART_MAX
        return self._is_late and bool(self._acks)

    def _refill(self, now_s: float, *, wait_s: float | None) -> Refill[T]:
        n = min(self._free, self._refill_max)
        acks: Sequence[T] = ()
        results = None
        if not self._plan.acks_apart:
            acks, results = self._taken_acks()
        self._is_waiting = wait_s is not None
        return Refill(n, wait_s, acks, results, now_s)

    def _next_settle(self) -> Settle[T]:
        """Return the step for the first ending that waits, together with all endings of its kind."""
        if not self._finishes:
            return self._settle_acks()
        self._noticed_s = None
        kind, first = self._finishes.popleft()
        messages = [first]
        while self._finishes and self._finishes[0][0] == kind:
            messages.append(self._finishes.popleft()[1])
        how, reason, delay_s, error = kind
        return Settle(messages, how, reason, delay_s, error)

    def _settle_acks(self) -> Settle[T]:
        self._is_late = False
        acks, results = self._taken_acks()
        return Settle(acks, "ack", results=results)

    def _taken_acks(self) -> tuple[list[T], list[bytes | None] | None]:
        """Remove and return the acknowledgements that wait, and their results."""
        self._noticed_s = None
        count = len(self._acks)  # other threads may append acknowledgements
        acks = self._acks[:count]
        del self._acks[:count]
        if not self._results:
            return acks, None
        return acks, [self._results.pop(id(message), None) for message in acks]

    def _put_back(self, messages: Sequence[T], results: Sequence[bytes | None] | None) -> None:
        self._acks[:0] = messages
        for message, result in zip(messages, results or (), strict=False):
            if result is not None:
                self._results[id(message)] = result

    def _count_lost(self, count: int) -> None:
        self.lost += count
        self._unreported_lost += count

    def _break(self, error: Exception) -> None:
        if self.error is None:
            self.error = error
