"""How a worker speaks: a failed handler is logged, with its traceback.

Nothing of a message is logged but where it is.
"""

from __future__ import annotations

import logging

from millstream.queue.model.message import Reject, Retry
from millstream.worker.effects import Complain

_logger = logging.getLogger("millstream.worker")


def log_failure(complaint: Complain) -> None:
    """Log how a handler failed, and what is next: an error with its traceback, a decision without."""
    message, error = complaint.message, complaint.error
    level, what = logging.ERROR, "failed"
    trace: BaseException | None = error
    if isinstance(error, Reject | Retry):
        level, trace = logging.INFO, None
        what = "rejected" if isinstance(error, Reject) else "retried"
    text = "handler_%s queue=%s claim_id=%d attempt=%d next=%s"
    facts = what, message.queue, message.claim_id, message.attempt, complaint.then
    _logger.log(level, text, *facts, exc_info=trace)
