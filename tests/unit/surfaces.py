"""One test text for both surfaces: nouns of coroutines that are called as those of threads are."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractAsyncContextManager, contextmanager
from typing import Any

import millstream
from millstream import aio
from millstream.aio.worker import Worker

SURFACES = ("threads", "coroutines")
NOUNS = (
    aio.AppendHandle,
    aio.LogProducer,
    aio.PartitionedHandle,
    aio.PartitionedProducer,
    aio.PutHandle,
    aio.QueueProducer,
    aio.Cursor,
    aio.GatheredJobs,
    aio.Job,
    aio.JobWorker,
    aio.Jobs,
    aio.InteractiveTransaction,
    aio.Log,
    aio.Metadata,
    aio.Millstream,
    aio.PartitionedCursor,
    aio.PartitionedLog,
    aio.Queue,
    aio.QueueConsumer,
    aio.Room,
    aio.Stage,
    aio.Transaction,
    Worker,
    AbstractAsyncContextManager,
)


class Plain:
    """A noun of coroutines, to be called as that of threads is."""

    def __init__(self, loop: asyncio.Runner, noun: Any) -> None:
        self.__dict__ |= {"loop": loop, "noun": noun}

    def __getattr__(self, name: str) -> Any:
        found = getattr(self.noun, name)
        if not callable(found):
            return self._plain(found)
        return lambda *given, **named: self._answer(found, given, named)

    def __enter__(self) -> Any:
        return self._answer(self.noun.__aenter__, (), {})

    def __exit__(self, *error: object) -> None:
        self._answer(self.noun.__aexit__, error, {})

    def __len__(self) -> int:
        found: int = self._answer(self.noun.len, (), {})
        return found

    def __repr__(self) -> str:
        return repr(self.noun)

    def _answer(self, method: Callable[..., Any], given: Any, named: dict[str, Any]) -> Any:
        async def awaited() -> Any:
            answer = method(*map(bare, given), **{name: bare(one) for name, one in named.items()})
            if inspect.isasyncgen(answer):
                return iter([one async for one in answer])
            return await answer if inspect.isawaitable(answer) else answer

        return self._plain(self.loop.run(awaited()))

    def _plain(self, answer: Any) -> Any:
        return Plain(self.loop, answer) if isinstance(answer, NOUNS) else answer


def bare(noun: Any) -> Any:
    """The noun itself, of whichever surface."""
    return noun.noun if isinstance(noun, Plain) else noun


def jobs_on(ms: Any) -> Any:
    """Return jobs on an open store, of the surface of the store."""
    return Plain(ms.loop, aio.Jobs(ms.noun)) if isinstance(ms, Plain) else millstream.Jobs(ms)


class Awaited:
    """A session of threads, for coroutines."""

    def __init__(self, session: Any) -> None:
        self.session, self.clock = session, session.clock

    @property
    def limits(self) -> Any:
        return self.session.limits

    async def execute(self, command: Any) -> Any:
        await asyncio.sleep(0)
        answer = self.session.execute(command)
        return await answer if inspect.isawaitable(answer) else answer

    async def close(self) -> None:
        self.session.close()


class Surface:
    """What threads have, or what coroutines have, called alike."""

    def __init__(self, name: str, loop: asyncio.Runner) -> None:
        self.name = name
        self._loop = loop

    def over(self, session: Any) -> Any:
        """A store's handle over a session of threads."""
        if self.name == "threads":
            return millstream.Millstream(session)
        return Plain(self._loop, aio.Millstream(Awaited(session)))

    def open(self, path: Any, **options: Any) -> Any:
        """`open` of this surface."""
        if self.name == "threads":
            return millstream.open(path, **options)
        return Plain(self._loop, self._loop.run(aio.open(path, **options)))

    def beside(self, calls: list[tuple[Any, str, Any]]) -> list[Any]:
        """Call methods of nouns beside each other: (noun, its method, what it is given)."""
        if self.name == "threads":
            with ThreadPoolExecutor(len(calls)) as threads:
                begun = [threads.submit(getattr(noun, name), one) for noun, name, one in calls]
                return [future.result() for future in begun]

        async def all_of_them() -> list[Any]:
            return await asyncio.gather(
                *(getattr(bare(noun), name)(one) for noun, name, one in calls)
            )

        return self._loop.run(all_of_them())


@contextmanager
def surface_of(name: str) -> Iterator[Surface]:
    """A surface, with an event loop for its coroutines."""
    with asyncio.Runner() as loop:
        yield Surface(name, loop)
