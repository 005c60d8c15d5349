"""Opening for coroutines: as `millstream.threads.opening`; a file is opened in another thread."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from millstream.command import AsyncSession
from millstream.engine.place import one_place
from millstream.engine.protocol import Mode
from millstream.remote.address import is_address
from millstream.remote.opening import check_no_address_options, open_async_remote

if TYPE_CHECKING:
    from millstream.store.store import Store


async def open_session(
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
) -> AsyncSession:
    """Return the session of the store in a file, or behind a server; each refuses the other's options."""
    place = one_place(path)
    if is_address(place):
        return await open_async_remote(
            str(place),
            token=token,
            ca=ca,
            connect_timeout=connect_timeout,
            retry_for=retry_for,
            read_level=read_level,
            **of_files,
        )
    check_no_address_options(token=token, ca=ca, read_level=read_level)
    from millstream.embedded.loop.session import AsyncEmbeddedSession
    from millstream.embedded.session import open_file

    open_it = partial(open_file, place, mode=mode, create=create, **of_files)
    opening = asyncio.get_running_loop().run_in_executor(None, open_it)
    try:
        store = await asyncio.shield(opening)
    except asyncio.CancelledError:
        opening.add_done_callback(_close_unwanted)
        raise
    return AsyncEmbeddedSession(store)


def _close_unwanted(opened: asyncio.Future[Store]) -> None:
    if not opened.cancelled() and opened.exception() is None:
        opened.result().close()
