"""The probe: questions and manipulations of an open store for tests, beyond its public nouns.

It works for handles of threads and of coroutines, and for stores in a file and in memory. Its
methods are plain calls on both surfaces, but for `until_async`. It needs the store in its own process.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Collection, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from typing import Any

import apsw

from millstream import aio
from millstream.clock import SystemClock
from millstream.embedded.loop.feed import Feed
from millstream.engine.memory.engine import MemoryEngine
from millstream.engine.protocol import Engine, Snapshot
from millstream.engine.slate.engine import SlateEngine
from millstream.engine.sqlite.rows import NUMBERED
from millstream.engine.sqlite.schema import RECORD
from millstream.errors import InvalidInput
from millstream.format import keys
from millstream.queue.service.lines import Lines
from millstream.store.state.state import State
from millstream.store.store import Store
from millstream.threads.database import Millstream

PATIENCE_S = 60.0
"""How long a probe waits for what a test expects, so that a failed test ends."""

ROWS_MAX = 1_000_000
"""Rows that `Probe.rows` looks at: a store of a test has fewer."""


class Probe:
    """A look behind a handle, for tests; it may be made as often as one likes."""

    def __init__(self, handle: Millstream | aio.Millstream | Store) -> None:
        self._store = handle if isinstance(handle, Store) else _store_of(handle)

    @property
    def store(self) -> Store:
        """The store behind the handle; its own methods may change from one version to the next."""
        return self._store

    def upkeep(self) -> None:
        """Do now what the background would do by and by: retention, leases, what is forgotten."""
        self._store.tend()

    def pause_keeper(self) -> AbstractContextManager[object]:
        """Let nothing happen in the background from now on.

        In a `with` statement the pause ends with the block; otherwise, when the store is closed.
        """
        return self._store.pause_keeper()

    def hold_commits(self) -> AbstractContextManager[object]:
        """Block new commits for the length of a `with` block: writers wait until its end.

        The block itself must not write, because it would wait for its own end.
        """
        return self._store.hold()

    def rows(self, kind: int) -> dict[bytes, bytes]:
        """The rows of one type (`millstream.format.keys`), stored or in commits not yet folded.

        Of entities, such as queues and cursors, only what is folded is a row.
        """
        start, stop = keys.range_of(keys.prefix(kind))

        def find(state: State, snapshot: Snapshot) -> dict[bytes, bytes]:
            rows = dict(snapshot.scan(start, stop, limit=ROWS_MAX))
            held = state.overlay.oldest(state.seq)
            return rows | {key: value for key, value in held if start <= key < stop}

        return self._store.look(find)

    def damage(self, key: bytes) -> None:
        """Flip a bit of a stored row behind the engine; the next read raises `CorruptionError`.

        Unfolded data has no row yet and raises `InvalidInput`; `fold()` stores all commits except the
        newest. Cached values of the handle stay intact until the store is opened again.
        """
        corrupt(self._store.engine, key)

    def waiting(self) -> int:
        """Return the number of waits: a caller, or a line of claims, counts once per watched object."""
        owners = [getattr(wake, "__self__", None) for wake in self._store.watch.wakes()]
        return sum(owner.waiting if isinstance(owner, Feed) else 1 for owner in owners)

    def claims_waiting(self, queue: str) -> int:
        """Return how many claims wait for a queue; 0 while a claim looks for messages."""
        return sum(lines.count(queue) for lines in lines_of(self._store))

    def until(self, holds: Callable[[], bool], *, timeout_s: float = PATIENCE_S) -> None:
        """Wait until something is so; `TimeoutError` if it is not in time.

        It is asked again after each commit, and whenever a caller begins to wait or no longer does.
        """
        changed, clock = threading.Event(), SystemClock()  # the store's own may stand still
        until_s = clock.seconds() + timeout_s
        with self._told(changed.set):
            while not holds():
                if not changed.wait(max(0.0, until_s - clock.seconds())):
                    raise TimeoutError(_in_vain(timeout_s))
                changed.clear()

    async def until_async(
        self, holds: Callable[[], bool | Awaitable[bool]], *, timeout_s: float = PATIENCE_S
    ) -> None:
        """As `until`, while the event loop goes on; what is asked may be a coroutine's answer."""
        changed, loop = asyncio.Event(), asyncio.get_running_loop()
        with self._told(partial(loop.call_soon_threadsafe, changed.set)):
            try:
                async with asyncio.timeout(timeout_s):
                    while not await _answer(holds()):
                        await changed.wait()
                        changed.clear()
            except TimeoutError:
                raise TimeoutError(_in_vain(timeout_s)) from None

    @contextmanager
    def _told(self, call: Callable[[], object]) -> Iterator[None]:
        """Call a function after every change of the store, until the block ends."""

        def tell(keys: Collection[bytes] | None = None) -> None:
            call()

        watch = self._store.watch
        watch.observe(tell)
        watch.follow(tell)
        try:
            yield
        finally:
            watch.unfollow(tell)
            watch.unobserve(tell)


