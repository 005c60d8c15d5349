"""The options of a worker, checked; the same for threads and coroutines."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from millstream.errors import InvalidInput
from millstream.queue.model.message import Message
from millstream.queue.model.spec import QueueSpec, lease_ms_of
from millstream.record import Seconds, to_ms
from millstream.worker.effects import Complain
from millstream.worker.handler import Handler, check_handler, is_async, log_failure
from millstream.worker.shift import ShiftPlan
from millstream.worker.stats import WorkerStats

CONCURRENCY_MAX = 1_000


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerOptions:
    """The handler and how to run it. Raises `InvalidInput` for impossible values."""

    handler: Handler
    concurrency: int = 1
    batch: int | None = None
    lease: Seconds | None = None
    time_limit: Seconds | None = None
    on_error: Callable[[Message, BaseException], None] | None = None
    on_progress: Callable[[WorkerStats], None] | None = None
    adapts: bool = False
    """Whether `batch` is the most that a claim takes, and short work is claimed in larger batches."""
    log: Callable[[Complain], None] = log_failure
    consumer: str | None = None
    """The name of the worker in attempts; None for the host and the process."""

    def __post_init__(self) -> None:
        check_handler(self.handler)
        for name, hook in (("on_error", self.on_error), ("on_progress", self.on_progress)):
            if hook is not None and is_async(hook):
                raise InvalidInput(f"{name} must be a plain function, got a coroutine function")
        if not 1 <= self.concurrency <= CONCURRENCY_MAX:
            raise InvalidInput(
                f"concurrency must be from 1 to {CONCURRENCY_MAX:,} handlers, "
                f"got {self.concurrency:,}"
            )
        if self.batch is not None and self.batch < 1:
            raise InvalidInput(f"batch must be at least 1 message, got {self.batch:,}")
        lease_ms_of(self.lease)
        if self.time_limit is not None and to_ms(self.time_limit) < 1:
            raise InvalidInput(f"time_limit must be at least 1 ms, got {self.time_limit!r}")

    @property
    def is_async(self) -> bool:
        """Whether the handler is a coroutine function."""
        return is_async(self.handler)

    @property
    def limit_s(self) -> float | None:
        """Return how long a handler may take."""
        return None if self.time_limit is None else to_ms(self.time_limit) / 1000

    def plan(self, spec: QueueSpec, *, drain: bool, wait_s: float) -> ShiftPlan:
        """Return the plan of the worker's shift on a queue."""
        lease_ms = spec.lease_ms if self.lease is None else to_ms(self.lease)
        return ShiftPlan(
            concurrency=self.concurrency,
            batch=self.batch or 1,
            lease_s=max(1, min(lease_ms, spec.lease_max_ms)) / 1000,
            attempts_max=spec.max_attempts,
            overdue_s=None if self.is_async else self.limit_s,
            can_cancel=self.is_async,
            drain=drain,
            wait_s=wait_s,
            adapts=self.adapts,
        )
