"""Requests as a socket reads them: a frame of bytes becomes commands, or is refused.

A frame of few bytes is taken apart on the event loop, a larger one in a thread. What is wrong with one
request is the answer to that request; what is wrong with the frame ends the connection.
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
"""A larger or heavier frame is taken apart in a thread: other connections do not wait for it."""

UNWEIGHED_BYTES_MAX = 8 * 1024
"""A frame of so few bytes is light enough, whatever is in it."""

Request = tuple[int, Command[Any] | MillstreamError]
"""A request's number, and what it asks for; or why that is refused."""


class Violation(Exception):
    """Something after which a connection cannot go on: a close code, and why."""

    def __init__(self, code: int, reason: str) -> None:
        super().__init__(reason)
        self.code = code
        self.reason = reason


def is_small(data: bytes) -> bool:
    """Whether a frame may be taken apart on the event loop, since it takes little time."""
    if len(data) <= UNWEIGHED_BYTES_MAX:
        return True
    return len(data) <= INLINE_BYTES_MAX and weigh(data, INLINE_WEIGHT_MAX) <= INLINE_WEIGHT_MAX


def take_apart_weighed(data: bytes, limits: Limits) -> list[Request]:
    """Look how many objects a frame would become, before it becomes them."""
    if weigh(data) > WEIGHT_MAX:
        raise Violation(TOO_BIG, "a frame of too many parts; send less at once, or blocks")
    return checked(decode_at_once(lambda: decode_requests(data)), limits)


def checked(requests: list[tuple[int, Command[Any]]], limits: Limits) -> list[Request]:
    """Requests whose records are within the limits, and refusals of the others."""
    found: list[Request] = []
    for number, command in requests:
        try:
            check_records(command, limits)
            found.append((number, command))
        except MillstreamError as error:
            # Its traceback would keep the frame's requests, in a circle.
            found.append((number, error.with_traceback(None)))
    return found
