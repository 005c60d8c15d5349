"""The store of jobs as coroutines hold it: opened at its first use, with a queue for each need."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Self

from millstream.aio.database import Millstream, open
from millstream.aio.queue import Queue
from millstream.aio.runtime import Lock, close_at_exit
from millstream.errors import Conflict, InvalidInput
from millstream.jobs.definition import TaskDefinition
from millstream.jobs.key_limits import KeyLimits
from millstream.jobs.options import TaskOptions
from millstream.numbers import checked_numbers
from millstream.queue.model.spec import QueueSpec, altered
from millstream.record import Seconds, to_ms


@checked_numbers
class JobStore:
    """The store in which jobs live, and the tasks that this process knows."""

    def __init__(
        self, place: str | os.PathLike[str] | Millstream | None, *, keep_results: Seconds
    ) -> None:
        self.tasks: dict[str, TaskDefinition] = {}
        """The definition of each task, by its name."""
        self.results_s = to_ms(keep_results, "keep_results") / 1000
        """How long the results of ended jobs are kept."""
        if self.results_s < 0:
            raise InvalidInput(f"keep_results is 0 seconds or more, not {keep_results!r}")
        self._place = place
        self._opened: Millstream | None = None
        self._opened_by = 0
        self._opening = Lock()
        self._made: set[str] = set()
        """The queues that exist, as far as this process knows."""
        self._queues: dict[str, Queue] = {}

    def bind(self, place: str | os.PathLike[str] | Millstream) -> None:
        """Set the store, by its path, its address, or an open handle, which is not closed here."""
        if self._opened is not None and self._opened is not place:
            raise InvalidInput(
                "these jobs use an open store already: bind them before their first use"
            )
        self._place = place

    @contextmanager
    def bound_to(self, ms: Millstream) -> Iterator[None]:
        """Use another open store inside of a `with` block, and the former store after it; for tests."""
        former = self._place, self._opened, self._opened_by, self._made, self._queues
        self._place, self._opened, self._opened_by = ms, None, 0
        self._made, self._queues = set(), {}
        try:
            yield
        finally:
            self._place, self._opened, self._opened_by, self._made, self._queues = former

    async def opened(self) -> Millstream:
        """Return the open store; the first call in a process opens it."""
        if self._opened is not None and self._opened_by == os.getpid():
            return self._opened
        async with self._opening:
            if self._opened is None or self._opened_by != os.getpid():
                if self._place is None:
                    raise InvalidInput(
                        "these jobs have no store: write Jobs('shop.db'), or call jobs.bind('shop.db')"
                    )
                self._made, self._queues = set(), {}
                place = self._place
                if isinstance(place, Millstream):
                    self._opened = place
                else:
                    self._opened = await open(place)
                    close_at_exit(self.close)
                self._opened_by = os.getpid()
            return self._opened

    async def close(self) -> None:
        """Close the store, unless it was bound as an open handle."""
        ms, self._opened = self._opened, None
        if ms is not None and ms is not self._place and self._opened_by == os.getpid():
            await ms.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()

    async def queue_of(self, task: TaskDefinition) -> Queue:
        """Return the queue of a task."""
        name = task.options.queue
        queue = self._queues.get(name)
        if queue is None:
            ms = await self.opened()
            queue = self._queues[name] = await ms.queue(name)
        return queue

    async def make_queue(self, options: TaskOptions) -> None:
        """Create the queue of a task, if it does not exist.

        A queue that exists is left as it is, but for the limits per key: the limits in the code hold.
        """
        queue = await (await self.opened()).queue(options.queue)
        if not await queue.exists():
            await queue.specify(options.spec(self.results_s))
        elif options.limits is not None:
            await self._set_limits(queue, options.limits)
        self._made.add(options.queue)

    async def _set_limits(self, queue: Queue, limits: KeyLimits) -> None:
        spec = (await queue.info()).spec
        if (limited := altered(spec, limits.settings())) == spec:
            return
        try:
            await queue.specify(limited)
        except Conflict as error:
            raise Conflict(
                f"queue {queue.name!r} holds jobs that were put without limits per key: run them "
                f"first, or give the task with limits another queue=... ({error})",
                name=queue.name,
            ) from error

    def has_made(self, queue: str) -> bool:
        """Return whether a queue is known to exist."""
        return queue in self._made

    def missing_spec(self, options: TaskOptions) -> QueueSpec | None:
        """Return the settings of a task's queue; None if the queue is known to exist."""
        return None if options.queue in self._made else options.spec(self.results_s)
