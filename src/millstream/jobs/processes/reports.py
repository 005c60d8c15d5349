"""Reports of a child process to its supervisor, as bytes on a pipe.

The opposite pipe has a single message: `DRAIN`. The end of that pipe means that the supervisor has died.
"""

from __future__ import annotations

import socket

from msgspec import Struct, field, msgpack

DRAIN = b"drain"
"""Asks a child to claim no more jobs, to finish its running jobs, and to end."""


class RunningJob(Struct, frozen=True, array_like=True):
    """A job that runs in a child."""

    id: str
    task: str
    queue: str
    claim_id: int
    attempt: int
    ran_s: float
    kill_in_s: float | None = None
    """The seconds until the supervisor kills the process; None for never."""
    kill_reason: str = ""
    """Why the process is killed then: the job is cancelled, or over its timeout."""


class TaskFigures(Struct, array_like=True):
    """The counters of one task. `wait_s` and `run_s` are sums over all attempts that began."""

    started: int = 0
    done: int = 0
    failed: int = 0
    retried: int = 0
    cancelled: int = 0
    wait_s: float = 0.0
    run_s: float = 0.0

    def add(self, other: TaskFigures) -> None:
        """Add the counters of the same task in another process."""
        self.started += other.started
        self.done += other.done
        self.failed += other.failed
        self.retried += other.retried
        self.cancelled += other.cancelled
        self.wait_s += other.wait_s
        self.run_s += other.run_s


class Ready(Struct, frozen=True, tag="ready"):
    """The child has imported the application, and claims jobs from now on."""


class Unusable(Struct, frozen=True, tag="unusable"):
    """The child cannot use the application, for a reason that no restart mends."""

    reason: str


class ChildLeaving(Struct, frozen=True, tag="leaving"):
    """The child claims no more jobs, and ends after its running jobs."""

    reason: str


class Beat(Struct, frozen=True, tag="beat"):
    """A heartbeat: the child is alive."""

    progress: int
    """A number that changes whenever a job begins, ends, or reports its progress."""
    memory_bytes: int
    running: tuple[RunningJob, ...] = ()
    figures: dict[str, TaskFigures] = field(default_factory=dict)
    """The counters of each task since the last heartbeat."""


Report = Ready | Unusable | ChildLeaving | Beat

encode_report = msgpack.Encoder().encode
decode_report = msgpack.Decoder(Report).decode


class Orphan(Struct, frozen=True, array_like=True):
    """A job whose process died. The replacement of the process ends the attempt."""

    queue: str
    claim_id: int
    attempt: int
    task: str
    reason: str
    is_to_blame: bool
    """Whether the process died because of this job. The attempt of such a job counts."""


class ChildPlan(Struct, frozen=True, kw_only=True):
    """The parameters of a child process."""

    factory: str
    """`MODULE:FUNCTION`, which makes the worker from the plan and a journal."""
    application: str
    """`MODULE:NAME` of the user's jobs."""
    folder: str
    """The folder that comes first on `sys.path`."""
    store: str | None = None
    """The store of the jobs; None for the store of the application."""
    token: str | None = None
    ca: str | None = None
    concurrency: int = 1
    queues: tuple[tuple[str, int], ...] = ()
    """Names and weights; empty for all queues of the application."""
    lease_s: float | None = None
    drain: bool = False
    max_jobs: int | None = None
    max_memory_bytes: int | None = None
    kill_after_s: float = 10.0
    """How long a job may go on after its timeout, or after its cancellation."""
    beat_s: float = 0.5
    is_json: bool = True
    number: int = 1
    orphans: tuple[Orphan, ...] = ()
    mark: str = ""
    """A suffix of the consumer names of all children, unique to this worker."""
    running_path: str = ""
    """The file in which the child notes its running jobs."""
    dead: tuple[str, ...] = ()
    """The names of dead children, as consumers. The child gives back what they had claimed."""


def consumer_of(pid: int, mark: str) -> str:
    """Return the name under which a child claims jobs."""
    return f"{socket.gethostname()[:100]}:{pid}:{mark}"


encode_plan = msgpack.Encoder().encode
decode_plan = msgpack.Decoder(ChildPlan).decode
