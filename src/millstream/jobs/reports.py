"""Reports of a worker about its jobs: values for log lines, metrics and dashboards."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

from msgspec import Struct

JobOutcome = Literal["done", "retried", "failed", "cancelled", "unknown_task", "dropped"]
"""How an attempt ended. A plain function that goes on after its timeout ends as `dropped`: the
timeout had ended the attempt before."""


class JobStarted(Struct, frozen=True, kw_only=True):
    """A job began."""

    id: str
    task: str
    queue: str
    claim_id: int
    """The number of the claim; with the attempt it names the lease of the job."""
    attempt: int
    wait_s: float
    """How long the job waited after it was put."""
    kill_after_s: float | None = None
    """How long the job may go on after its timeout or its cancel; None: as long as the worker says."""


class JobFinished(Struct, frozen=True, kw_only=True):
    """An attempt at a job ended. The commit of its end may still fail, and the job then runs again."""

    id: str
    task: str
    attempt: int
    outcome: JobOutcome
    run_s: float
    reason: str = ""
    """Why the attempt did not succeed: the class and the text of its error, in one line."""
    is_left_running: bool = False
    """Whether a plain function goes on after its timeout: only the end of the process stops the function."""


class JobCancelling(Struct, frozen=True, kw_only=True):
    """A running job was cancelled, and its task was asked to end."""

    id: str
    attempt: int


JobReport = JobStarted | JobFinished | JobCancelling
OnJob = Callable[[JobReport], None]
"""Takes each report, on the thread that runs the job: it must not block."""
