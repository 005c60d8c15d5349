"""A supervisor decides which child processes start, drain and die. The shell executes decisions.

No process, clock or signal: the shell (`pool.py`) reports every event with its time, calls `next`,
and executes the returned effect. Decisions can therefore be replayed
(`tests/unit/jobs/processes/transcripts/`).

- A child that ended as it should (after `--max-jobs`, `--max-memory` or a reload) is replaced at
  once. With `drain` a child that ended is not replaced.
- A child that died is replaced after a delay. The delay doubles while children die without having
  made progress, so that a broken machine is not kept busy by restarts.
- A child that cannot use the application ends the pool with exit code 1: no restart can help.
- A child is killed if a job is over its timeout or cancelled, and still runs after its grace period.
  The child announces that time. A child that then sends no heartbeat has `SILENT_S` more.
- A stalled child (no heartbeat, or running jobs without any progress) writes its stacks, and is
  killed. Without `stall_s` no child counts as stalled.
- Jobs of a dead child are handed to its replacement, which ends their attempts: other workers can
  claim the jobs before the leases end.
- The first stop drains all children. The second stop kills them.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Any, Literal

from millstream.jobs.processes.effects import (
    Announce,
    Await,
    DrainChild,
    DumpStack,
    KillChild,
    Level,
    PoolDone,
    PoolEffect,
    StartChild,
    Tell,
)
from millstream.jobs.processes.reports import (
    Beat,
    ChildLeaving,
    Orphan,
    Ready,
    Report,
    RunningJob,
    Unusable,
)

FIRST_DELAY_S = 0.1
DELAY_MAX_S = 30.0
DEATHS_MAX = 5
"""So many children may die in a row before any child was ready; then the pool gives up."""
START_S = 60.0
"""How long a child may take to import the application before it counts as stalled."""
STACK_S = 1.0
"""How long a stalled child has to write its stacks."""
SILENT_S = 2.0
"""How long a child may be silent when one of its jobs is to be killed."""
RELOAD_KILL_S = 5.0
"""How long running jobs may delay a reload."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolPlan:
    """The parameters of a supervisor."""

    processes: int
    stall_s: float | None = None
    is_draining: bool = False
    """Whether children end when their queues are empty."""
    is_reloading: bool = False
    """Whether a change of a source file restarts the children."""


@dataclass(slots=True)
class Child:
    """The state of a child process."""

    number: int
    started_s: float
    beat_s: float
    progress_s: float
    state: Literal["starting", "working", "leaving", "dumping", "killed"] = "starting"
    progress: int = 0
    running: tuple[RunningJob, ...] = ()
    kill_s: float | None = None
    """When the child is killed, whatever the child reports until that time."""
    blame: tuple[str, str] | None = None
    """The id of the job that the child is killed for, and why."""
    is_unusable: bool = False
    """Whether the application cannot be used, and no source file has changed since."""


