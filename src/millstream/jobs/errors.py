"""Errors for callers of jobs: a failed job, and a cancelled job."""

from __future__ import annotations

from millstream.errors import MillstreamError


class JobFailed(MillstreamError):
    """The job has failed. Data: `id`, `kind` (the class of its error), `trace` (its last frames)."""


class JobCancelled(MillstreamError):
    """The job was cancelled, and has no result. Data: `id`."""
