"""The shared context of a server's rooms: session, profile, quota and counters."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

from msgspec import Struct

from millstream.embedded.loop.feed_reads import FETCH_RECORDS_MAX
from millstream.embedded.loop.session import AsyncEmbeddedSession
from millstream.server.auth.quota import Quota
from millstream.server.rooms.own_records import OwnRecords
from millstream.store.store import Store


class Profile(Struct, frozen=True, kw_only=True):
    """The settings of a profile."""

    gather_s: float
    """How long new messages of a room gather before they are fetched and pushed."""
    tick_factor: float
    """The factor by which the ticks of conflated types are longer than the room's setting."""
    pushes_own: bool
    """Whether messages that this instance stores are pushed at once, and not read back first."""


PROFILES: dict[str, Profile] = {
    "balanced": Profile(gather_s=0.0, tick_factor=1.0, pushes_own=True),
    "low-latency": Profile(gather_s=0.0, tick_factor=0.5, pushes_own=True),
    "high-throughput": Profile(gather_s=0.2, tick_factor=2.5, pushes_own=False),
}


class RoomsContext:
    """The context of all rooms of a server. Belongs to the server's event loop."""

    def __init__(
        self,
        session: AsyncEmbeddedSession,
        profile: Profile,
        *,
        is_across: bool,
        quota: Quota,
        poll_s: float = 0.0,
        batch: int = FETCH_RECORDS_MAX,
    ) -> None:
        self.session = session
        self.profile = profile
        self.quota = quota
        """Counts the bytes of unread answers of each token."""
        self.gather_s = poll_s or profile.gather_s
        """How long new messages of a room gather before they are fetched and pushed."""
        self.batch = batch
        """Most messages of one fetch."""
        self.own_records = None if is_across else OwnRecords(session.store)
        """Records stored by this process; None if records of other processes are pushed as well."""
        self.pushed = 0
        """Messages that listeners got, including messages that were skipped because the listener
        sent them."""
        self.gaps = 0
        """How often messages were dropped because their listener was too slow."""
        self._tasks: set[asyncio.Task[Any]] = set()

    @property
    def store(self) -> Store:
        """The open store."""
        return self.session.store

    def begin(self, work: Coroutine[Any, Any, None]) -> None:
        """Run background work that no client waits for."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def finish(self) -> None:
        """Wait for all background work."""
        await asyncio.gather(*self._tasks, return_exceptions=True)