def lines_of(store: Store) -> list[Lines[Any]]:
    """The lines of claims in which the first keeps watch."""
    called = [wake.func for wake in store.watch.wakes() if isinstance(wake, partial)]
    owners = {
        id(owner): owner for callback in called if (owner := getattr(callback, "__self__", None))
    }
    return [owner for owner in owners.values() if isinstance(owner, Lines)]


async def _answer(answer: bool | Awaitable[bool]) -> bool:
    return answer if isinstance(answer, bool) else await answer


def _in_vain(timeout_s: float) -> str:
    return f"what the test waits for was not so within {timeout_s:g} s"


def _store_of(handle: Millstream | aio.Millstream) -> Store:
    store = getattr(handle.session, "store", None)
    if isinstance(store, Store):
        return store
    raise InvalidInput(
        f"a probe needs a store that is open in this process, and {handle.session!r} leads "
        "elsewhere; open its file, or `memory_store()`, in the test itself"
    )


def corrupt(engine: Engine, key: bytes) -> None:
    """Flip one bit of a stored value of an engine of any kind: the next read of it must notice."""
    _CORRUPT[engine.describe()["engine"]](engine, key)


def _corrupt_file(engine: Engine, key: bytes) -> None:
    """Flip a bit over a plain connection: pages stay sound, so only the row checksum can tell.

    An empty value gets a byte.
    """
    table = NUMBERED.get(key[1])
    column, at = ("id", keys.number(key)) if table else ("key", key)
    row = f"{table or RECORD} WHERE {column} = ?"
    connection = apsw.Connection(engine.place)
    connection.set_busy_timeout(int(PATIENCE_S * 1_000))  # the store's own threads may be writing
    try:
        row_found = connection.execute(f"SELECT value FROM {row}", (at,)).fetchone()
        if row_found is None:
            raise _missing(key)
        flipped = bytes((row_found[0][0] ^ 8, *row_found[0][1:])) if row_found[0] else b"\x08"
        row = f"{table or RECORD} SET value = ? WHERE {column} = ?"
        connection.execute(f"UPDATE {row}", (flipped, at))
    finally:
        connection.close()


def _corrupt_memory(engine: Engine, key: bytes) -> None:
    assert isinstance(engine, MemoryEngine)
    if key not in dict(engine.survivors()):
        raise _missing(key)
    engine.corrupt(key, bit=3)


def _corrupt_bucket(engine: Engine, key: bytes) -> None:
    """Flip a bit by a write of SlateDB: blocks stay sound, so only the row checksum can tell."""
    assert isinstance(engine, SlateEngine)
    if not engine.rewrite(key, lambda cell: bytes((cell[0] ^ 8, *cell[1:]))):
        raise _missing(key)


def _missing(key: bytes) -> InvalidInput:
    return InvalidInput(f"there is no row {key.hex()} to damage; what is unfolded has no row yet")


_CORRUPT: dict[str, Callable[[Engine, bytes], None]] = {
    "sqlite": _corrupt_file,
    "memory": _corrupt_memory,
    "slatedb": _corrupt_bucket,
}
"""By the name that an engine says of itself."""
