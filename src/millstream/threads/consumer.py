# Generated from src/millstream/aio/consumer.py by `make generate`: change that file, not this one.

"""A consumer: claims messages ahead, yields single messages, and sends acknowledgements in groups.

`Prefetching` decides, and this module carries its steps out: the loop in the thread that iterates,
the keeper as a task beside it. The loop refills by itself when no message is ready, so a fast loop
needs no switch to the keeper. The keeper refills for a slow loop, sends acknowledgements that have
waited long enough, and renews leases.
"""

from __future__ import annotations

import logging
import os
import threading
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from functools import partial
from types import TracebackType
from typing import Generic, Self, TypeVar

from millstream import forked_process
from millstream.command import Session
from millstream.errors import Closed, InvalidInput, LeaseLost, MillstreamError, OutcomeUnknown
from millstream.store.wait_breaker import WaitBreaker
from millstream.streaming.prefetching import Prefetching, Refill, Settle, Valued
from millstream.threads.runtime import Lock
from millstream.threads.worker_runtime import Bell, SideCall, stopped_by, uninterrupted
from millstream.worker.effects import Idle, Over, Renew

T = TypeVar("T", bound=Valued)

_logger = logging.getLogger("millstream.consumer")


class IteratingLoop:
    """A loop over a consumer. A newer loop ends it, and so does a fork in the child process."""

    def __init__(self) -> None:
        self.is_current = True
        forked_process.register(self)

    def after_fork(self) -> None:
        """End the loop: its keeper stayed in the parent."""
        self.is_current = False


