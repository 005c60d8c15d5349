"""Faults that a test injects into a memory engine, at named steps.

The engine names each step before it takes the step. A fault is an exception that the script raises
there, or a `Pause`, which makes sense at any step.

    step          what follows                        faults that make sense
    read          a snapshot is opened                any error of reading
    get, scan     rows are read                       any error of reading
    begin         a write transaction is opened       WriteFailed, Overloaded, Crash
    put, delete   rows are changed, for the writer    WriteFailed, Crash
    commit        nothing has been sent yet           WriteFailed, Crash
    sent          the commit is on its way            Torn, Crash
    committed     it is durable, and nobody knows     Crash
    recover       a commit in doubt is looked into    WriteFailed, CorruptionError, Crash
    sync          relaxed commits are made safe       Crash
"""

from __future__ import annotations

import threading

PAUSE_S_MAX = 20.0
"""How long a paused step waits for its release, so that a failed test ends."""


class Pause:
    """A fault that raises nothing: the step waits until the test releases it.

    Paused at `sent`, a commit stays on its way to the disk until the release. Leaving the `with` block
    releases the step.
    """

    def __init__(self) -> None:
        self._reached, self._released = threading.Event(), threading.Event()

    def __enter__(self) -> Pause:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()

    def wait_until_reached(self) -> None:
        """Wait until a thread has come to the step."""
        assert self._reached.wait(PAUSE_S_MAX), "no thread has come to the paused step"

    def release(self) -> None:
        """Release the step."""
        self._released.set()

    def take_place(self) -> None:
        """Wait at the step, on the engine's thread, until the release."""
        self._reached.set()
        assert self._released.wait(PAUSE_S_MAX), "the paused step was never released"


class Crash(BaseException):
    """The end of the process at a step: only the durable rows of its engine survive.

    `kept` tells whether a commit that was on its way is durable.
    """

    def __init__(self, message: str = "the process ended here", *, kept: bool = False) -> None:
        super().__init__(message)
        self.kept = kept


class Torn(Exception):
    """A lost answer to a commit: the caller gets `OutcomeUnknown`.

    `kept` tells whether the commit is durable.
    """

    def __init__(self, *, kept: bool) -> None:
        super().__init__("the answer to the commit was lost")
        self.kept = kept


class Faults:
    """A script of faults, and a record of all steps."""

    def __init__(self) -> None:
        self.steps: list[str] = []
        self._at: dict[int, BaseException | Pause] = {}
        self._on: dict[str, list[tuple[int, BaseException | Pause]]] = {}

    def at(self, index: int, fault: BaseException | Pause) -> None:
        """Raise at one step, counted over all steps from 0."""
        self._at[index] = fault

    def on(self, step: str, fault: BaseException | Pause, *, nth: int = 1) -> None:
        """Raise at the nth step of that name from now on."""
        self._on.setdefault(step, []).append((self.steps.count(step) + nth, fault))

    def __call__(self, step: str) -> None:
        """Record a step of the engine, and raise the fault that is due."""
        self.steps.append(step)
        fault = self._at.pop(len(self.steps) - 1, None)
        if fault is not None:
            _happen(fault)
        if step in self._on:
            self._raise_due(step, self.steps.count(step))

    def _raise_due(self, step: str, count: int) -> None:
        due = [planned for planned in self._on[step] if planned[0] == count]
        for planned in due:
            self._on[step].remove(planned)
        for _, fault in due:
            _happen(fault)


def _happen(fault: BaseException | Pause) -> None:
    if not isinstance(fault, Pause):
        raise fault
    fault.take_place()
