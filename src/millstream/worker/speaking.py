"""How a worker speaks: a failed handler is logged, with its traceback.

Nothing of a message is logged but where it is.
"""

from __future__ import annotations

import logging

from millstream.queue.model.message import Message, Reject, Retry

_logger = logging.getLogger("millstream.worker")


def log_failure(message: Message, error: BaseException) -> None:
    """Log how a handler failed: what it did not expect with a traceback, what it decided without."""
    where = message.queue, message.claim_id, message.attempt
    if isinstance(error, Reject | Retry):
        what = "rejected" if isinstance(error, Reject) else "retried"
        _logger.info("handler_%s queue=%s claim_id=%d attempt=%d", what, *where)
    else:
        _logger.error("handler_failed queue=%s claim_id=%d attempt=%d", *where, exc_info=error)
