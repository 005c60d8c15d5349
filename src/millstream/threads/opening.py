"""Opening for threads: from a path or an address to a session."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

from millstream.command import Session
from millstream.engine.place import one_place
from millstream.engine.protocol import Mode
from millstream.remote.address import is_address
from millstream.remote.opening import check_no_address_options, open_remote


def open_session(
    path: str | os.PathLike[str] | Sequence[str],
    *,
    mode: Mode,
    create: bool,
    token: str | None,
    ca: str | None,
    connect_timeout: float,
    retry_for: float,
    read_level: str,
    **of_files: Any,
) -> Session:
    """Return the session of the store in a file, or behind a server; each refuses the other's options."""
    place = one_place(path)
    if is_address(place):
        return open_remote(
            str(place),
            token=token,
            ca=ca,
            connect_timeout=connect_timeout,
            retry_for=retry_for,
            read_level=read_level,
            **of_files,
        )
    check_no_address_options(token=token, ca=ca, read_level=read_level)
    from millstream.embedded.session import (  # clients of servers need no store
        EmbeddedSession,
        open_file,
    )

    return EmbeddedSession(open_file(place, mode=mode, create=create, **of_files))
