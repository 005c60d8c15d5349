"""Opening for threads: from a path or an address to a session."""

from __future__ import annotations

import os
from typing import Any

from millstream.command import Session
from millstream.remote.address import is_address
from millstream.remote.opening import check_no_address_options, open_remote


def open_session(
    path: str | os.PathLike[str],
    *,
    token: str | None,
    ca: str | None,
    connect_timeout: float,
    retry_for: float,
    **of_files: Any,
) -> Session:
    """The session of the store in a file, or behind a server; each refuses the other's options."""
    if is_address(path):
        return open_remote(
            str(path),
            token=token,
            ca=ca,
            connect_timeout=connect_timeout,
            retry_for=retry_for,
            **of_files,
        )
    check_no_address_options(token=token, ca=ca)
    from millstream.embedded import EmbeddedSession, open_file  # clients of servers need no store

    return EmbeddedSession(open_file(path, **of_files))
