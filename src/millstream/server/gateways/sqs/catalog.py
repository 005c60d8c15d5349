"""The catalog: which queues there are, with their specs and records, as this process sees them now."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from weakref import WeakValueDictionary

from millstream.errors import MillstreamError
from millstream.format import keys
from millstream.log.model.metadata import MetadataState
from millstream.log.rules.operations import find_log
from millstream.queue.commands import (
    ClaimMessages,
    DescribeQueue,
    PurgeQueue,
    SpecifyQueue,
)
from millstream.queue.model.own_logs import inbox_of
from millstream.queue.model.spec import QueueSpec
from millstream.queue.rules.lookup import find_queue
from millstream.server.core import Core
from millstream.server.gateways.sqs.attempts import ReceiveAttempts
from millstream.server.gateways.sqs.errors import SqsError, no_queue
from millstream.server.gateways.sqs.move_tasks import MoveTasks
from millstream.server.gateways.sqs.names import HomePlace, QueueName
from millstream.server.gateways.sqs.settings import (
    METADATA,
    QueueRecord,
    fair_spec,
    record_of,
)
from millstream.store.state.view import View

RECENT_S = 0.2
"""How long a look at a queue is good, unless this process changes the queue."""

RECENT_MAX = 10_000
FAIR_S = 1.0
"""How long a queue whose messages wait is left as it is."""

TIDY_S = 60.0
TIDIED_MAX = 10_000


@dataclass(frozen=True, slots=True)
class KnownQueue:
    """A queue of SQS, and the queue of ours behind it."""

    name: QueueName
    stored: str
    """The name of our queue."""
    spec: QueueSpec
    text: str | None
    """The record as it is stored; None for a queue that SQS has not made."""
    created_ms: int
    failed: int
    """Messages that have used up their receives, and stand in the dead-letter queue as well."""

    @property
    def record(self) -> QueueRecord:
        """The queue's record."""
        return record_of(self.text)

    @property
    def seed(self) -> str:
        """A text that no other queue has, also no earlier queue of the name."""
        return self.record.seed or f"{self.stored}\0{self.created_ms}"


