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
"""The stored bytes of a row: a value and its checksum."""

OLDEST = (0, 14)
"""Older releases could lose flushed writes of a fenced writer."""

NEAR_ROWS = 4
NEAR_BYTES, FAR_BYTES = 64 * 1024, 4 * 1024 * 1024
"""Bytes that one request of a scan fetches: for up to `NEAR_ROWS` rows, and for more."""

STREAM_REQUESTS = 4
"""Requests in flight while rows are streamed."""

Reach = Literal["near", "far", "stream"]
"""How many bytes a scan prefetches."""


def load() -> Any:
    """Import SlateDB's module; raise `CannotOpen` if it is missing or too old."""
    try:
        release = version("slatedb")
    except PackageNotFoundError:
        raise CannotOpen(
            "object storage needs SlateDB: pip install 'millstream[s3]'", path="slatedb"
        ) from None
    check_version(release)
    return import_module("slatedb.uniffi")


def check_version(release: str) -> None:
    """Refuse a release of SlateDB that can lose acknowledged writes."""
    numbers = tuple(int(digits) for digits in release.split(".")[:2] if digits.isdigit())
    if numbers < OLDEST:
        raise CannotOpen(
            f"SlateDB {release} can lose flushed writes of a writer that was fenced; 0.14 or newer "
            "is needed: pip install --upgrade 'millstream[s3]'",
            path="slatedb",
            version=release,
        )


class _Signal:
    """The future that a coroutine of the package awaits; a thread of SlateDB sets it."""

    __slots__ = ("_code", "_done")

    def __init__(self) -> None:
        self._done = threading.Lock()
        self._done.acquire()
        self._code: Any = None

    def set_result(self, code: Any) -> None:
        """Wake the waiting thread."""
        self._code = code
        self._done.release()

    def cancelled(self) -> bool:
        """Return False: a thread that gives up closes its coroutine instead."""
        return False

    def wait(self, most_s: float | None) -> bool:
        """Wait for the result; return False after the timeout."""
        return self._done.acquire(timeout=-1 if most_s is None else most_s)

    def __await__(self) -> Generator[_Signal, None, Any]:
        yield self
        return self._code


class _Loop:
    """The part of an event loop that the package uses."""

    def create_future(self) -> _Signal:
        """Return a future for the calling thread."""
        return _Signal()

    def call_soon_threadsafe(self, call: Any, *arguments: Any) -> None:
        """Call the function at once, on the thread of SlateDB."""
        call(*arguments)


_LOOP: Any = _Loop()


def run(call: Coroutine[Any, Any, T], *, most_s: float | None = None) -> T:
    """Run a call of SlateDB to its end on this thread; raise `TimeoutError` after `most_s`.

    SlateDB repeats a failed request inside the call, and wakes the caller each time. The timeout
    covers all repeats.
    """
    outer = asyncio._get_running_loop()
    remaining_s, until_s = most_s, None if most_s is None else SystemClock().seconds() + most_s
    try:
        while True:
            asyncio._set_running_loop(_LOOP)
            try:
                answer = call.send(None)
            except StopIteration as end:
                result: T = end.value
                return result
            finally:
                asyncio._set_running_loop(outer)
            if until_s is not None:
                remaining_s = max(0.0, until_s - SystemClock().seconds())
            if not answer.wait(remaining_s):
                raise TimeoutError(f"no answer within {most_s:g} s")
    finally:
        call.close()


class Binding:
    """Calls of SlateDB that carry rows, for threads."""

    def __init__(self, module: Any) -> None:
        self.module = module
        self.read_timeout_s: float | None = None
        """Timeout of each request of a read: SlateDB itself repeats requests without end."""
        sizes: dict[Reach, tuple[int, int]] = {
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
            for reach, (size, requests) in sizes.items()
        }

    def put(self, batch: Any, key: bytes, cell: Cell) -> None:
        """Add a row to a batch."""
        batch.put(key, cell)

    def delete(self, batch: Any, key: bytes) -> None:
        """Add the deletion of a row to a batch."""
        batch.delete(key)

    def get(self, view: Any, key: bytes) -> Cell | None:
        """Return the cell of a key in a snapshot or a reader; None without a row."""
        cell: Cell | None = run(view.get(key), most_s=self.read_timeout_s)
        return cell

    def scan(self, view: Any, start: bytes, stop: bytes, limit: int) -> list[tuple[bytes, Cell]]:
        """Return up to `limit` rows with start <= key < stop; the range is not empty."""
        reach: Reach = "near" if limit <= NEAR_ROWS else "far"
        return self.following(self.begin(view, start, stop, reach), limit)

    def begin(self, view: Any, start: bytes, stop: bytes, reach: Reach) -> Any:
        """Return an iterator over start <= key < stop; `following` reads from it."""
        bounds = self.module.KeyRange(
            start=start, start_inclusive=True, end=stop, end_inclusive=False
        )
        call = view.scan_with_options(bounds, self._reach[reach])
        return run(call, most_s=self.read_timeout_s)

    def following(self, rows: Any, limit: int) -> list[tuple[bytes, Cell]]:
        """Return the next rows of an iterator, up to `limit`; fewer only at the end."""
        batch = run(rows.next_batch(limit), most_s=self.read_timeout_s)
        return [(row.key, row.value) for row in batch]
