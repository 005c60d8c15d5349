"""Chunks: pieces of a store's file, named by the hash of their bytes and stored once.

    chunks/ab/abcd…    a codec byte, then the bytes of a chunk, plain or compressed

A chunk is 256 KiB of consecutive pages. A point lists its chunks in order. The names of 1,024 chunks
form a list, which is stored as a chunk itself, so that points share equal lists too.

The hash is BLAKE2b, cut to 32 bytes. Every read compares it. OpenSSL computes BLAKE2b at twice the
speed of SHA-256 on machines without instructions for SHA (630 and 260 MB/s per thread, 2026-11), and an
increment hashes the complete file.
"""

from __future__ import annotations

import hashlib
import threading
import zlib
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

from millstream.backup.objects import BackupObjects
from millstream.errors import CorruptionError

A = TypeVar("A")
B = TypeVar("B")

CHUNK_BYTES = 256 * 1024
NAMES_PER_LIST = 1_024
FOLDER = "chunks"

_PLAIN, _ZLIB = b"\x00", b"\x01"
_NAME_BYTES = 32
_DEPTH = 4
"""Pieces of work per thread that are under way at once."""


def digest(data: bytes) -> bytes:
    """Return the hash of bytes."""
    try:
        return hashlib.new("blake2b512", data).digest()[:_NAME_BYTES]
    except ValueError:  # this OpenSSL has no BLAKE2; Python's own is the same, and slower
        return hashlib.blake2b(data).digest()[:_NAME_BYTES]


class ChunkStore:
    """The chunks of a place, for any thread."""

    def __init__(self, objects: BackupObjects, *, compress: bool = False) -> None:
        self._objects = objects
        self._compress = compress
        self._known: set[str] = set()
        self._lock = threading.Lock()
        self.stored_bytes = 0
        """Bytes that were written to the place."""
        self.stored_chunks = 0

    def look(self) -> None:
        """Learn the names of the chunks in the place, which are not stored again."""
        self._known = {name.rpartition("/")[2] for name in self._objects.names(FOLDER)}

    def put(self, data: bytes) -> str:
        """Store a chunk unless the place has it, and return its name."""
        name = digest(data).hex()
        with self._lock:
            if name in self._known:
                return name
        stored = _packed(data) if self._compress else _PLAIN + data
        self._objects.put(path_of(name), stored)
        with self._lock:
            self._known.add(name)
            self.stored_bytes += len(stored)
            self.stored_chunks += 1
        return name

    def get(self, name: str) -> bytes:
        """Return a chunk; raise `CorruptionError` if it is missing or not as it was written."""
        stored = self._objects.get(path_of(name))
        if stored is None:
            raise self._damage(name, "is missing")
        try:
            data = zlib.decompress(stored[1:]) if stored[:1] == _ZLIB else stored[1:]
        except zlib.error as error:
            raise self._damage(name, f"cannot be unpacked ({error})") from error
        if digest(data).hex() != name:
            raise self._damage(name, "is not as it was written")
        return data

    def _damage(self, name: str, damage: str) -> CorruptionError:
        return CorruptionError(
            f"{self._objects.text} is damaged: the chunk {name[:16]}… {damage}; `millstream backup "
            f"verify {self._objects.text}` lists the points that can be restored",
            what="chunk",
            where=name,
        )

    def put_lists(self, names: list[str]) -> list[str]:
        """Store the names of a point's chunks as lists, and return the names of the lists."""
        starts = range(0, len(names), NAMES_PER_LIST)
        return [
            self.put(b"".join(map(bytes.fromhex, names[start : start + NAMES_PER_LIST])))
            for start in starts
        ]

    def names_in(self, lists: Iterable[str]) -> Iterator[str]:
        """Yield the names of a point's chunks, in order."""
        for name in lists:
            data = self.get(name)
            for start in range(0, len(data), _NAME_BYTES):
                yield data[start : start + _NAME_BYTES].hex()


def path_of(name: str) -> str:
    """Return the name of the object of a chunk."""
    return f"{FOLDER}/{name[:2]}/{name}"


def _packed(data: bytes) -> bytes:
    packed = zlib.compress(data, 1)
    return _ZLIB + packed if len(packed) < len(data) else _PLAIN + data


def in_threads(work: Callable[[A], B], values: Iterable[A], *, workers: int) -> Iterator[B]:
    """Yield the results of work on values, in order; a bounded number is under way at once.

    The caller's thread makes the values. The first error ends the work.
    """
    pending: deque[Future[B]] = deque()
    with ThreadPoolExecutor(workers, thread_name_prefix="millstream-backup") as pool:
        try:
            for value in values:
                pending.append(pool.submit(work, value))
                if len(pending) >= workers * _DEPTH:
                    yield pending.popleft().result()
            while pending:
                yield pending.popleft().result()
        finally:
            for future in pending:
                future.cancel()
