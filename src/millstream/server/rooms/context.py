"""What the rooms of one server stand on: the session, the profile, and counters."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

from millstream.embedded.loop.feed_reads import FETCH_RECORDS_MAX
from millstream.embedded.loop.session import AsyncEmbeddedSession
from millstream.server.auth.quota import Quota
from millstream.server.rooms.own_records import OwnRecords
from millstream.server.rooms.profile import Profile
from millstream.store.store import Store


class Ground:
    """Shared by all rooms of a server; belongs to its event loop."""

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
        """Counts the unread answers of each token."""
        self.gather_s = poll_s or profile.gather_s
        """How long news of a room gathers before it is fetched and pushed."""
        self.batch = batch
        """Messages of one fetch."""
        self.own = None if is_across else OwnRecords(session.store)
        """What this process has stored; None if listeners hear what other processes send, too."""
        self.pushed = 0
        """Messages that were written to listeners, or left out because they had sent them."""
        self.gaps = 0
        """How often a listener was so slow that messages for it were dropped."""
        self._tasks: set[asyncio.Task[Any]] = set()

    @property
    def store(self) -> Store:
        """The open store."""
        return self.session.store

    def begin(self, work: Coroutine[Any, Any, None]) -> None:
        """Run something that no client waits for."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def finish(self) -> None:
        """Wait for what was begun."""
        await asyncio.gather(*self._tasks, return_exceptions=True)
