"""The context of a running job: facts for the task, and the reports of the task."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Generator
from contextvars import ContextVar
from datetime import datetime
from typing import Any

from millstream.command import Transact
from millstream.errors import InvalidInput
from millstream.header import Headers
from millstream.jobs.job_ids import job_id_of
from millstream.jobs.job_progress import JobProgress, encode_progress, progress_of
from millstream.jobs.output import append_chunk, begin_output
from millstream.limits import Limits
from millstream.log.commands import Append
from millstream.queue.commands import NoteProgress
from millstream.queue.model.message import Message
from millstream.worker.handler import HandlerTransaction


class AlreadySent:
    """An awaitable that is done, because the call of a plain function has waited."""

    def __await__(self) -> Generator[None, None, None]:
        yield from ()


SENT = AlreadySent()
Send = Callable[[Append | Transact | NoteProgress], Awaitable[None]]
"""Executes a command of the running job."""


class JobContext:
    """The running job, for the function of the task.

    A task gets it by a parameter with this annotation, or from `jobs.current()`.
    """

    __slots__ = (
        "_cancelled",
        "_progress",
        "_send",
        "_tx",
        "deadline",
        "has_output",
        "is_cancel_requested",
        "keep_s",
        "limits",
        "message",
        "task",
    )

    def __init__(
        self,
        task: str,
        message: Message,
        limits: Limits,
        deadline: datetime | None,
        *,
        keep_s: float,
        send: Send | None = None,
    ) -> None:
        self.task = task
        """The name of the task."""
        self.deadline = deadline
        """The end of this attempt's time, or None for a task without a timeout."""
        self.message = message
        """The message of the job, as its worker claimed it."""
        self.limits = limits
        self.keep_s = keep_s
        """How long the output is kept."""
        self.has_output = False
        """Whether this attempt has output."""
        self._send = send
        self._tx: HandlerTransaction | None = None
        self._progress: JobProgress | None = None
        self._cancelled = False
        self.is_cancel_requested = False
        """Whether a caller cancelled the job during this attempt."""

    @property
    def id(self) -> str:
        """The id of the job."""
        return job_id_of(self.message.queue, self.message.id or 0)

    @property
    def attempt(self) -> int:
        """The number of this attempt, counted from 1."""
        return self.message.attempt

    @property
    def headers(self) -> Headers:
        """The headers of the job's message."""
        return self.message.headers

    @property
    def cancelled(self) -> bool:
        """Whether the task should end: the job was cancelled, or the attempt is overdue."""
        return self._cancelled

    @property
    def tx(self) -> HandlerTransaction:
        """The transaction of the job: its steps commit with the acknowledgement, or not at all."""
        if self._tx is None:
            self._tx = HandlerTransaction(self.limits)
        return self._tx

    def emit(self, chunk: Any) -> Awaitable[None]:
        """Add a chunk to the output of the job: bytes, text, or what JSON can express.

        `handle.stream()` reads it. In a plain function the chunk is durable when the call returns. A
        coroutine must await the call.
        """
        if self._send is None:
            raise InvalidInput("this job cannot write output: no worker runs it")
        command: Append | Transact
        command = append_chunk(self.id, self.attempt, chunk, self.limits)
        if not self.has_output:
            command = begin_output(command, self.id, self.keep_s, self.limits)
        self.has_output = True
        return self._send(command)

    def progress(self, fraction: float, text: str = "") -> Awaitable[None]:
        """Note how far the job has come, from 0 to 1, for `handle.progress()`.

        Each change is a commit; a step of less than one percent with the same text is left out. A
        coroutine should await the call.
        """
        progress = progress_of(fraction, text)
        before, self._progress = self._progress, progress
        if before is not None and before.text == text and abs(before.fraction - fraction) < 0.01:
            self._progress = before
            return SENT
        if self._send is None:
            return SENT
        claims = [(self.message.claim_id, 1, self.message.attempt)]
        return self._send(NoteProgress(self.message.queue, claims, encode_progress(progress)))

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
