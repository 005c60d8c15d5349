"""The context of a running job: what a task can ask about its job, and say about it."""

from __future__ import annotations

from contextvars import ContextVar
from datetime import datetime

from millstream.errors import InvalidInput
from millstream.header import Headers
from millstream.jobs.job_ids import job_id_of
from millstream.limits import Limits
from millstream.queue.model.message import Message
from millstream.worker.handler import HandlerTransaction


class JobContext:
    """The running job, as its task sees it.

    A task gets it by a parameter with this annotation, or from `jobs.current()`.
    """

    __slots__ = ("_cancelled", "_limits", "_message", "_tx", "deadline", "task")

    def __init__(
        self, task: str, message: Message, limits: Limits, deadline: datetime | None
    ) -> None:
        self.task = task
        """The name of the task."""
        self.deadline = deadline
        """When this attempt must have ended; None without a timeout."""
        self._message = message
        self._limits = limits
        self._tx: HandlerTransaction | None = None
        self._cancelled = False

    @property
    def id(self) -> str:
        """The id of the job."""
        return job_id_of(self._message.queue, self._message.id or 0)

    @property
    def attempt(self) -> int:
        """The number of this attempt, counted from 1."""
        return self._message.attempt

    @property
    def headers(self) -> Headers:
        """The headers of the job's message."""
        return self._message.headers

    @property
    def cancelled(self) -> bool:
        """Whether the job is to end: it was cancelled, or its time is over."""
        return self._cancelled

    @property
    def tx(self) -> HandlerTransaction:
        """The transaction of the job: its steps commit with the acknowledgement, or not at all."""
        if self._tx is None:
            self._tx = HandlerTransaction(self._limits)
        return self._tx

    @property
    def begun_tx(self) -> HandlerTransaction | None:
        """The transaction, if the task has used it."""
        return self._tx

    def cancel(self) -> None:
        """Ask the task to end."""
        self._cancelled = True


CURRENT: ContextVar[JobContext] = ContextVar("millstream_job")


def current_job() -> JobContext:
    """Return the context of the job that runs here."""
    try:
        return CURRENT.get()
    except LookupError:
        raise InvalidInput(
            "no job runs here: jobs.current() is for functions that a worker runs as a job"
        ) from None
