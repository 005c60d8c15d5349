"""What threads do otherwise than coroutines: their worker brings threads of its own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

from millstream.command import Session
from millstream.queue.model.message import Message
from millstream.record import Seconds
from millstream.worker.options import WorkerOptions
from millstream.worker.supply import Supply
from millstream.worker.worker import Worker, WorkerStats


class Working:
    """The part of `Queue` that runs handlers."""

    _session: Session

    def worker(
        self,
        handler: Callable[..., Any],
        *,
        concurrency: int = 1,
        batch: int | None = None,
        lease: Seconds | None = None,
        time_limit: Seconds | None = None,
        on_error: Callable[[Message, BaseException], None] | None = None,
        on_progress: Callable[[WorkerStats], None] | None = None,
    ) -> Worker:
        """A worker that runs a handler, `handler(message)` or `handler(message, tx)`, on messages.

        It claims as many as can begin at once, or up to `batch`. A handler over its `time_limit` is
        cancelled if it is a coroutine; a thread cannot be stopped, so its lease is let go and its
        result is dropped.
        """
        return Worker(
            cast(Supply, self),
            self._session,
            WorkerOptions(
                handler=handler,
                concurrency=concurrency,
                batch=batch,
                lease=lease,
                time_limit=time_limit,
                on_error=on_error,
                on_progress=on_progress,
            ),
        )
