"""A pool of child processes: carries out the decisions of a supervisor.

Children start by `spawn` (a new interpreter each) or by `forkserver` (forks of one process that has
imported the application, and opened nothing else). Both are safe for threads of the caller.

Signals are blocked while a child starts, and a child unblocks them when it can handle them: Ctrl-C
in a terminal reaches all processes of the group, and a service manager may signal all of them.
"""

from __future__ import annotations

import multiprocessing
import os
import secrets
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing import forkserver, resource_tracker
from multiprocessing.connection import Connection, wait
from multiprocessing.context import ForkServerContext, SpawnContext
from multiprocessing.process import BaseProcess
from types import FrameType
from typing import Literal

from msgspec.structs import replace

from millstream.clock import Clock
from millstream.jobs.processes.child import WAITING_SIGNALS, child_main
from millstream.jobs.processes.effects import (
    Announce,
    Await,
    DrainChild,
    DumpStack,
    KillChild,
    PoolDone,
    PoolEffect,
    StartChild,
    Tell,
)
from millstream.jobs.processes.preload import PRELOAD
from millstream.jobs.processes.reports import (
    DRAIN,
    Beat,
    ChildPlan,
    TaskFigures,
    consumer_of,
    decode_report,
    encode_plan,
)
from millstream.jobs.processes.running_jobs import RunningJobsFile
from millstream.jobs.processes.service_manager import ServiceManager
from millstream.jobs.processes.source_files import SourceFiles
from millstream.jobs.processes.supervisor import PoolPlan, Supervisor

StartMethod = Literal["spawn", "forkserver"]
RELOAD_LOOK_S = 0.5
"""How often source files are looked at with `--reload`."""
STACK_BYTES_MAX = 60_000
"""So much of a stack is logged; a pipe holds hardly more."""


@dataclass(frozen=True, slots=True)
class Handle:
    """A child process and the pool's ends of its pipes."""

    process: BaseProcess
    control: Connection
    reports: Connection
    stacks: Connection
    running: RunningJobsFile

    def close(self) -> None:
        """Close the pipes of a process that has ended."""
        for connection in (self.control, self.reports, self.stacks):
            connection.close()
        self.process.close()
        self.running.close()


