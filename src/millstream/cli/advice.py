"""Advice: one line for every error, with what to do about it."""

from __future__ import annotations

from millstream.errors import (
    AlreadyExists,
    CannotOpen,
    CorruptionError,
    EndMoved,
    Fenced,
    Locked,
    MillstreamError,
    NotFound,
    OutcomeUnknown,
    OutOfSequence,
    Overloaded,
    Truncated,
    WriteFailed,
)

_ADVICE: dict[type[MillstreamError], str] = {
    EndMoved: "look at what was added, then repeat it with --expect-end {end}",
    OutOfSequence: "go on with --sequence {expected}, or begin anew under a higher --epoch",
    Fenced: "go on with --epoch {epoch} or a higher one",
    Truncated: "begin at {start}, or say --from earliest",
    NotFound: "`millstream log list` shows what there is",
    AlreadyExists: "choose another name",
    Locked: "try again once it is free",
    Overloaded: "try again",
    CorruptionError: "`millstream doctor` says what is lost",
    OutcomeUnknown: "look at the end of the log before you repeat it; under --producer and "
    "--sequence a repeat is harmless",
    WriteFailed: "nothing was stored; is the disk full or read-only?",
}

EXIT_FAILED = 1
EXIT_UNUSABLE = 2
"""The command line is wrong, or the store cannot be opened."""


def explain(error: MillstreamError) -> str:
    """What happened and what to do, in one line; a message with a semicolon says it already."""
    message = " ".join(str(error).split())
    if "; " in message:
        return message
    for kind in type(error).__mro__:
        advice = _ADVICE.get(kind)
        if advice is not None:
            break
    else:
        return message
    try:
        return f"{message}; {advice.format_map(error.data)}"
    except KeyError:
        return message


def exit_code(error: MillstreamError) -> int:
    """2 if there is nothing to work on, else 1."""
    return EXIT_UNUSABLE if isinstance(error, CannotOpen) else EXIT_FAILED
