"""How threads call SlateDB, whose Python package has coroutines alone, and is slow with bytes.

A call is driven on its caller's thread: the package asks for an event loop only to be told when it
can go on, and a lock tells that as well. So there is no second thread to wake for each row.

The package copies what it is given byte by byte, in a loop in Python. For the versions in `FAST`
its own buffers are filled by one copy instead, through names that are private to it. Every other
version is asked by its public names: slower, and the same rows (`tests/unit/store/test_slate_binding.py`
compares both).
"""

from __future__ import annotations

import asyncio
import ctypes
import threading
from collections.abc import Coroutine, Generator
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from struct import Struct
from typing import Any, Literal, TypeVar

from millstream.clock import SystemClock
from millstream.errors import CannotOpen

T = TypeVar("T")
Cell = bytes
"""What lies under a key: a value and its checksum."""

OLDEST = (0, 14)
"""Before it, flushed writes of a fenced writer could be lost."""

FAST = frozenset({"0.17.0"})
"""The versions whose buffers we fill ourselves."""

NEAR_ROWS = 4
NEAR_BYTES, FAR_BYTES = 64 * 1024, 4 * 1024 * 1024
"""What one request of a scan fetches: of up to so many rows, and of more."""

STREAM_REQUESTS = 4
"""How many such requests are on their way at once while rows are streamed."""

Reach = Literal["near", "far", "stream"]
"""How much a scan fetches ahead."""

_LENGTH = Struct(">i")
_SIZES = Struct(">QqB")
"""What stands behind the value of a row: its sequence, its time, and whether it expires."""


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


class FastBinding(Binding):
    """The same, by one copy of each row; measured: a put of 1 MB takes 6 ms instead of 380."""

    def __init__(self, module: Any) -> None:
        super().__init__(module)
        inner = import_module("slatedb.uniffi._slatedb_uniffi.slatedb")
        self._library = inner._UniffiLib
        self._call = inner._uniffi_rust_call
        self._checked_call = inner._uniffi_rust_call_with_error
        self._call_async = inner._uniffi_rust_call_async
        self._foreign = inner._UniffiForeignBytes
        self._errors = inner._UniffiFfiConverterTypeError
        self._chars = ctypes.POINTER(ctypes.c_char)
        lower = inner._UniffiFfiConverterTypeScanOptions.lower
        self._lowered_reach = {
            reach: self._raised(lower(options)) for reach, options in self._reach.items()
        }

    def put(self, batch: Any, key: bytes, cell: Cell) -> None:
        """Add a row to a batch."""
        self._checked_call(
            self._errors,
            self._library.uniffi_slatedb_uniffi_fn_method_writebatch_put,
            batch._uniffi_clone_handle(),
            self._bytes(key),
            self._bytes(cell),
        )

    def delete(self, batch: Any, key: bytes) -> None:
        """Add to a batch that a row goes."""
        self._checked_call(
            self._errors,
            self._library.uniffi_slatedb_uniffi_fn_method_writebatch_delete,
            batch._uniffi_clone_handle(),
            self._bytes(key),
        )

    def get(self, view: Any, key: bytes) -> Cell | None:
        """What lies under a key in a snapshot or a reader."""
        method = getattr(self._library, _METHOD.format(type(view).__name__.lower(), "get"))
        found = self._raised_from(method(view._uniffi_clone_handle(), self._bytes(key)))
        return found[5:] if found[0] else None

    def begin(self, view: Any, start: bytes, stop: bytes, reach: Reach) -> Any:
        """A walk through start <= key < stop, which is not empty; `following` goes on with it."""
        first = b"\x01" + _LENGTH.pack(len(start)) + start + b"\x01"
        wanted = first + b"\x01" + _LENGTH.pack(len(stop)) + stop + b"\x00"
        name = _METHOD.format(type(view).__name__.lower(), "scan_with_options")
        call = getattr(self._library, name)(
            view._uniffi_clone_handle(),
            self._lowered(wanted),
            self._lowered(self._lowered_reach[reach]),
        )
        handle = run(
            self._call_async(
                call,
                self._library.ffi_slatedb_uniffi_rust_future_poll_u64,
                self._library.ffi_slatedb_uniffi_rust_future_complete_u64,
                self._library.ffi_slatedb_uniffi_rust_future_free_u64,
                lambda value: value,
                self._errors,
            ),
            most_s=self.read_timeout_s,
        )
        return self.module.DbIterator._uniffi_make_instance(handle)

    def following(self, rows: Any, limit: int) -> list[tuple[bytes, Cell]]:
        """The next rows of a walk, up to `limit`; fewer only at its end."""
        method = self._library.uniffi_slatedb_uniffi_fn_method_dbiterator_next_batch
        return _rows(self._raised_from(method(rows._uniffi_clone_handle(), limit)))

    def _raised_from(self, call: Any) -> bytes:
        """The bytes that a call of the library answers."""
        found: bytes = run(
            self._call_async(
                call,
                self._library.ffi_slatedb_uniffi_rust_future_poll_rust_buffer,
                self._library.ffi_slatedb_uniffi_rust_future_complete_rust_buffer,
                self._library.ffi_slatedb_uniffi_rust_future_free_rust_buffer,
                self._raised,
                self._errors,
            ),
            most_s=self.read_timeout_s,
        )
        return found

    def _raised(self, buffer: Any) -> bytes:
        """The bytes of a buffer, which is given back."""
        try:
            return ctypes.string_at(buffer.data, buffer.len)
        finally:
            buffer.free()

    def _bytes(self, data: bytes) -> Any:
        return self._lowered(_LENGTH.pack(len(data)) + data)

    def _lowered(self, data: bytes) -> Any:
        held = ctypes.cast(ctypes.c_char_p(data), self._chars)
        return self._call(
            self._library.ffi_slatedb_uniffi_rustbuffer_from_bytes, self._foreign(len(data), held)
        )


_METHOD = "uniffi_slatedb_uniffi_fn_method_{}_{}"


def _rows(data: bytes) -> list[tuple[bytes, Cell]]:
    """The rows of a batch as the library writes them: key, value, sequence, time, end."""
    (count,) = _LENGTH.unpack_from(data)
    found, at = [], 4
    for _ in range(count):
        (size,) = _LENGTH.unpack_from(data, at)
        key = data[at + 4 : at + 4 + size]
        at += 4 + size
        (size,) = _LENGTH.unpack_from(data, at)
        found.append((key, data[at + 4 : at + 4 + size]))
        at += 4 + size + _SIZES.size
        if data[at - 1]:
            at += 8
    return found


def bind() -> Binding:
    """The fastest way to call the SlateDB that is installed."""
    module = load()
    return (FastBinding if version("slatedb") in FAST else Binding)(module)
