"""Advice: errors as single lines, with the next step for the user."""

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
    EndMoved: "check the new records, then repeat with --expect-end {end}",
    OutOfSequence: "continue with --sequence {expected}, or start again under a higher --epoch",
    Fenced: "continue with --epoch {epoch} or higher",
    Truncated: "start at {start}, or use --from earliest",
    NotFound: "`millstream log list` lists the logs",
    AlreadyExists: "choose another name",
    Locked: "try again later",
    Overloaded: "try again",
    CorruptionError: "`millstream doctor` shows what is lost",
    OutcomeUnknown: "check the end of the log before you repeat it; with --producer and "
    "--sequence a repeat is harmless",
    WriteFailed: "nothing was stored; is the disk full or read-only?",
}

EXIT_FAILED = 1
EXIT_UNUSABLE = 2
"""The command line is invalid, or the store cannot be opened."""


_ARGUMENT = re.compile(
    r"""(?<![\w'"`./\\?&-])(?:
    (?P<bare>[a-z]+(?:_[a-z]+)+)(?![\w'"`/(=\\-]|\.\w)
    |(?P<name>[a-z_]+)(?P<value>=True\b|=(?!['"=]))
    )""",
    re.VERBOSE,
)
"""An argument as the library writes it: `past_end`, `partitions=4`, `create=True`, `token=`; quoted words
are excluded."""


def explain(error: MillstreamError, flags: Mapping[str, str] | None = None) -> str:
    """Return one line that says what happened and what to do; a message with a semicolon is
    complete.

    `flags` maps parameter names to options: the library's `past_end` is shown as `--past-end`.
    """
    message = " ".join(str(error).split())
    if flags and not isinstance(error, InvalidFilter):  # a filter may contain such words
        message = _ARGUMENT.sub(lambda match: _typed(match, flags), message)
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


def _typed(match: re.Match[str], flags: Mapping[str, str]) -> str:
    """Return an argument as the option that is typed; other words stay."""
    name = match["bare"] or match["name"]
    flag = flags.get(name) or flags.get(DeclaredField(name, str).option)
    if flag is None:
        return match[0]
    has_value = match["value"] == "=" and match.string[match.end() : match.end() + 1].isalnum()
    return f"{flag} " if has_value else flag


def exit_code(error: MillstreamError) -> int:
    """Return 2 if the store cannot be opened, else 1."""
    return EXIT_UNUSABLE if isinstance(error, CannotOpen) else EXIT_FAILED
