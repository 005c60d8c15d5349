"""Faults: what a test lets happen to a memory engine, and when.

The engine names each step before it takes it; a fault is an exception that the script raises there,
or a `Pause`, which makes sense at any step.

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
    """A fault that raises nothing: the step waits where it is until the test lets it go on.

    Paused at `sent`, a commit is on its way to the disk for as long as the test wants. Leaving the
    `with` block lets it go on.
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
        """Let the step go on."""
        self._released.set()

    def take_place(self) -> None:
        """What the engine's thread does at the step."""
        self._reached.set()
        assert self._released.wait(PAUSE_S_MAX), "the paused step was never released"


class Crash(BaseException):
    """The process ended here: of its engine only what was durable may be looked at.

    `kept` says whether a commit that was on its way just then has arrived.
    """

    def __init__(self, message: str = "the process ended here", *, kept: bool = False) -> None:
        super().__init__(message)
        self.kept = kept


class Torn(Exception):
    """The answer to a commit was lost: the caller gets `OutcomeUnknown`.

    `kept` says whether the commit is there when the engine is opened again.
    """

    def __init__(self, *, kept: bool) -> None:
        super().__init__("the answer to the commit was lost")
        self.kept = kept


class Faults:
    """A script of faults, and the record of the steps that it was asked about."""

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
        """Note a step of the engine; raises if the script says so."""
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
