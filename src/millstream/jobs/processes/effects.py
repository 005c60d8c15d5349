"""The effects that a supervisor asks of its shell, as values."""

from __future__ import annotations

from typing import Any, Literal

from msgspec import Struct

from millstream.jobs.processes.reports import Orphan

Level = Literal["info", "warning", "error"]


class StartChild(Struct, frozen=True):
    """Start a child process; it ends the attempts of orphans first."""

    number: int
    orphans: tuple[Orphan, ...] = ()


class DrainChild(Struct, frozen=True):
    """Ask a child to finish its running jobs and to end."""

    number: int


class DumpStack(Struct, frozen=True):
    """Have a child write the stacks of its threads, even if none of them can run Python code."""

    number: int


class KillChild(Struct, frozen=True):
    """Kill a child at once."""

    number: int


class Tell(Struct, frozen=True):
    """Log an event with its facts."""

    level: Level
    event: str
    text: str
    """The event as a sentence, for people."""
    facts: dict[str, Any] = {}


class Announce(Struct, frozen=True):
    """Tell the service manager a state: READY or STOPPING."""

    state: Literal["READY=1", "STOPPING=1"]


class Await(Struct, frozen=True):
    """Wait for a report, the end of a child or a signal, at most until a time."""

    until_s: float | None = None


class PoolDone(Struct, frozen=True):
    """Nothing is left to do: end with an exit code."""

    code: int


PoolEffect = StartChild | DrainChild | DumpStack | KillChild | Tell | Announce | Await | PoolDone
