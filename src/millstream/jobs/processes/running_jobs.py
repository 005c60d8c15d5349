"""The running jobs of a child process, in a file that the supervisor reads once the child has died.

A task may end its process at once, by a segmentation fault or `os._exit`. So each job is noted before it
runs, in memory that both processes map: a report on a pipe costs 20 times as much, and a message that
waits in the child is lost. The child deletes the name of the file when it has opened the file.
"""

from __future__ import annotations

import mmap
import os
import tempfile

from msgspec import MsgspecError, msgpack

from millstream.jobs.processes.reports import RunningJob
from millstream.jobs.reports import JobFinished, JobReport, JobStarted

SLOT_BYTES = 1_024
SLOTS_MAX = 1_000
"""Jobs that are noted at most. A job beyond is known by the next heartbeat."""
LENGTH_BYTES = 2

_encode = msgpack.Encoder().encode
_decode = msgpack.Decoder(RunningJob).decode


class RunningJobs:
    """Notes of running jobs, each in a slot. A call takes a report of the worker, from any thread."""

    def __init__(self, path: str) -> None:
        """Open the file that the supervisor has made."""
        with open(path, "r+b") as file:
            self._slots = mmap.mmap(file.fileno(), 0)
        os.unlink(path)
        self._free = list(range(0, len(self._slots), SLOT_BYTES))
        self._taken: dict[tuple[str, int], int] = {}

    def __call__(self, report: JobReport) -> None:
        """Note that a job begins, or that its function has returned."""
        if isinstance(report, JobStarted):
            self._begin(report)
        elif isinstance(report, JobFinished) and not report.is_left_running:
            start = self._taken.pop((report.id, report.attempt), None)
            if start is not None:
                self._slots[start : start + LENGTH_BYTES] = bytes(LENGTH_BYTES)
                self._free.append(start)

    def _begin(self, job: JobStarted) -> None:
        note = _encode(RunningJob(job.id, job.task, job.queue, job.claim_id, job.attempt, 0.0))
        if len(note) > SLOT_BYTES - LENGTH_BYTES:
            return
        try:
            start = self._free.pop()
        except IndexError:
            return
        self._taken[job.id, job.attempt] = start
        body = start + LENGTH_BYTES
        self._slots[body : body + len(note)] = note
        self._slots[start:body] = len(note).to_bytes(LENGTH_BYTES, "little")


class RunningJobsFile:
    """The same file as the supervisor holds it."""

    def __init__(self, concurrency: int) -> None:
        handle, self.path = tempfile.mkstemp(prefix="millstream-running-")
        size = SLOT_BYTES * min(SLOTS_MAX, 2 * concurrency + 16)
        try:
            os.write(
                handle, bytes(size)
            )  # reserves the space, which a sparse file would lack later
            self._slots = mmap.mmap(handle, size)
        finally:
            os.close(handle)

    def read(self) -> tuple[RunningJob, ...]:
        """Return the jobs whose functions had begun and not returned."""
        jobs: list[RunningJob] = []
        for start in range(0, len(self._slots), SLOT_BYTES):
            body = start + LENGTH_BYTES
            length = int.from_bytes(self._slots[start:body], "little")
            if length:
                try:
                    jobs.append(_decode(self._slots[body : body + length]))
                except MsgspecError:
                    continue  # the child died while it took the slot again
        return tuple(jobs)

    def close(self) -> None:
        """Close the file, and delete its name if the child never opened the file."""
        self._slots.close()
        try:
            os.unlink(self.path)
        except FileNotFoundError:
            pass  # the child has opened the file