class PoolFigures:
    """The counters of all tasks in all children, also of children that have ended."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._tasks: dict[str, TaskFigures] = {}

    def add(self, figures: dict[str, TaskFigures]) -> None:
        """Add the counters of a heartbeat."""
        with self._lock:
            for task, counters in figures.items():
                self._tasks.setdefault(task, TaskFigures()).add(counters)

    def snapshot(self) -> dict[str, TaskFigures]:
        """Return a copy of the counters by task."""
        with self._lock:
            return {task: replace(counters) for task, counters in self._tasks.items()}


class ProcessPool:
    """Runs child processes until a signal, or until they have drained their queues."""

    def __init__(
        self,
        plan: PoolPlan,
        child: ChildPlan,
        *,
        clock: Clock,
        tell: Callable[[Tell], None],
        method: StartMethod = "spawn",
        manager: ServiceManager | None = None,
    ) -> None:
        self._supervisor = Supervisor(plan)
        self._child = child
        self._clock = clock
        self._tell = tell
        self._context = multiprocessing.get_context(method)
        self._manager = ServiceManager() if manager is None else manager
        self._sources = SourceFiles(child.folder) if plan.is_reloading else None
        self._look_s = clock.seconds() + RELOAD_LOOK_S
        self._mark = secrets.token_hex(4)
        self._dead: list[str] = []
        """The names of dead children whose claims no child has given back yet, as consumers."""
        self._children: dict[int, Handle] = {}
        self._signals: list[int] = []
        self.figures = PoolFigures()

    @property
    def running(self) -> int:
        """Return how many children exist."""
        return len(self._children)

    def run(self) -> int:
        """Run to the end; return the exit code of the program."""
        resource_tracker.ensure_running()  # the start of the tracker unblocks signals
        if isinstance(self._context, ForkServerContext):
            self._start_fork_server(self._context)
        with self._signals_noted() as wakeup:
            while True:
                effect = self._supervisor.next(self._clock.seconds())
                if isinstance(effect, PoolDone):
                    return effect.code
                if isinstance(effect, Await):
                    self._await(effect.until_s, wakeup)
                else:
                    self._carry_out(effect)

    def _start_fork_server(self, context: ForkServerContext) -> None:
        """Start the fork server, which imports the application unless it may be reloaded."""
        names = ["millstream.jobs.processes.child", "millstream.jobs.processes.preload"]
        context.set_forkserver_preload(names)
        if self._sources is None:
            module = self._child.application.partition(":")[0]
            os.environ[PRELOAD] = f"{self._child.folder}{os.pathsep}{module}"
        try:
            with _signals_blocked():
                forkserver.ensure_running()
        finally:
            os.environ.pop(PRELOAD, None)

    @contextmanager
    def _signals_noted(self) -> Iterator[int]:
        """Note signals while the block runs; yield a descriptor that is readable after a signal."""

        def note(number: int, frame: FrameType | None) -> None:
            self._signals.append(number)

        wakeup, written = os.pipe()
        os.set_blocking(wakeup, False)
        os.set_blocking(written, False)
        before = {number: signal.signal(number, note) for number in WAITING_SIGNALS}
        wakeup_before = signal.set_wakeup_fd(written, warn_on_full_buffer=False)
        try:
            yield wakeup
        finally:
            signal.set_wakeup_fd(wakeup_before)
            for number, handler in before.items():
                signal.signal(number, signal.SIG_DFL if handler is None else handler)
            os.close(wakeup)
            os.close(written)
            for handle in self._children.values():  # only after an error of the pool itself
                handle.process.kill()

    # Effects.

    def _carry_out(self, effect: PoolEffect) -> None:
        match effect:
            case Tell():
                self._tell(effect)
            case Announce(state):
                self._manager.notify(state)
            case StartChild():
                self._start(effect)
            case DrainChild(number):
                self._drain(self._children[number])
            case DumpStack(number):
                self._signal(self._children[number], signal.SIGUSR2)
            case KillChild(number):
                self._signal(self._children[number], signal.SIGKILL)

    def _start(self, effect: StartChild) -> None:
        running = RunningJobsFile(self._child.concurrency)
        plan = replace(
            self._child,
            running_path=running.path,
            number=effect.number,
            orphans=effect.orphans,
            mark=self._mark,
            dead=tuple(self._dead),
        )
        self._dead.clear()
        control_end, control = self._context.Pipe(duplex=False)
        reports, reports_end = self._context.Pipe(duplex=False)
        stacks, stacks_end = self._context.Pipe(duplex=False)
        context: SpawnContext | ForkServerContext = self._context  # type: ignore[assignment]
        process = context.Process(
            target=child_main,
            args=(encode_plan(plan), control_end, reports_end, stacks_end),
            name=f"millstream-worker-{effect.number}",
        )
        with _signals_blocked():
            process.start()
        for connection in (control_end, reports_end, stacks_end):
            connection.close()
        self._children[effect.number] = Handle(process, control, reports, stacks, running)

    def _drain(self, handle: Handle) -> None:
        try:
            handle.control.send_bytes(DRAIN)
        except OSError:
            pass  # the sentinel reports that the process has ended

    def _signal(self, handle: Handle, number: signal.Signals) -> None:
        if handle.process.pid is not None and handle.process.exitcode is None:
            try:
                os.kill(handle.process.pid, number)
            except ProcessLookupError:
                pass  # the sentinel reports that the process has ended

    # Events.

    def _await(self, until_s: float | None, wakeup: int) -> None:
        now_s = self._clock.seconds()
        times = [until_s, self._manager_s(now_s), None if self._sources is None else self._look_s]
        within_s = min((max(0.0, time - now_s) for time in times if time is not None), default=None)
        sources: list[Connection | int] = [wakeup]
        for handle in self._children.values():
            sources += [handle.reports, handle.process.sentinel]
        ready = set(wait(sources, within_s))
        if wakeup in ready:
            os.read(wakeup, 1024)
        while self._signals:
            self._supervisor.stop(code=128 + self._signals.pop(0))
        for number, handle in list(self._children.items()):
            if handle.process.sentinel in ready:
                self._ended(number, handle)
            elif handle.reports in ready:
                self._take_reports(number, handle)
        self._look_at_sources()
        if self._manager.watchdog_s is not None:
            self._manager.notify("WATCHDOG=1")

    def _manager_s(self, now_s: float) -> float | None:
        watchdog_s = self._manager.watchdog_s
        return None if watchdog_s is None else now_s + watchdog_s

    def _take_reports(self, number: int, handle: Handle) -> None:
        """Hand the waiting reports of a child to the supervisor."""
        try:
            while handle.reports.poll():
                report = decode_report(handle.reports.recv_bytes())
                if isinstance(report, Beat):
                    self.figures.add(report.figures)
                self._supervisor.reported(number, report, now_s=self._clock.seconds())
        except (EOFError, OSError):
            handle.process.join(1.0)  # its sentinel is ready, or will be soon

    def _ended(self, number: int, handle: Handle) -> None:
        self._take_reports(number, handle)
        handle.process.join()
        code = handle.process.exitcode
        if code:
            self._dead.append(consumer_of(handle.process.pid or 0, self._mark))
        if stack := _read_stack(handle.stacks):
            facts = {"process": number, "stack": stack}
            self._tell(Tell("error", "stack", f"the stacks of process {number}:\n{stack}", facts))
        del self._children[number]
        jobs = handle.running.read()
        handle.close()
        self._supervisor.exited(number, code or 0, now_s=self._clock.seconds(), jobs=jobs)

    def _look_at_sources(self) -> None:
        now_s = self._clock.seconds()
        if self._sources is None or now_s < self._look_s:
            return
        self._look_s = now_s + RELOAD_LOOK_S
        if names := self._sources.changes():
            self._supervisor.changed(names, now_s=now_s)


@contextmanager
def _signals_blocked() -> Iterator[None]:
    before = signal.pthread_sigmask(signal.SIG_BLOCK, WAITING_SIGNALS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _read_stack(stacks: Connection) -> str:
    """Return the stacks that a process wrote before it ended."""
    os.set_blocking(stacks.fileno(), False)
    try:
        written = os.read(stacks.fileno(), STACK_BYTES_MAX)
    except OSError:
        return ""
    return written.decode("utf-8", "replace").rstrip()