class Catalog:
    """Finds queues in the store of this process; belongs to one event loop."""

    def __init__(self, core: Core, home: HomePlace) -> None:
        self.home = home
        self._core = core
        self.moves = MoveTasks()
        """The message move tasks of this process."""
        self.attempts = ReceiveAttempts()
        self._fair_again_s: dict[str, float] = {}
        """When to try again to make a queue fair."""
        self._recent: dict[QueueName, tuple[float, KnownQueue]] = {}
        self._tidied_s: dict[str, float] = {}
        self._tidying: set[asyncio.Task[None]] = set()
        self._purged_ms: dict[tuple[str, str], int] = {}
        """When queues were purged last, by name and seed."""
        self._turns: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    def find(self, name: QueueName) -> KnownQueue | None:
        """Return a queue as this process sees it, without waiting."""
        now_s = self._core.store.clock.seconds()
        recent = self._recent.get(name)
        if recent is not None and 0 <= now_s - recent[0] < RECENT_S:
            return recent[1]
        queue = self._core.store.view(partial(_look, name=name, stored=name.stored(self.home)))
        if queue is not None:
            if len(self._recent) >= RECENT_MAX:
                self._recent.clear()
            self._recent[name] = now_s, queue
        return queue

    def forget(self, name: QueueName) -> None:
        """Look a queue up again: this process has changed it."""
        self._recent.pop(name, None)

    def forget_all(self) -> None:
        """Look all queues up again."""
        self._recent.clear()

    async def need(self, name: QueueName) -> KnownQueue:
        """Return a queue, or raise; another process may have made it a moment ago."""
        queue = self.find(name) or await self.freshly(name)
        if queue is None:
            raise no_queue()
        return queue

    async def freshly(self, name: QueueName) -> KnownQueue | None:
        """Return a queue as of the last commit of all processes."""
        await self._core.session.ask(self._core.store.refresh)
        self.forget(name)
        return self.find(name)

    def tidy_soon(self, queue: KnownQueue) -> None:
        """Delete messages that stand in the dead-letter queue as well, now and then."""
        core = self._core
        if not (queue.failed and queue.spec.dead_letter) or (core.seat and not core.seat.leads):
            return
        now_s = core.store.clock.seconds()
        if now_s - self._tidied_s.get(queue.stored, -TIDY_S) < TIDY_S:
            return
        if len(self._tidied_s) >= TIDIED_MAX:
            self._tidied_s.clear()
        self._tidied_s[queue.stored] = now_s
        task = asyncio.get_running_loop().create_task(self._tidy(queue.stored))
        self._tidying.add(task)
        task.add_done_callback(self._tidying.discard)

    async def _tidy(self, stored: str) -> None:
        session = self._core.session
        with suppress(MillstreamError):  # the next receive tries again
            info = await session.execute(DescribeQueue(stored))
            if info is not None and info.failed and not info.letters:
                await session.execute(PurgeQueue(stored, "failed"))

    async def end_leases(self, queue: KnownQueue) -> None:
        """Make messages visible whose leases have ended, as the next claim would."""
        look = ClaimMessages(queue.stored, 0, None, "", None, [])
        with suppress(MillstreamError):  # counts are approximate
            await self._core.session.execute(look)

    async def make_fair(self, queue: KnownQueue) -> None:
        """Share a standard queue fairly among its groups, once no message waits in it.

        A queue whose messages have no groups is claimed in half the time, so it becomes a fair queue
        with its first group. While other messages wait, groups cannot be told apart yet.
        """
        now_s = self._core.store.clock.seconds()
        if now_s < self._fair_again_s.get(queue.stored, 0.0):
            return
        try:
            await self._core.session.execute(
                SpecifyQueue(queue.stored, fair_spec(queue.spec), queue.spec)
            )
        except MillstreamError:
            if len(self._fair_again_s) >= RECENT_MAX:
                self._fair_again_s.clear()
            self._fair_again_s[queue.stored] = now_s + FAIR_S
        self.forget(queue.name)

    def note_purge(self, queue: KnownQueue, pause_ms: int) -> None:
        """Note the purge of a queue, or refuse it if the last one was less than `pause_ms` ago."""
        now_ms, key = self._core.store.clock.wall_ms(), (queue.stored, queue.seed)
        recent = {each: ms for each, ms in self._purged_ms.items() if 0 <= now_ms - ms < pause_ms}
        if key in recent:
            raise SqsError(
                "PurgeQueueInProgress",
                f"Only one PurgeQueue operation on {queue.name.name} is allowed every "
                f"{pause_ms // 1000} seconds.",
                403,
            )
        self._purged_ms = {**recent, key: now_ms}

    def forget_purge(self, queue: KnownQueue) -> None:
        """Forget the purge of a queue that was refused or broken off."""
        self._purged_ms.pop((queue.stored, queue.seed), None)

    def turn(self, stored: str) -> asyncio.Lock:
        """Return the lock under which this process changes a queue or a topic."""
        return self._turns.setdefault(stored, asyncio.Lock())


def _look(view: View, name: QueueName, stored: str) -> KnownQueue | None:
    queue = find_queue(view, stored)
    if not queue.exists():
        return None
    return KnownQueue(
        name, stored, queue.spec, _text(view, stored), queue.created_ms, queue.counts.failed
    )


def _text(view: View, stored: str) -> str | None:
    log = find_log(view, inbox_of(stored))
    if log is None:
        return None
    entry = view.entity(keys.metadata(log[0]), MetadataState).entries.get(METADATA)
    is_text = entry is not None and entry.present and isinstance(entry.value, str)
    return entry.value if is_text and entry is not None else None
