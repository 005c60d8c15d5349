"""What a caller may mean by the place of a store: a file, memory, or by mistake something else."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from typing import Any

from millstream.errors import CannotOpen, InvalidInput

IN_MEMORY = ":memory:"
"""A store that lives in this process, and ends with its handle."""

_HOST_AND_PORT = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9.-]+):[0-9]{1,5}/?")


_SCHEMES = ("http", "https", "ws", "wss")
_BUCKETS = ("s3", "gs", "az", "file", "memory")


def is_address(path: Any) -> bool:
    """Whether a caller means a server rather than a file."""
    return _scheme_of(path) in _SCHEMES


def is_bucket(path: Any) -> bool:
    """Whether a caller means object storage: `s3://`, `gs://`, `az://`, or one of their stand-ins."""
    return _scheme_of(path) in _BUCKETS


def _scheme_of(path: Any) -> str:
    return path.partition("://")[0].lower() if isinstance(path, str) and "://" in path else ""


def one_place(path: str | os.PathLike[str] | Sequence[str]) -> str | os.PathLike[str]:
    """A place as one value: the addresses of several nodes become one text, with commas between."""
    if isinstance(path, str | os.PathLike) or not isinstance(path, Sequence):
        return path
    if not path or not all(is_address(one) for one in path):
        raise InvalidInput(
            "several places are the addresses of the nodes of a cluster, such as "
            "['http://a:8080', 'http://b:8080']; a file is one path"
        )
    return ",".join(path)


def check_file(path: str | os.PathLike[str]) -> None:
    """Refuse what was meant as the address of a server; a file that is there is a file."""
    name = str(path)
    if os.path.exists(path):  # False as well where it cannot be reached: that is told later
        return
    if "://" in name:
        raise CannotOpen(
            f"{name.rpartition('@')[2]}: a store is a file, a server at http://… or https://…, or "
            "object storage at s3://…, gs://… or az://…",
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