class Supervisor:
    """A run of a pool of child processes, as a state machine."""

    def __init__(self, plan: PoolPlan) -> None:
        self._plan = plan
        self._effects: deque[PoolEffect] = deque()
        self._children: dict[int, Child] = {}
        self._starts: dict[int, float] = dict.fromkeys(range(1, plan.processes + 1), 0.0)
        """When each missing child is started."""
        self._orphans: dict[int, tuple[Orphan, ...]] = {}
        self._deaths = 0
        self._was_ready = self._is_announced = False
        self._stops = 0
        self._code = 0

    # Decisions.

    def next(self, now_s: float) -> PoolEffect:
        """Return the next effect."""
        for child in self._children.values():
            if not self._effects:
                self._examine(child, now_s)
        if self._effects:
            return self._effects.popleft()
        if self._stops or self._code:
            return Await(self._earliest()) if self._children else PoolDone(self._code)
        for number, start_s in sorted(self._starts.items()):
            if start_s <= now_s:
                return self._start(number, now_s)
        if not self._children and not self._starts and not self._plan.is_reloading:
            return PoolDone(0)
        return Await(self._earliest())

    def _start(self, number: int, now_s: float) -> StartChild:
        del self._starts[number]
        self._children[number] = Child(number, now_s, now_s, now_s)
        return StartChild(number, self._orphans.pop(number, ()))

    def _examine(self, child: Child, now_s: float) -> None:
        """Ask for effects on a child whose time is up."""
        if child.state == "killed":
            return
        if child.kill_s is not None and now_s >= child.kill_s:
            self._kill(child)
            return
        if child.state == "dumping":
            return
        for job in child.running:  # a kill time lies `SILENT_S` behind the time that was announced
            if job.kill_in_s is not None and now_s >= child.beat_s + job.kill_in_s + SILENT_S:
                self._kill_for(child, job)
                return
        if (stalled_s := self._stalled_s(child)) is not None and now_s >= stalled_s:
            self._dump(child, now_s)

    def _stalled_s(self, child: Child) -> float | None:
        """Return when a child counts as stalled."""
        if self._plan.stall_s is None:
            return None
        if child.state == "starting":
            return child.started_s + max(START_S, self._plan.stall_s)
        since_s = child.progress_s if child.running else child.beat_s
        return min(since_s, child.beat_s) + self._plan.stall_s

    def _dump(self, child: Child, now_s: float) -> None:
        jobs = ", ".join(f"{job.id} ({job.task})" for job in child.running[:5])
        doing = f"its jobs: {jobs}" if jobs else "it runs no job"
        self._tell(
            "error",
            "child_stalled",
            f"process {child.number} made no progress for {self._plan.stall_s:g} s and is "
            f"killed; {doing}",
            process=child.number,
            jobs=[job.id for job in child.running],
        )
        child.state, child.kill_s = "dumping", now_s + STACK_S
        child.blame = ("", f"its process made no progress for {self._plan.stall_s:g} s")
        self._effects.append(DumpStack(child.number))

    def _kill_for(self, child: Child, job: RunningJob) -> None:
        self._tell(
            "warning",
            "child_killed",
            f"process {child.number} is killed: job {job.id} ({job.task}) {job.kill_reason}",
            process=child.number,
            job=job.id,
            task=job.task,
            reason=job.kill_reason,
        )
        child.blame = (job.id, f"{job.kill_reason}, so its process was killed")
        self._kill(child)

    def _kill(self, child: Child) -> None:
        child.state, child.kill_s = "killed", None
        self._effects.append(KillChild(child.number))

    def _earliest(self) -> float | None:
        """Return the time at which a rule applies next."""
        times = [] if self._stops or self._code else list(self._starts.values())
        for child in self._children.values():
            if child.state == "killed":
                continue
            if child.kill_s is not None:
                times.append(child.kill_s)
            if child.state == "dumping":
                continue
            times += [
                child.beat_s + job.kill_in_s + SILENT_S
                for job in child.running
                if job.kill_in_s is not None
            ]
            if (stalled_s := self._stalled_s(child)) is not None:
                times.append(stalled_s)
        return min(times, default=None)

    # Events.

    def reported(self, number: int, report: Report, *, now_s: float) -> None:
        """Note a report of a child."""
        child = self._children.get(number)
        if child is None or child.state == "killed":
            return
        child.beat_s = now_s
        match report:
            case Ready():
                child.progress_s = now_s
                if child.state == "starting":
                    child.state = "working"
                self._was_ready = True
                self._announce()
            case Beat():
                self._beat(child, report, now_s)
            case ChildLeaving(reason):
                if child.state in ("starting", "working"):
                    child.state = "leaving"
                    self._tell(
                        "info",
                        "child_leaving",
                        f"process {number} is replaced: {reason}",
                        process=number,
                        reason=reason,
                    )
            case Unusable(reason):
                self._unusable(child, reason)

    def _announce(self) -> None:
        """Announce that the pool is ready, once each of its children was ready."""
        is_ready = all(child.state != "starting" for child in self._children.values())
        if is_ready and not self._starts and not self._is_announced and not self._stops:
            self._is_announced = True
            count = self._plan.processes
            text = "1 process is ready" if count == 1 else f"{count} processes are ready"
            self._tell("info", "ready", text, processes=count)
            self._effects.append(Announce("READY=1"))

    def _beat(self, child: Child, beat: Beat, now_s: float) -> None:
        if beat.progress != child.progress or not beat.running:
            child.progress_s = now_s
        child.progress, child.running = beat.progress, beat.running
        if beat.progress:
            self._deaths = 0
        if child.state == "dumping":
            return
        for job in beat.running:
            if job.kill_in_s is not None and job.kill_in_s <= 0:
                self._kill_for(child, job)
                return

    def _unusable(self, child: Child, reason: str) -> None:
        child.state, child.is_unusable = "leaving", True
        child.blame = ("", reason)
        if self._code or self._stops:
            return
        self._tell("error", "application_unusable", reason)
        if self._plan.is_reloading:
            return
        self._code = 1
        self._end_all(is_at_once=not self._was_ready)

    def exited(
        self, number: int, code: int, *, now_s: float, jobs: tuple[RunningJob, ...] | None = None
    ) -> None:
        """Note that a child has ended: by itself (`code` >= 0), or by a signal (`code` < 0).

        `jobs` are the jobs that ran; None for the jobs of its last heartbeat.
        """
        child = self._children.pop(number)
        child.running = child.running if jobs is None else jobs
        # Several events may come before the next effect: no effect concerns a child that has ended.
        self._effects = deque(
            effect
            for effect in self._effects
            if not (
                isinstance(effect, DrainChild | DumpStack | KillChild) and effect.number == number
            )
        )
        how = f"ended with exit code {code}" if code >= 0 else f"was killed by signal {-code}"
        is_expected = child.state == "killed" or child.blame is not None or code == 0
        if child.running:
            self._orphans[number] = _orphans(child, f"its process {how}")
        if self._stops or self._code:
            return
        if self._plan.is_reloading and child.is_unusable:
            return  # the next change of a source file starts the child
        if is_expected:
            if not (self._plan.is_draining and child.state == "working"):
                self._starts[number] = now_s
            return
        self._died(child, how, now_s)

    def _died(self, child: Child, how: str, now_s: float) -> None:
        self._deaths = 1 if child.running else self._deaths + 1  # a job that runs is progress
        delay_s = min(DELAY_MAX_S, FIRST_DELAY_S * 2 ** (self._deaths - 1))
        jobs = [job.id for job in child.running]
        shown = ", ".join(f"{job.id} ({job.task})" for job in child.running[:5])
        self._tell(
            "error",
            "child_died",
            f"process {child.number} {how}; it is replaced in {delay_s:g} s"
            + (f"; it ran {shown}" if jobs else ""),
            process=child.number,
            how=how,
            jobs=jobs,
            delay_s=delay_s,
        )
        self._starts[child.number] = now_s + delay_s
        if not self._was_ready and self._deaths >= DEATHS_MAX:
            self._tell(
                "error",
                "gave_up",
                f"{self._deaths} processes died before any was ready: the last {how}",
            )
            self._code = 1
            self._end_all(is_at_once=True)

    def changed(self, names: list[str], *, now_s: float) -> None:
        """Note that source files have changed: replace all children."""
        if self._stops or self._code:
            return
        shown = ", ".join(names[:3]) + (", …" if len(names) > 3 else "")
        self._tell("info", "reloading", f"{shown} changed: the processes are replaced", files=names)
        for number in range(1, self._plan.processes + 1):
            if number not in self._children:
                self._starts[number] = now_s
        for child in self._children.values():
            child.is_unusable = False  # a child that is about to end is replaced, too
            if child.state == "starting":
                self._kill(child)
            elif child.state not in ("dumping", "killed"):
                child.state, child.kill_s = "leaving", now_s + RELOAD_KILL_S
                self._effects.append(DrainChild(child.number))

    def stop(self, *, code: int = 0) -> None:
        """Drain all children; at the second call kill them, and end with the exit code."""
        self._stops += 1
        if self._stops == 1:
            self._tell("info", "stopping", "stopping: running jobs finish; a second signal kills")
            self._effects.append(Announce("STOPPING=1"))
            self._end_all(is_at_once=False)
        elif self._stops == 2:
            self._code = code
            self._end_all(is_at_once=True)

    def _end_all(self, *, is_at_once: bool) -> None:
        for child in self._children.values():
            if child.state == "killed":
                continue
            if is_at_once or child.state == "starting":
                self._kill(child)
            elif child.state != "dumping":
                child.state = "leaving"
                self._effects.append(DrainChild(child.number))

    def _tell(self, level: Level, event: str, text: str, **facts: Any) -> None:
        self._effects.append(Tell(level, event, text, facts))


def _orphans(child: Child, died: str) -> tuple[Orphan, ...]:
    """Return the jobs of a dead child, each with the reason that its attempt gets."""
    to_blame, reason = child.blame or ("", died)
    return tuple(
        Orphan(
            queue=job.queue,
            claim_id=job.claim_id,
            attempt=job.attempt,
            task=job.task,
            reason=reason
            if to_blame in ("", job.id)
            else f"its process was killed because of {to_blame}",
            is_to_blame=to_blame in ("", job.id),
        )
        for job in child.running
    )