class PrefetchingConsumer(ABC, Generic[T]):
    """Yields messages until a stop. It is used in a `with` block, once, by one loop at a time."""

    _machine: Prefetching[T]

    def __init__(self, session: Session, name: str) -> None:
        self.name = name
        self._clock = session.clock
        self._breaker = WaitBreaker()
        """Ends a refill that waits for messages."""
        self._lock = threading.Lock()
        """Guards the machine."""
        self._is_begun = self._is_stopped = self._is_closed = False
        self._signals = ExitStack()

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.name!r})"

    @property
    def lost(self) -> int:
        """Return how many messages were settled after their lease was lost."""
        return self._machine.lost if self._is_begun else 0

    @property
    def stopping(self) -> bool:
        """Whether the consumer was told to stop."""
        return self._is_stopped

    # Beginning and ending.

    def __enter__(self) -> Self:
        if self._is_begun:
            raise InvalidInput("a consumer is used once; make another")
        self._machine = self._begin()
        self._pid = os.getpid()
        self._loop = IteratingLoop()
        self._rested_s = 0.0
        """The end of the last rest of the loop."""
        self._lane = Lock()
        """Held for each commit, but not for a refill that waits."""
        self._news, self._chores = Bell(), Bell()
        """Rung for the loop, and for the keeper."""
        self._is_begun = True
        self._keeper = SideCall(self._keep, name="millstream-consumer")
        self._signals.enter_context(stopped_by(self.stop))
        if self._is_stopped:
            self.stop()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            uninterrupted(partial(self._close, error))
        finally:
            self._signals.close()

    def close(self) -> None:
        """Send what waits, give back all messages that are not settled, and end. As leaving the block."""
        self.__exit__(None, None, None)

    def stop(self) -> None:
        """End the loop before its next message; from any thread, or from a signal's handler."""
        self._is_stopped = True
        if self._is_begun:
            self._machine.stop()
            self._breaker.end()
            self._news.ring()

    # The loop and its messages.

    def __iter__(self) -> Iterator[T]:
        """Yield messages one by one, until a stop or the timeout."""
        machine = self._open_machine()
        with self._lock:
            machine.begin_loop()
        self._loop.is_current = False
        loop = self._loop = IteratingLoop()
        ready, auto_ack = machine.ready, self._auto_ack
        while True:
            if ready and not machine.is_disturbed:
                message = ready.popleft()
            elif (next_message := machine.take()) is not None:
                message = next_message
            elif self._refill(machine):
                continue
            else:
                return
            yield message
            if not loop.is_current:
                raise self._misused()
            if auto_ack and machine.ack_held(message):
                self._wake()

    def flush(self) -> None:
        """Return when all noted endings are durable; `LeaseLost` if leases were lost since the last flush.

        Raises `CannotOpen` if the server stays away for the session's `retry_for`. The endings stay
        noted, and are sent when the server is back.
        """
        machine = self._open_machine()
        self._send_all(machine)
        if (problem := machine.error or machine.absence) is not None:
            raise problem
        with self._lock:
            lost = machine.take_lost()
        if lost:
            raise LeaseLost(
                f"{lost:,} messages of {self.name!r} were settled after their lease was lost: other "
                "consumers may have them",
                queue=self.name,
                count=lost,
            )

    # What a kind of consumer knows.

    _auto_ack: bool

    @abstractmethod
    def _begin(self) -> Prefetching[T]:
        """Look at the source, and return the machine for it."""

    @abstractmethod
    def _claim(self, refill: Refill[T]) -> Sequence[T]:
        """Send the acknowledgements of a refill, and get messages."""

    @abstractmethod
    def _settle(self, settle: Settle[T]) -> int:
        """End messages, and return for how many of them the lease was lost."""

    def _renew(self, renew: Renew) -> None:
        """Prolong leases."""

    def _endings(self, error: BaseException | None) -> list[Settle[T]]:
        """Remove the held messages, and return the steps that end the attempts at them."""
        self._machine.given_back()
        return []

    # Carrying steps out.

    def _open_machine(self) -> Prefetching[T]:
        if not self._is_begun:
            raise InvalidInput("a consumer is used inside of its block: `with ... as consumer`")
        if os.getpid() != self._pid:
            raise self._misused()
        if self._is_closed:
            raise Closed(f"the consumer of {self.name!r} was closed: make another")
        return self._machine

    def _misused(self) -> MillstreamError:
        if os.getpid() != self._pid:
            return Closed(
                f"the consumer of {self.name!r} belongs to the process that forked; make another here"
            )
        return InvalidInput(
            f"another loop began on this consumer of {self.name!r}: one loop at a time gets messages"
        )

    def _wake(self) -> None:
        """Let the loop and the keeper look again."""
        self._news.ring()
        self._chores.ring()

    def _refill(self, machine: Prefetching[T]) -> bool:
        """Do the next step of a loop that has no message; False if the loop ends."""
        self._news.clear()
        with self._lane:
            now_s = max(self._rested_s, self._clock.seconds())
            with self._lock:
                step = machine.next_refill(now_s)
            if isinstance(step, Settle) or (isinstance(step, Refill) and step.wait_s is None):
                self._carry_out(machine, step)
                return True
        if isinstance(step, Refill):
            with self._breaker:
                self._carry_out(machine, step)
        elif isinstance(step, Idle):
            self._rested_s = self._rest(self._news, step.until_s, now_s)
        elif isinstance(step, Over):
            with self._lock:
                error = machine.take_error()
            if error is not None:
                raise error
            return False
        return True

    def _keep(self) -> None:
        """Do the steps of the keeper until the consumer is closed."""
        machine, now_s = self._open_machine(), self._clock.seconds()
        while True:
            self._chores.clear()
            with self._lane:
                with self._lock:
                    step = machine.next_chore(now_s)
                if isinstance(step, Refill | Settle):
                    self._carry_out(machine, step)
                    self._news.ring()
            if isinstance(step, Over):
                return
            if isinstance(step, Renew):
                self._renew(step)
            if isinstance(step, Idle):
                now_s = self._rest(self._chores, step.until_s, now_s)
            else:
                now_s = self._clock.seconds()

    def _rest(self, bell: Bell, until_s: float | None, now_s: float) -> float:
        """Wait for a bell, or for a time at most; the time then."""
        if bell.wait(None if until_s is None else max(0, until_s - now_s)):
            return self._clock.seconds()
        return max(until_s or now_s, self._clock.seconds())

    def _carry_out(self, machine: Prefetching[T], step: Refill[T] | Settle[T]) -> None:
        """Do a step, and report its outcome."""
        surplus, lost = None, 0
        try:
            if isinstance(step, Refill):
                messages = self._claim(step)
                with self._lock:
                    surplus = machine.refilled(step, messages)
                    must_wake = machine.keeper_sleeps
                if must_wake:
                    self._chores.ring()
            else:
                lost = self._settle(step)
                with self._lock:
                    machine.settled(lost)
        except Exception as error:
            with self._lock:
                machine.failed(step, error, now_s=self._clock.seconds())
        except BaseException:
            unknown = OutcomeUnknown("broken off before the answer came")
            with self._lock:
                machine.failed(step, unknown, now_s=self._clock.seconds())
            raise
        if lost:
            _logger.warning("leases_lost consumer=%r count=%d", self.name, lost)
        if surplus is not None:
            self._carry_out(machine, surplus)

    def _send_all(self, machine: Prefetching[T]) -> None:
        """Send the endings that wait, and repeat a commit that fails for a reason that may pass.

        Give up while the server is away: the session has been patient already.
        """
        while True:
            with self._lane:
                with self._lock:
                    steps = machine.waiting_endings()
                for step in steps:
                    self._carry_out(machine, step)
            if machine.error or machine.absence or not machine.has_endings:
                return
            Bell().wait(machine.pause_s(self._clock.seconds()))

    def _close(self, error: BaseException | None) -> None:
        """Send what waits, and give back everything that is held."""
        if not self._is_begun or self._is_closed or os.getpid() != self._pid:
            return
        machine = self._machine
        self._is_closed = True
        self.stop()
        with self._lock:
            machine.close()
        self._chores.ring()
        self._keeper.ends()
        with self._lock:
            steps = self._endings(error)  # first: later endings of other threads are refused
        self._send_all(machine)
        with self._lane:
            for step in steps:
                self._carry_out(machine, step)
        problem = machine.error or self._keeper.take_error()
        if error is None and problem is not None:
            raise problem
