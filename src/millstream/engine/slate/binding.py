"""Calls of SlateDB for threads: its Python package has coroutines alone.

A call runs on the thread of its caller. The package needs an event loop only to learn when it can
continue, and a lock tells that as well. So no second thread is woken for each row. The alternative,
one event loop in a thread for all calls, costs two thread switches per row.

`Binding` uses only public names of the package. `fast_binding` has a faster way for single releases.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine, Generator
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from typing import Any, Literal, TypeVar

from millstream.clock import SystemClock
from millstream.errors import CannotOpen

T = TypeVar("T")
Cell = bytes
"""What lies under a key: a value and its checksum."""

OLDEST = (0, 14)
"""Before it, flushed writes of a fenced writer could be lost."""

NEAR_ROWS = 4
NEAR_BYTES, FAR_BYTES = 64 * 1024, 4 * 1024 * 1024
"""What one request of a scan fetches: of up to so many rows, and of more."""

STREAM_REQUESTS = 4
"""How many such requests are on their way at once while rows are streamed."""

Reach = Literal["near", "far", "stream"]
"""How much a scan fetches ahead."""


def load() -> Any:
    """SlateDB's module; `CannotOpen` if it is missing or too old."""
    try:
        found = version("slatedb")
    except PackageNotFoundError:
        raise CannotOpen(
            "object storage needs SlateDB: pip install 'millstream[s3]'", path="slatedb"
        ) from None
    check_version(found)
    return import_module("slatedb.uniffi")


def check_version(found: str) -> None:
    """Refuse a SlateDB that can lose what it acknowledged."""
    numbers = tuple(int(part) for part in found.split(".")[:2] if part.isdigit())
    if numbers < OLDEST:
        raise CannotOpen(
            f"SlateDB {found} can lose flushed writes of a writer that was fenced; 0.14 or newer "
            "is needed: pip install --upgrade 'millstream[s3]'",
            path="slatedb",
            version=found,
        )


class _Signal:
    """What a coroutine of the package waits for; set by a thread of SlateDB's own."""

    __slots__ = ("_code", "_done")

    def __init__(self) -> None:
        self._done = threading.Lock()
        self._done.acquire()
        self._code: Any = None

    def set_result(self, code: Any) -> None:
        """Let the waiting thread go on."""
        self._code = code
        self._done.release()

    def cancelled(self) -> bool:
        """Nobody cancels it: a thread that gives up closes its coroutine."""
        return False

    def wait(self, most_s: float | None) -> bool:
        """Wait for the answer; False if it takes too long."""
        return self._done.acquire(timeout=-1 if most_s is None else most_s)

    def __await__(self) -> Generator[_Signal, None, Any]:
        yield self
        return self._code


class _Loop:
    """As much of an event loop as the package asks for."""

    def create_future(self) -> _Signal:
        """What the caller waits for."""
        return _Signal()

    def call_soon_threadsafe(self, call: Any, *arguments: Any) -> None:
        """At once, on the thread that has the news."""
        call(*arguments)


_LOOP: Any = _Loop()


def run(call: Coroutine[Any, Any, T], *, most_s: float | None = None) -> T:
    """Run a call of SlateDB to its end on this thread; `TimeoutError` if it takes too long.

    A call that is repeated inside SlateDB wakes its caller each time: the bound is for all of it.
    """
    outer = asyncio._get_running_loop()
    left_s, until_s = most_s, None if most_s is None else SystemClock().seconds() + most_s
    try:
        while True:
            asyncio._set_running_loop(_LOOP)
            try:
                answer = call.send(None)
            except StopIteration as end:
                found: T = end.value
                return found
            finally:
                asyncio._set_running_loop(outer)
            if until_s is not None:
                left_s = max(0.0, until_s - SystemClock().seconds())
            if not answer.wait(left_s):
                raise TimeoutError(f"no answer within {most_s:g} s")
    finally:
        call.close()


class Binding:
    """SlateDB's calls that carry rows, for threads."""

    def __init__(self, module: Any) -> None:
        self.module = module
        self.read_timeout_s: float | None = None
        """How long each request of a read may take: SlateDB itself repeats it without end."""
        wanted: dict[Reach, tuple[int, int]] = {
            "near": (NEAR_BYTES, 1),
            "far": (FAR_BYTES, 1),
            "stream": (FAR_BYTES, STREAM_REQUESTS),
        }
        self._reach: dict[Reach, Any] = {
            reach: module.ScanOptions(
                durability_filter=module.DurabilityLevel.MEMORY,
                dirty=False,
                read_ahead_bytes=size,
                cache_blocks=True,
                max_fetch_tasks=requests,
            )
            for reach, (size, requests) in wanted.items()
        }

    def put(self, batch: Any, key: bytes, cell: Cell) -> None:
        """Add a row to a batch."""
        batch.put(key, cell)

    def delete(self, batch: Any, key: bytes) -> None:
        """Add to a batch that a row goes."""
        batch.delete(key)

    def get(self, view: Any, key: bytes) -> Cell | None:
        """What lies under a key in a snapshot or a reader."""
        found: Cell | None = run(view.get(key), most_s=self.read_timeout_s)
        return found

    def scan(self, view: Any, start: bytes, stop: bytes, limit: int) -> list[tuple[bytes, Cell]]:
        """Up to `limit` rows with start <= key < stop; the range is not empty."""
        reach: Reach = "near" if limit <= NEAR_ROWS else "far"
        return self.following(self.begin(view, start, stop, reach), limit)

    def begin(self, view: Any, start: bytes, stop: bytes, reach: Reach) -> Any:
        """A walk through start <= key < stop, which is not empty; `following` goes on with it."""
        wanted = self.module.KeyRange(
            start=start, start_inclusive=True, end=stop, end_inclusive=False
        )
        call = view.scan_with_options(wanted, self._reach[reach])
        return run(call, most_s=self.read_timeout_s)

    def following(self, rows: Any, limit: int) -> list[tuple[bytes, Cell]]:
        """The next rows of a walk, up to `limit`; fewer only at its end."""
        found = run(rows.next_batch(limit), most_s=self.read_timeout_s)
        return [(row.key, row.value) for row in found]
