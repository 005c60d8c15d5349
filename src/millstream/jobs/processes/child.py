"""The main function of a child process: it runs a worker, and reports to its supervisor.

A thread sends heartbeats and reads the supervisor's pipe. The end of that pipe means that the
supervisor has died: the child then drains, and ends. SIGUSR2 writes the stacks of all threads to a
pipe of the supervisor (`faulthandler`), also while a C function keeps the interpreter busy.
"""

from __future__ import annotations

import faulthandler
import importlib
import logging
import os
import resource
import signal
import sys
import threading
import traceback
from multiprocessing.connection import Connection
from typing import Any, Protocol

from millstream.clock import Clock, SystemClock
from millstream.errors import InvalidInput, MillstreamError
from millstream.jobs.processes.application import UnusableApplication
from millstream.jobs.processes.journal import Journal
from millstream.jobs.processes.lines import EventWriter
from millstream.jobs.processes.reports import (
    ChildLeaving,
    ChildPlan,
    Ready,
    Report,
    Unusable,
    decode_plan,
    encode_report,
)
from millstream.jobs.processes.running_jobs import RunningJobs
from millstream.jobs.reports import JobFinished, JobReport, OnJob

MEMORY_LOOK_S = 0.05
"""The memory is measured at the end of a job, at most this often."""
WAITING_SIGNALS = (signal.SIGINT, signal.SIGTERM)
"""Signals that are blocked while a child starts, until the child can handle them."""


class ChildWorker(Protocol):
    """The worker of a child process."""

    def run(self) -> None:
        """Run jobs until `stop`, or until the queues are empty if the plan says so."""

    def stop(self) -> None:
        """Claim no more jobs; `run` returns after the running jobs. Every thread may call."""


class Factory(Protocol):
    """Makes the worker of a child."""

    def __call__(self, plan: ChildPlan, on_job: OnJob) -> ChildWorker:
        """Import the application and open its store. Raises `MillstreamError` if that is in vain."""


