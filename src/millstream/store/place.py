"""What a caller may mean by the place of a store: a file, memory, or by mistake something else."""

from __future__ import annotations

import os
import re
from typing import Any

from millstream.errors import CannotOpen

IN_MEMORY = ":memory:"
"""A store that lives in this process, and ends with its handle."""

_HOST_AND_PORT = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9.-]+):[0-9]{1,5}/?")


_SCHEMES = ("http", "https", "ws", "wss")


def is_address(path: Any) -> bool:
    """Whether a caller means a server rather than a file."""
    return isinstance(path, str) and "://" in path and path.partition("://")[0].lower() in _SCHEMES


def check_file(path: str | os.PathLike[str]) -> None:
    """Refuse what was meant as the address of a server; a file that is there is a file."""
    name = str(path)
    if os.path.exists(path):  # False as well where it cannot be reached: that is told later
        return
    if "://" in name:
        raise CannotOpen(
            f"{name.rpartition('@')[2]}: a store is a file, or a server at http://… or https://…",
            path=name.rpartition("@")[2],
        )
    if _HOST_AND_PORT.fullmatch(name):
        raise CannotOpen(
            f"{name} looks like the address of a server: write http://{name}; "
            f"for a file of that name write ./{name}",
            path=name,
        )


def check_there(path: str | os.PathLike[str], advice: str) -> None:
    """Refuse a file that is not there, or is empty, where no store is to be made."""
    try:
        there = os.stat(path).st_size > 0
    except (FileNotFoundError, NotADirectoryError):
        there = False
    if not there:
        name = os.fspath(path)
        raise CannotOpen(f"there is no store at {name}{advice}", path=name)
