"""Places of stores: a file, memory, a bucket or a server, and the texts that look like them."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from typing import Any

from millstream.errors import CannotOpen, InvalidInput

IN_MEMORY = ":memory:"
"""The place of a store that lives in this process, and ends with its handle."""

_HOST_AND_PORT = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9.-]+):[0-9]{1,5}/?")


_SCHEMES = ("http", "https", "ws", "wss")
_BUCKETS = ("s3", "gs", "az", "file", "memory")


def is_address(path: Any) -> bool:
    """True if a path is the address of a server."""
    return _scheme_of(path) in _SCHEMES


def is_bucket(path: Any) -> bool:
    """True if a path is an address on object storage: `s3://`, `gs://`, `az://`, or a stand-in."""
    return _scheme_of(path) in _BUCKETS


def _scheme_of(path: Any) -> str:
    return path.partition("://")[0].lower() if isinstance(path, str) and "://" in path else ""


def one_place(path: str | os.PathLike[str] | Sequence[str]) -> str | os.PathLike[str]:
    """Return a place as one value: join the addresses of several nodes by commas."""
    if isinstance(path, str | os.PathLike) or not isinstance(path, Sequence):
        return path
    if not path or not all(is_address(address) for address in path):
        raise InvalidInput(
            "several places are the addresses of the nodes of a cluster, such as "
            "['http://a:8080', 'http://b:8080']; a file is one path"
        )
    return ",".join(path)


def check_file(path: str | os.PathLike[str]) -> None:
    """Refuse a path that looks like an address; a file with that name is accepted."""
    name = str(path)
    if os.path.exists(path):  # also False for an unreachable path: opening fails on that later
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
    """Refuse a file that is missing or empty, for a caller that creates no store."""
    try:
        exists = os.stat(path).st_size > 0
    except (FileNotFoundError, NotADirectoryError):
        exists = False
    if not exists:
        name = os.fspath(path)
        raise CannotOpen(f"there is no store at {name}{advice}", path=name)
