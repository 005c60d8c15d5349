"""Replicas: copies of a log in several stores, and how they converge."""

from millstream.log.model.metadata import Meta, Stamp
from millstream.replica.sync.outcome import LogOutcome, Outcome, Progress

__all__ = ["LogOutcome", "Meta", "Outcome", "Progress", "Stamp"]
