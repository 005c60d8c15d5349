"""What both shells of a shift have in common: its options, its stats, and how it speaks.

A failed handler is logged with its traceback. Nothing of a message is logged but where it is.
"""

from __future__ import annotations

import logging

from millstream.queue.model.message import Message, QueueInfo, Reject, Retry
from millstream.queue.model.spec import no_queue
from millstream.worker.options import WorkerOptions
from millstream.worker.shift import Shift, WorkerStats

LOGGER = "millstream.worker"

_logger = logging.getLogger(LOGGER)


class Shell:
    """A worker without a way to wait: threads and tasks have their own."""

    def __init__(self, options: WorkerOptions) -> None:
        self._options = options
        self._shift: Shift | None = None
        self._stopped = False
        self._told = WorkerStats()

    @property
    def stats(self) -> WorkerStats:
        """How it goes, at this moment."""
        return WorkerStats() if self._shift is None else self._shift.stats

    @property
    def stopping(self) -> bool:
        """Whether it was told to stop; a long handler may look, and end early with `Retry`."""
        return self._stopped

    def _tell(self, shift: Shift) -> None:
        """Tell how it goes, unless an error of a hook may be what ends the worker."""
        hook = self._options.on_progress
        if hook is not None and shift.error is None and shift.stats != self._told:
            self._told = shift.stats
            hook(self._told)

    def _complain(self, shift: Shift, message: Message, error: BaseException) -> None:
        log_failure(message, error)
        if self._options.on_error is not None and shift.error is None:
            self._options.on_error(message, error)


def log_failure(message: Message, error: BaseException) -> None:
    """Log how a handler failed: what it did not expect with a traceback, what it decided without."""
    where = message.queue, message.claim_id, message.attempt
    if isinstance(error, Reject | Retry):
        what = "rejected" if isinstance(error, Reject) else "retried"
        _logger.info("handler_%s queue=%s claim_id=%d attempt=%d", what, *where)
    else:
        _logger.error("handler_failed queue=%s claim_id=%d attempt=%d", *where, exc_info=error)


def found(info: QueueInfo | None, name: str) -> QueueInfo:
    """How a queue stands that must exist."""
    if info is None:
        raise no_queue(name)
    return info


def is_empty(info: QueueInfo) -> bool:
    """Whether nothing waits, is delayed, or is in flight anywhere."""
    return not (info.available or info.unrouted or info.delayed or info.in_flight)