def child_main(
    encoded_plan: bytes, control: Connection, reports: Connection, stacks: Connection
) -> None:
    """Run a child process to its end."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    faulthandler.enable()
    faulthandler.register(signal.SIGUSR2, file=stacks.fileno(), all_threads=True, chain=False)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, WAITING_SIGNALS)
    plan = decode_plan(encoded_plan)
    child = ChildProcess(plan, control, reports, SystemClock())
    try:
        code = child.run()
    except KeyboardInterrupt:  # SIGTERM before the worker ran
        code = 0
    sys.stdout.flush()
    sys.stderr.flush()
    if code:
        os._exit(code)  # threads of a half-opened application do not delay the error


class ChildProcess:
    """The connection between a worker and the supervisor of its process."""

    def __init__(
        self, plan: ChildPlan, control: Connection, reports: Connection, clock: Clock
    ) -> None:
        self._plan = plan
        self._control = control
        self._reports = reports
        self._clock = clock
        self._send_lock = threading.Lock()
        self._writer = EventWriter(
            clock,
            is_json=plan.is_json,
            has_colour=not plan.is_json and "NO_COLOR" not in os.environ,
        )
        self._journal = Journal(
            kill_after_s=plan.kill_after_s, seconds=clock.seconds, on_end=self._ended
        )
        self._worker: ChildWorker | None = None
        self._leave_reason = ""
        self._memory_s = clock.seconds()
        self._running = RunningJobs(plan.running_path)

    def run(self) -> int:
        """Make the worker and run it; return the exit code of the process."""
        logging.getLogger("millstream").addHandler(self._writer)
        module, _, function = self._plan.factory.partition(":")
        try:
            factory: Factory = getattr(importlib.import_module(module), function)
            self._worker = factory(self._plan, self._note)
        except MillstreamError as error:
            if error.retry or error.data.get("again"):
                self._complain(error)
            else:
                self._send(Unusable(str(error)))
            return 1
        signal.signal(signal.SIGTERM, lambda *_: self._stop())
        self._send(Ready())
        threading.Thread(target=self._beat, name="millstream-heartbeat", daemon=True).start()
        try:
            self._worker.run()
        except (InvalidInput, UnusableApplication) as error:
            self._send(Unusable(str(error)))
            return 1
        except Exception as error:
            self._complain(error)
            return 1
        if self._leave_reason:
            self._send(ChildLeaving(self._leave_reason))
        self._send(self._journal.beat(resident_bytes()))
        return 0

    def _complain(self, error: Exception) -> None:
        """Log the error that ends this process, without the traceback of an error of ours."""
        text = f"process {self._plan.number} ends: {type(error).__name__}: {error}"
        facts: dict[str, Any] = {"process": self._plan.number}
        if not isinstance(error, MillstreamError):
            facts["trace"] = "".join(traceback.format_exception(error))
            text += "" if self._plan.is_json else f"\n{facts['trace'].rstrip()}"
        self._writer.event("error", "child_failed", text, facts)

    def _note(self, report: JobReport) -> None:
        """Note a report of the worker. A job may end its process, so it is noted before it runs."""
        self._running(report)
        self._journal(report)

    def _ended(self, job: JobFinished, waited_s: float) -> None:
        """Write the line of a job, and leave if this process has done enough."""
        self._writer.job(job, waited_s, process=self._plan.number)
        if job.is_left_running:
            self._leave(f"job {job.id} is over its timeout, and a thread cannot be stopped")
        plan, count = self._plan, self._journal.ended_count
        if plan.max_jobs is not None and count >= plan.max_jobs:
            self._leave(f"it has run {count:,} jobs")
        if plan.max_memory_bytes is not None:
            now_s = self._clock.seconds()
            if now_s >= self._memory_s:
                self._memory_s = now_s + MEMORY_LOOK_S
                self._check_memory(plan.max_memory_bytes)

    def _check_memory(self, max_bytes: int) -> None:
        memory_bytes = resident_bytes()
        if memory_bytes > max_bytes:
            self._leave(
                f"it uses {memory_bytes / 2**20:,.0f} MiB, more than {max_bytes / 2**20:,.0f} MiB"
            )

    def _leave(self, reason: str) -> None:
        if not self._leave_reason:
            self._leave_reason = reason
            self._stop()

    def _stop(self) -> None:
        assert self._worker is not None
        self._worker.stop()

    def _beat(self) -> None:
        """Send heartbeats until the supervisor asks for the end, or has died."""
        is_draining = is_told = False
        while True:
            wait_s = self._plan.beat_s
            if (kill_s := self._journal.first_kill_s()) is not None:
                wait_s = min(wait_s, max(0.01, kill_s - self._clock.seconds()))
            try:
                if not is_draining and self._control.poll(wait_s):
                    self._control.recv_bytes()
                    is_draining = True
                    self._stop()
                    self._tell_draining()
                elif is_draining:
                    threading.Event().wait(wait_s)
            except (EOFError, OSError):
                self._stop()
                return
            if self._leave_reason and not is_told:
                is_told = True
                self._send(ChildLeaving(self._leave_reason))
            self._send(self._journal.beat(resident_bytes()))

    def _tell_draining(self) -> None:
        """Log that no other job begins: from here on the process only finishes running jobs."""
        number = self._plan.number
        self._writer.event(
            "info", "draining", f"process {number} begins no more jobs", {"process": number}
        )

    def _send(self, report: Report) -> None:
        with self._send_lock:
            try:
                self._reports.send_bytes(encode_report(report))
            except OSError:
                pass  # the supervisor has died: the end of its pipe makes this process drain


def resident_bytes() -> int:
    """Return the resident memory of this process; where only the peak is known, the peak."""
    try:
        with open("/proc/self/statm", "rb") as facts:
            return int(facts.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return peak if sys.platform == "darwin" else peak * 1024
