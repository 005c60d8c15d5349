"""Slow commands: a log line for each command that took too long, with the reason of its wait.

A command waits for the turn of the writer (other commits come first), for the lock of another process,
or for the disk. The commits tell their own times. Only commits that took a noticeable time are
remembered, so that a fast command costs a comparison, and a fast commit costs another. A request also
waits for its client, before and after the command: for the bytes of its body, and until the client
reads the answer.
"""

from __future__ import annotations

import logging
from collections import deque
from math import inf
from typing import Any

from msgspec import Struct

from millstream.clock import Clock
from millstream.command import Command

_logger = logging.getLogger("millstream.server")

COMMITS_KEPT = 256
"""Long commits that are remembered: a slow command overlaps few of them."""

SHARE = 10
"""A commit is long from this part of the limit on: several long commits make a command slow."""

NOUNS = ("log", "queue", "room")
CLIENT = "client"


class LongCommit(Struct, frozen=True):
    """The times of a commit, in seconds of the clock."""

    began_s: float
    ended_s: float
    sync_s: float
    lock_s: float


class SlowCommands:
    """Logs slow commands. The committing thread calls `committed`; the event loop calls `note`."""

    def __init__(self, clock: Clock, slow_ms: int) -> None:
        self._clock = clock
        self.slow_s = slow_ms / 1000 if slow_ms else inf
        """The duration of a slow command; infinite if slow commands are not logged."""
        self._commits: deque[LongCommit] = deque(maxlen=COMMITS_KEPT)

    def committed(self, _operations: int, commit_s: float, sync_s: float, lock_s: float) -> None:
        """Remember a long commit."""
        if commit_s * SHARE >= self.slow_s:
            ended_s = self._clock.seconds()
            self._commits.append(LongCommit(ended_s - commit_s, ended_s, sync_s, lock_s))

    def note(self, command: Command[Any], who: str, began_s: float, ended_s: float) -> None:
        """Log a slow command of a client, with the noun that the command names, and the longest wait."""
        facts: dict[str, Any] = {"command": type(command).__name__, "client": who}
        facts |= {noun: getattr(command, noun) for noun in NOUNS if hasattr(command, noun)}
        facts |= {"ms": _ms(ended_s - began_s), **self._waits(command, began_s, ended_s)}
        _logger.warning("slow_command", extra=facts)

    def note_client(
        self, request: str, who: str, *, waited_s: float, size: int, is_answer: bool
    ) -> None:
        """Log a wait for a client: for the bytes that it sends, or until it reads the answer."""
        facts = {
            "request": request,
            "client": who,
            "ms": _ms(waited_s),
            "waited_for": CLIENT,
            "bytes": size,
            "direction": "answer" if is_answer else "body",
        }
        _logger.warning("slow_client", extra=facts)

    def _waits(self, command: Command[Any], began_s: float, ended_s: float) -> dict[str, Any]:
        """Return the longest wait of a command, and the milliseconds of each wait.

        The last commit before the answer is the commit of the command itself.
        """
        during = [
            commit
            for commit in list(self._commits)
            if commit.ended_s > began_s and commit.began_s < ended_s
        ]
        if not during:
            return {"waited_for": "writer turn" if command.writes else "reading"}
        own_commit = during[-1]
        waits = {
            "writer turn": max(0.0, own_commit.began_s - began_s),
            "lock": own_commit.lock_s,
            "disk": own_commit.sync_s,
        }
        longest = max(waits, key=lambda name: waits[name])
        times = {f"{name.replace(' ', '_')}_ms": _ms(wait_s) for name, wait_s in waits.items()}
        return {"waited_for": longest, **times}


def _ms(seconds: float) -> int:
    return round(seconds * 1000)
