"""Checks of names and numbers from users; names never become file names."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable

from millstream.errors import InvalidInput, InvalidName
from millstream.limits import NAME_CHARS_MAX, QUEUE_NAME_CHARS_MAX
from millstream.numbers import NUMBER_MAX as NUMBER_MAX

ROOM = "room:"
"""The prefix of the names of rooms' logs."""

PRIVATE = ("queue:", "queue-later:", ROOM, "millstream:")
"""The prefixes of log names that are reserved for queues, rooms and the store."""

SEARCHED_MAX = 1_000
"""Most names among which a similar name is searched for: the search takes a few milliseconds."""


def check_integer(what: str, number: int) -> int:
    """Return a whole number from 0 to 2^63 - 1; raise for other values, including booleans."""
    if type(number) is not int or not 0 <= number <= NUMBER_MAX:
        raise InvalidInput(f"{what} is a whole number from 0 to 2^63 - 1, not {number!r}")
    return number


def check_text(what: str, text: str) -> str:
    """Return text that is valid Unicode; raise otherwise."""
    if not isinstance(text, str):
        raise InvalidInput(f"{what} is text, not {type(text).__name__}")
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise InvalidInput(f"{what} is not valid Unicode: {error}") from error
    return text


def check_name(name: str, what: str = "log") -> str:
    """Return a valid name: 1 to 255 characters (243 for a queue) without control characters."""
    if not isinstance(name, str):
        raise InvalidName(f"a {what} name is text, not {type(name).__name__}", name=repr(name))
    chars_max = QUEUE_NAME_CHARS_MAX if what == "queue" else NAME_CHARS_MAX
    if not 1 <= len(name) <= chars_max:
        raise InvalidName(
            f"a {what} name has 1 to {chars_max} characters, not {len(name)}", name=name[:300]
        )
    if not name.isprintable() and any(unicodedata.category(c) in ("Cc", "Cs") for c in name):
        raise InvalidName(
            f"a {what} name has no control characters: {name!r}",
            name=name.encode("utf-8", "backslashreplace").decode(),
        )
    return name


def similar_name(name: str, names: Iterable[str]) -> str | None:
    """Return the name that is most similar to a mistyped name; None if no name is similar.

    Capitals do not count. Names of the logs of queues and rooms are left out.
    """
    from difflib import get_close_matches  # only mistakes pay for it

    by_letters = {public.casefold(): public for public in names if not public.startswith(PRIVATE)}
    close = get_close_matches(name.casefold(), by_letters, 1)
    return by_letters[close[0]] if close else None


def did_you_mean(key: str, known: Iterable[str]) -> str:
    """Return the end of a message about an unknown key: a similar key, or all keys."""
    from difflib import get_close_matches  # only mistakes pay for it

    names, plain = [*known], key.removesuffix("_ms").removesuffix("_s")
    close = [plain] if plain in names else get_close_matches(key, names, 1)
    close = close or get_close_matches(plain, names, 1)
    return f": did you mean {close[0]!r}?" if close else f"; it has {', '.join(names)}"
