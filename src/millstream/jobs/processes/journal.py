"""The journal of a child process: its running jobs, its counters, and a line per ended job.

Threads and event loops report beginnings and ends of jobs. The thread of the heartbeat reads.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass

from millstream.jobs.processes.reports import Beat, RunningJob, TaskFigures
from millstream.jobs.reports import JobCancelling, JobFinished, JobReport, JobStarted

REPORTED_MAX = 100
"""So many running jobs are in a heartbeat: first those with the nearest kill time, then the oldest."""


@dataclass(slots=True)
class RunningEntry:
    """A running job, or a plain function that goes on after its timeout."""

    job: JobStarted
    began_s: float
    kill_s: float | None = None
    kill_reason: str = ""


class Journal:
    """Notes which jobs run in this process, and since when. A call takes a report of a worker.

    `on_end` takes each ended attempt, and how long its job had waited.
    """

    def __init__(
        self,
        *,
        kill_after_s: float,
        seconds: Callable[[], float],
        on_end: Callable[[JobFinished, float], None],
    ) -> None:
        self._kill_after_s = kill_after_s
        self._seconds = seconds
        self._on_end = on_end
        self._lock = threading.Lock()
        self._running: dict[tuple[str, int], RunningEntry] = {}
        self._figures: dict[str, TaskFigures] = {}
        self._progress = 0
        self.ended_count = 0

    def __call__(self, report: JobReport) -> None:
        """Note a report of the worker. Every thread may call."""
        match report:
            case JobStarted():
                self._began(report)
            case JobFinished():
                self._ended(report)
            case JobCancelling():
                self._cancelling(report)

    def _began(self, job: JobStarted) -> None:
        entry = RunningEntry(job, self._seconds())
        with self._lock:
            self._running[job.id, job.attempt] = entry
            self._progress += 1
            figures = self._figures.setdefault(job.task, TaskFigures())
            figures.started += 1
            figures.wait_s += job.wait_s

    def _cancelling(self, job: JobCancelling) -> None:
        """Give a cancelled job its grace period. The supervisor kills the process after the period."""
        with self._lock:
            entry = self._running.get((job.id, job.attempt))
            if entry is not None and entry.kill_s is None:
                entry.kill_s = self._seconds() + self._grace_s(entry)
                entry.kill_reason = "was cancelled and did not end"

    def _grace_s(self, entry: RunningEntry) -> float:
        """Return how long a job may go on after its timeout or its cancel."""
        of_task = entry.job.kill_after_s
        return self._kill_after_s if of_task is None else of_task

    def _ended(self, job: JobFinished) -> None:
        if job.outcome == "dropped":
            with self._lock:
                self._running.pop((job.id, job.attempt), None)
            return
        now_s = self._seconds()
        with self._lock:
            entry = self._running.pop((job.id, job.attempt), None)
            self._progress += 1
            self.ended_count += 1
            figures = self._figures.setdefault(job.task, TaskFigures())
            figures.run_s += job.run_s
            figures.done += job.outcome == "done"
            figures.failed += job.outcome == "failed"
            figures.retried += job.outcome == "retried"
            figures.cancelled += job.outcome == "cancelled"
            if job.is_left_running and entry is not None:
                entry.kill_s = now_s + self._grace_s(entry)
                entry.kill_reason = "did not end after its timeout"
                self._running[job.id, job.attempt] = entry
        self._on_end(job, 0.0 if entry is None else entry.job.wait_s)

    def beat(self, memory_bytes: int) -> Beat:
        """Return a heartbeat, with the counters since the last one."""
        now_s = self._seconds()
        with self._lock:
            entries = list(self._running.values())
            figures, self._figures = self._figures, {}
            progress = self._progress
        entries.sort(key=lambda entry: (entry.kill_s is None, entry.kill_s or entry.began_s))
        running = tuple(
            RunningJob(
                id=entry.job.id,
                task=entry.job.task,
                queue=entry.job.queue,
                claim_id=entry.job.claim_id,
                attempt=entry.job.attempt,
                ran_s=now_s - entry.began_s,
                kill_in_s=None if entry.kill_s is None else entry.kill_s - now_s,
                kill_reason=entry.kill_reason,
            )
            for entry in entries[:REPORTED_MAX]
        )
        return Beat(progress, memory_bytes, running, figures)

    def first_kill_s(self) -> float | None:
        """Return the next time at which the supervisor would kill this process."""
        with self._lock:
            times = [e.kill_s for e in self._running.values() if e.kill_s is not None]
        return min(times, default=None)
