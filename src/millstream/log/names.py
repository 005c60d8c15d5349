"""Names of logs, cursors and producers: checked once, here; they never become file names."""

from __future__ import annotations

import unicodedata

from millstream.errors import InvalidName
from millstream.limits import NAME_CHARS_MAX


def check_name(name: str, what: str = "log") -> str:
    """1 to 255 characters of valid Unicode, none of them a control character."""
    if not isinstance(name, str):
        raise InvalidName(f"a {what} name is text, not {type(name).__name__}", name=repr(name))
    if not 1 <= len(name) <= NAME_CHARS_MAX:
        raise InvalidName(
            f"a {what} name has 1 to {NAME_CHARS_MAX} characters, not {len(name)}", name=name[:300]
        )
    if not name.isprintable() and any(unicodedata.category(c) in ("Cc", "Cs") for c in name):
        raise InvalidName(
            f"a {what} name has no control characters: {name!r}",
            name=name.encode("utf-8", "backslashreplace").decode(),
        )
    return name
