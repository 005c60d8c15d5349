"""Results and errors of jobs as JSON: what a worker stores with the end of a job."""

from __future__ import annotations

from typing import Any, get_type_hints

import msgspec
from msgspec import Struct

from millstream.errors import InvalidInput
from millstream.jobs.arguments import SUPPORTED, has_no_number
from millstream.worker.reason import reason_of

RESULT_BYTES_MAX = 1_000_000
CANCELLED_KIND = "JobCancelled"
"""The class of the error of a cancelled member of a group."""

_encoder = msgspec.json.Encoder()


class JobError(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The error of an attempt: class, text and bounded traceback."""

    kind: str
    message: str = ""
    trace: str = ""
    module: str = ""
    """The module of the class."""

    @property
    def text(self) -> str:
        """The class and the text of the error, in one line."""
        return (
            f"{self.kind}: {self.message}"
            if self.kind and self.message
            else self.kind or self.message
        )


class UnencodableResult(Exception):
    """A task returned a value that JSON cannot carry; nothing of it is stored."""


def encode_result(task: str, result: Any) -> bytes | None:
    """Return a result as JSON, or None for a task without a result."""
    if result is None:
        return None
    try:
        encoded = _encoder.encode(result)
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        raise UnencodableResult(
            f"task {task!r} returned a value ({type(result).__name__}) which cannot be encoded as JSON: "
            f"{error}; {SUPPORTED}"
        ) from None
    if has_no_number(result, encoded):
        raise UnencodableResult(
            f"task {task!r} returned NaN or an infinite number, which JSON does not have"
        )
    if len(encoded) > RESULT_BYTES_MAX:
        raise UnencodableResult(
            f"task {task!r} returned {len(encoded):,} bytes of JSON; a result has at most "
            f"{RESULT_BYTES_MAX:,} bytes: store it elsewhere and return its name"
        )
    return encoded


def encode_error(error: BaseException) -> bytes:
    """Return an error as JSON, with the last frames of its traceback."""
    summary, _, trace = reason_of(error).partition("\n")
    kind = type(error).__name__
    message = summary.removeprefix(f"{kind}: ")
    module = type(error).__module__
    return _encoder.encode(JobError(kind=kind, message=message, trace=trace, module=module))


def decode_error(encoded: bytes | None, reason: str) -> JobError:
    """Return a stored error; from the reason of the queue, if a worker has stored no error."""
    if encoded is not None:
        try:
            return msgspec.json.decode(encoded, type=JobError)
        except msgspec.MsgspecError:
            pass  # another program ended the message with a reason
    summary, _, trace = reason.partition("\n")
    return JobError(kind="", message=summary, trace=trace)


class ResultType:
    """Decodes the results of one task by the annotation of its return value."""

    def __init__(self, function: Any = None) -> None:
        self._decoder: msgspec.json.Decoder[Any] = msgspec.json.Decoder()
        try:
            annotation = get_type_hints(function).get("return", Any) if function else Any
            self._decoder = msgspec.json.Decoder(annotation)
        except (TypeError, NameError):
            pass  # an annotation that JSON cannot check: the result is plain JSON

    def decode(self, encoded: bytes | None) -> Any:
        """Return a result."""
        if encoded is None:
            return None
        try:
            return self._decoder.decode(encoded)
        except msgspec.ValidationError as error:
            raise InvalidInput(f"the stored result does not fit the task: {error}") from None
