"""The errors of AWS's protocols: each with the code of either protocol, a status and a message. Pure.

Clients of the JSON protocol see the name of a shape, and clients of the older Query protocol see a
code. Where the two differ, an answer in JSON carries both, because programs compare with the older.
"""

from __future__ import annotations

from typing import Any

from millstream import errors

SQS_PREFIX = "AWS.SimpleQueueService."

_QUERY_CODES = {
    "QueueDoesNotExist": SQS_PREFIX + "NonExistentQueue",
    "QueueNameExists": "QueueAlreadyExists",
    **{
        name: SQS_PREFIX + name
        for name in (
            "BatchEntryIdsNotDistinct",
            "BatchRequestTooLong",
            "EmptyBatchRequest",
            "InvalidBatchEntryId",
            "MessageNotInflight",
            "PurgeQueueInProgress",
            "QueueDeletedRecently",
            "TooManyEntriesInBatchRequest",
            "UnsupportedOperation",
        )
    },
    "InvalidParameterValueException": "InvalidParameterValue",
    "MissingRequiredParameterException": "MissingParameter",
    "UnknownOperationException": "InvalidAction",
    "AccessDeniedException": "AccessDenied",
    "InternalFailure": "InternalError",
    "ThrottlingException": "RequestThrottled",
}
"""The code of the Query protocol, where it is not the name of the shape."""


_ALWAYS_400 = frozenset({"OverLimit", "PurgeQueueInProgress"})
"""Errors whose status in the JSON protocol is 400, and 403 in the Query protocol."""


class SqsError(Exception):
    """A refused request. `code` is the name in the JSON protocol."""

    def __init__(self, code: str, message: str, status: int = 400) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.status = status

    @property
    def query_code(self) -> str:
        """The code in the Query protocol."""
        return _QUERY_CODES.get(self.code, self.code)

    @property
    def json_status(self) -> int:
        """The status in the JSON protocol."""
        return 400 if self.status == 404 or self.code in _ALWAYS_400 else self.status

    @property
    def is_fault_of_sender(self) -> bool:
        """Whether the request was wrong, and not the server."""
        return self.status < 500

    @property
    def fault(self) -> str:
        """`Sender` or `Receiver`, as the Query protocol says."""
        return "Sender" if self.is_fault_of_sender else "Receiver"


def no_queue() -> SqsError:
    """Return the error for a missing queue."""
    return SqsError(
        "QueueDoesNotExist",
        "The specified queue does not exist or you do not have access to it.",
    )


def missing(parameter: str) -> SqsError:
    """Return the error for a missing parameter."""
    return SqsError(
        "MissingRequiredParameterException",
        f"The request must contain the parameter {parameter}.",
    )


def invalid(message: str) -> SqsError:
    """Return the error for a wrong value of a parameter."""
    return SqsError("InvalidParameterValueException", message)


def invalid_value(parameter: str, value: Any, reason: str) -> SqsError:
    """Return the error for a wrong value of a named parameter, with the reason."""
    return invalid(f"Value {value} for parameter {parameter} is invalid. Reason: {reason}")


def unsupported(message: str) -> SqsError:
    """Return the error for a request that the kind of the queue does not allow."""
    return SqsError("UnsupportedOperation", message)


def bad_receipt(handle: str) -> SqsError:
    """Return the error for a receipt handle that no receive has returned."""
    text = handle if len(handle) <= 100 else f"{handle[:100]}…"
    return SqsError(
        "ReceiptHandleIsInvalid",
        f'The input receipt handle "{text}" is not a valid receipt handle.',
        404,
    )


def is_misfit(error: errors.MillstreamError) -> bool:
    """Return whether a message was refused because it does not fit the schema of its queue or log."""
    return isinstance(error, errors.InvalidInput) and {"version", "field", "index"} <= {*error.data}


def aws_error_of(error: errors.MillstreamError) -> SqsError:
    """Return the error of a refused command in the words of AWS."""
    if isinstance(error, errors.Unauthenticated):
        code = error.data.get("code") or "InvalidClientTokenId"
        return SqsError(str(code), error.message, 403)
    if isinstance(error, errors.Denied):
        return SqsError("AccessDeniedException", error.message, 403)
    if isinstance(error, errors.NotFound):
        return no_queue()
    if isinstance(error, errors.Overloaded):
        return SqsError("ThrottlingException", error.message)
    if is_misfit(error):
        return SqsError("InvalidMessageContents", error.message)
    if isinstance(error, errors.InvalidInput):
        return invalid(error.message)
    if isinstance(error, errors.Conflict):
        return SqsError("ConflictException", error.message, 409)
    return SqsError("ServiceUnavailable" if error.retry else "InternalFailure", error.message, 503)
