"""Results: answers of a server as the values that callers get."""

from __future__ import annotations

from typing import TypeVar

import msgspec
from msgspec import Raw

from millstream.command import Command
from millstream.errors import MillstreamError
from millstream.wire import commands as wire

T = TypeVar("T")


def result_of(command: Command[T], answer: Raw) -> T:
    """Decode an answer as the result type of its command."""
    try:
        return wire.decode_result(command, answer)
    except msgspec.MsgspecError as error:
        raise MillstreamError(
            f"the server carried out {type(command).__name__}, but its answer cannot be read: "
            f"{error}; client and server should be of the same version"
        ) from error
