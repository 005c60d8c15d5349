"""The options of a task, checked when the decorator runs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from millstream.errors import InvalidInput
from millstream.jobs.key_limits import KeyLimits, limits_of
from millstream.log.model.names import check_name
from millstream.queue.model.backoff import Backoff
from millstream.queue.model.spec import (
    ATTEMPTS_MAX,
    DAY_S,
    DEDUP_WINDOW_S_MAX,
    PRIORITY_MAX,
    QueueSpec,
    altered,
)
from millstream.record import Seconds, to_ms

BackoffLike = Backoff | Seconds | Sequence[Seconds]
"""The waits between attempts: a rule, always the same wait, or a list of waits."""

UNIQUE_STATES = ("waiting", "scheduled", "running")
"""The states in which a job may keep other jobs with the same key away."""

PRIORITY_HEADER = "job-priority"
UNIQUE_HEADER = "job-unique"
QUEUE = "jobs"
"""The queue of tasks that name no queue."""

RESULTS_S = 7.0 * DAY_S
"""How long ended jobs and their results are kept."""

ATTEMPTS = 5
"""Attempts of a task that names no number."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskOptions:
    """How the jobs of one task run."""

    queue: str
    max_attempts: int = ATTEMPTS
    retry_on: tuple[type[BaseException], ...] = (Exception,)
    """Exceptions after which a job is tried again. Another exception fails the job at once."""
    backoff: Backoff = field(default_factory=Backoff)
    timeout_s: float | None = None
    """How long one attempt may take."""
    kill_after_s: float | None = None
    """How long a job may go on in a process pool after its timeout or its cancel."""
    priority: int | None = None
    unique: frozenset[str] = frozenset()
    """The states in which a job keeps its repeats away; empty: jobs are not unique."""
    unique_by: tuple[str, ...] = ()
    """The parameters that make the key of a unique job; empty: all parameters."""
    unique_for_s: float | None = None
    """Instead of states: how long after its put a job keeps its repeats away."""
    limits: KeyLimits | None = None
    """The limits per key."""

    @property
    def is_unique(self) -> bool:
        """Whether a repeat of a job is dropped."""
        return bool(self.unique) or self.unique_for_s is not None

    def spec(self, results_s: float) -> QueueSpec:
        """Return the settings of the task's queue. Attempts are ended by workers, not by the queue."""
        spec = QueueSpec(
            max_attempts=ATTEMPTS_MAX,
            priority_by=PRIORITY_HEADER,
            done_retention=results_s,
            keep_payloads=True,
        )
        if self.limits is not None:
            spec = altered(spec, self.limits.settings())
        if self.unique_for_s is not None:
            return altered(spec, {"dedup_by": UNIQUE_HEADER, "dedup_window": self.unique_for_s})
        if self.unique:
            return altered(spec, {"dedup_by": UNIQUE_HEADER, "dedup_while": _hold(self.unique)})
        return spec


def options_of(
    task: str,
    default_queue: str,
    *,
    queue: str | None,
    retry_on: type[BaseException] | Sequence[type[BaseException]],
    max_attempts: int,
    backoff: BackoffLike | None,
    timeout: Seconds | None,
    kill_after: Seconds | None,
    priority: int | None,
    unique: bool | str | Iterable[str],
    unique_by: str | Iterable[str],
    unique_for: Seconds | None,
    limits: Mapping[str, Any] | None,
) -> TaskOptions:
    """Return the options that a user wrote at a decorator; an error names the task and the option."""
    kinds: tuple[Any, ...]
    kinds = tuple(retry_on) if isinstance(retry_on, list | tuple) else (retry_on,)
    for kind in kinds:
        if not (isinstance(kind, type) and issubclass(kind, BaseException)):
            raise _wrong(task, "retry_on", "an exception class, or several", kind)
    if not _is_whole(max_attempts) or not 1 <= max_attempts <= ATTEMPTS_MAX:
        raise _wrong(task, "max_attempts", f"from 1 to {ATTEMPTS_MAX:,}", max_attempts)
    if priority is not None and not (_is_whole(priority) and 0 <= priority <= PRIORITY_MAX):
        raise _wrong(task, "priority", f"from 0 to {PRIORITY_MAX}", priority)
    timeout_s = None if timeout is None else to_ms(timeout, "timeout") / 1000
    if timeout_s is not None and timeout_s <= 0:
        raise _wrong(task, "timeout", "a number of seconds above 0", timeout)
    kill_after_s = None if kill_after is None else to_ms(kill_after, "kill_after") / 1000
    if kill_after_s is not None and kill_after_s < 0:
        raise _wrong(task, "kill_after", "a number of seconds from 0", kill_after)
    unique_for_s = None if unique_for is None else to_ms(unique_for, "unique_for") / 1000
    if unique_for_s is not None and not 0 < unique_for_s <= DEDUP_WINDOW_S_MAX:
        raise _wrong(task, "unique_for", "above 0 seconds and at most 7 days", unique_for)
    states = _unique_states(task, unique) if unique_for_s is None else frozenset()
    if unique_by and not states and unique_for_s is None:
        raise InvalidInput(f"task {task!r}: unique_by has no effect without unique or unique_for")
    key_limits = limits_of(task, limits)
    has_settings = bool(states) or unique_for_s is not None or key_limits is not None
    if queue is None:  # these options are settings of a queue, so the task has a queue of its own
        queue = f"{default_queue}.{task}" if has_settings else default_queue
    waits = {} if backoff is None else {"backoff": backoff}
    spec = altered(QueueSpec(), waits)
    spec.backoff.check()
    return TaskOptions(
        queue=check_name(queue, "queue"),
        max_attempts=max_attempts,
        retry_on=kinds,
        backoff=spec.backoff,
        timeout_s=timeout_s,
        kill_after_s=kill_after_s,
        priority=priority,
        unique=states,
        unique_by=(unique_by,) if isinstance(unique_by, str) else tuple(unique_by),
        unique_for_s=unique_for_s,
        limits=key_limits,
    )


def _unique_states(task: str, unique: Any) -> frozenset[str]:
    if isinstance(unique, bool):
        return frozenset(UNIQUE_STATES) if unique else frozenset()
    states = [unique] if isinstance(unique, str) else unique
    if not isinstance(states, Iterable) or not all(state in UNIQUE_STATES for state in states):
        expected = "True, or states of 'waiting', 'scheduled' and 'running'"
        raise _wrong(task, "unique", expected, unique)
    return frozenset(states)


def _hold(states: frozenset[str]) -> str:
    """Return the setting of a queue by which jobs in these states keep their repeats away."""
    if states == set(UNIQUE_STATES):
        return "running"
    if states == {"waiting", "scheduled"}:
        return "waiting"
    message_states = {"waiting": "available", "scheduled": "delayed", "running": "in_flight"}
    return ",".join(message_states[state] for state in UNIQUE_STATES if state in states)


def _is_whole(number: Any) -> bool:
    return isinstance(number, int) and not isinstance(number, bool)


def _wrong(task: str, option: str, expected: str, value: Any) -> InvalidInput:
    return InvalidInput(f"task {task!r}: {option} is {expected}, not {value!r:.100}")
