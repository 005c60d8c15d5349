"""Replicas: how copies of a log converge. `merge` is the rule, over states that are values."""

from millstream.replica.merge import merge
from millstream.replica.stamp import Meta, Stamp
from millstream.replica.state import Entry, LogState, Run
from millstream.replica.sync.outcome import LogOutcome, Outcome, Progress

__all__ = [
    "Entry",
    "LogOutcome",
    "LogState",
    "Meta",
    "Outcome",
    "Progress",
    "Run",
    "Stamp",
    "merge",
]
