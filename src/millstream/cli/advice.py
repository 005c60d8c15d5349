"""Advice: one line for every error, with what to do about it."""

from __future__ import annotations

import re
from collections.abc import Mapping

from millstream.cli.declared import DeclaredField
from millstream.errors import (
    AlreadyExists,
    CannotOpen,
    CorruptionError,
    EndMoved,
    Fenced,
    InvalidFilter,
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


_ARGUMENT = re.compile(
    r"""(?<![\w'"`./\\?&-])([a-z]+(?:_[a-z]+)+(?![\w'"`/(=\\-]|\.\w)|[a-z_]+(?==\w))(=?)"""
)
"""An argument as the library writes it: `past_end`, `partitions=4`. What is quoted is none."""


def explain(error: MillstreamError, flags: Mapping[str, str] | None = None) -> str:
    """What happened and what to do, in one line; a message with a semicolon says it already.

    `flags` are the options by their names: what the library calls `past_end` is `--past-end` here.
    """
    message = " ".join(str(error).split())
    if flags and not isinstance(error, InvalidFilter):  # a filter has words of its own
        message = _ARGUMENT.sub(lambda found: _typed(found, flags), message)
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


def _typed(found: re.Match[str], flags: Mapping[str, str]) -> str:
    """An argument as it is typed here; what is no option stays as it is."""
    name, equals = found.groups()
    flag = flags.get(name) or flags.get(DeclaredField(name, str).option)
    return found[0] if flag is None else flag + (" " if equals else "")


def exit_code(error: MillstreamError) -> int:
    """2 if there is nothing to work on, else 1."""
    return EXIT_UNUSABLE if isinstance(error, CannotOpen) else EXIT_FAILED
