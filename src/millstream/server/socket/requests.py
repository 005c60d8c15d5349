"""Requests as a socket reads them: a frame of bytes becomes commands, or is refused.

The event loop decodes small frames, a thread decodes large frames. An error in a request is the answer
to the request; an error in the frame ends the connection.
"""

from __future__ import annotations

from typing import Any

from millstream.command import Command
from millstream.errors import MillstreamError
from millstream.limits import Limits
from millstream.server.bounds import check_records
from millstream.server.frame_parts import WEIGHT_MAX, decode_at_once, weigh
from millstream.wire.commands import decode_requests

TOO_BIG = 1009

INLINE_BYTES_MAX = 256 * 1024
INLINE_WEIGHT_MAX = 20_000
"""A thread decodes larger and heavier frames, so that other connections do not wait."""

UNWEIGHED_BYTES_MAX = 8 * 1024
"""A smaller frame is light enough, whatever it holds."""

Request = tuple[int, Command[Any] | MillstreamError]
"""The number of a request, and its command or the error of its refusal."""


class Violation(Exception):
    """An error that ends a connection: a close code and a reason."""

    def __init__(self, code: int, reason: str) -> None:
        super().__init__(reason)
        self.code = code
        self.reason = reason


def is_small(data: bytes) -> bool:
    """Whether a frame is small enough to be decoded on the event loop."""
    if len(data) <= UNWEIGHED_BYTES_MAX:
        return True
    return len(data) <= INLINE_BYTES_MAX and weigh(data, INLINE_WEIGHT_MAX) <= INLINE_WEIGHT_MAX


def take_apart_weighed(data: bytes, limits: Limits) -> list[Request]:
    """Decode a frame after a check of how many objects it would become."""
    if weigh(data) > WEIGHT_MAX:
        raise Violation(TOO_BIG, "a frame of too many parts; send less at once, or blocks")
    return checked(decode_at_once(lambda: decode_requests(data)), limits)


def checked(requests: list[tuple[int, Command[Any]]], limits: Limits) -> list[Request]:
    """Return the requests, with refusals for records beyond the limits."""
    checked_requests: list[Request] = []
    for number, command in requests:
        try:
            check_records(command, limits)
            checked_requests.append((number, command))
        except MillstreamError as error:
            # The traceback would keep the requests of the frame alive, in a cycle.
            checked_requests.append((number, error.with_traceback(None)))
    return checked_requests
