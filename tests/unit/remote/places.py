"""Where a test's store is: in the test's own process, or behind a server.

`open_served` is `millstream.open` with a server in between: each handle has a server of its own
over the file, as each handle of an open file has its own store.
"""

from __future__ import annotations

import asyncio
import os
from contextlib import ExitStack
from typing import Any

import millstream
from millstream import Millstream, aio
from millstream.server.serving import Serving, running
from millstream.server.settings import Settings

_open = millstream.open
_open_async = aio.open

SETTINGS = Settings(port=0, stop_s=1.0)


class Served:
    """The servers of one test; they end with it, if not before."""

    def __init__(self) -> None:
        self._running = ExitStack()

    def start(self, path: str | os.PathLike[str], **options: Any) -> tuple[Serving, ExitStack]:
        """A server over a file, and what ends it."""
        ending = ExitStack()
        server = ending.enter_context(running(path, SETTINGS, **options))
        self._running.callback(ending.close)
        return server, ending

    def open(self, path: str | os.PathLike[str], **options: Any) -> Millstream:
        """`millstream.open`, with a server in between."""
        server, ending = self.start(path, **options)
        ms = _open(server.url)
        session: Any = ms.session
        assert server.core is not None
        session.store, hang_up = server.core.store, session.close

        def close() -> None:
            hang_up()
            ending.close()

        session.close = close
        self._running.callback(close)
        return ms

    async def open_async(self, path: str | os.PathLike[str], **options: Any) -> aio.Millstream:
        """`millstream.aio.open`, with a server in between."""
        server, ending = await asyncio.to_thread(self.start, path, **options)
        ms = await _open_async(server.url)
        session: Any = ms.session
        assert server.core is not None
        session.store, hang_up = server.core.store, session.close

        async def close() -> None:
            await hang_up()
            await asyncio.to_thread(ending.close)

        session.close = close
        return ms

    def end(self) -> None:
        """End what still runs."""
        self._running.close()
