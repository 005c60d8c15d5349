"""Faults: what a test lets happen to a memory engine, and when.

The engine names each step before it takes it; a fault is an exception that the script raises there.

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
        self._at: dict[int, BaseException] = {}
        self._on: dict[str, list[tuple[int, BaseException]]] = {}

    def at(self, index: int, fault: BaseException) -> None:
        """Raise at one step, counted over all steps from 0."""
        self._at[index] = fault

    def on(self, step: str, fault: BaseException, *, nth: int = 1) -> None:
        """Raise at the nth step of that name from now on."""
        self._on.setdefault(step, []).append((self.steps.count(step) + nth, fault))

    def __call__(self, step: str) -> None:
        """Note a step of the engine; raises if the script says so."""
        self.steps.append(step)
        fault = self._at.pop(len(self.steps) - 1, None)
        if fault is not None:
            raise fault
        if step in self._on:
            self._raise_due(step, self.steps.count(step))

    def _raise_due(self, step: str, count: int) -> None:
        for planned in self._on[step]:
            if planned[0] == count:
                self._on[step].remove(planned)
                raise planned[1]
