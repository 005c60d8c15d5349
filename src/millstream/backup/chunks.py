"""Chunks: pieces of a store's file, named by the hash of their bytes and stored once.

    chunks/ab/abcd…    a codec byte, then the bytes of a chunk, plain or compressed

A chunk is 256 KiB of consecutive pages. A point lists its chunks in order. The names of 1,024 chunks
form a list, which is stored as a chunk itself, so that points share equal lists too.

The hash is BLAKE3. Every read compares the hash. An increment hashes the complete file, because nothing
else shows every changed page: the write-ahead log forgets its frames when it is restarted, and any SQLite
tool may write to the file. So the hash must be fast: BLAKE3 hashes 5,500 MB/s per thread, BLAKE2b 650, and
SHA-256 1,300 with instructions for SHA and 260 without (2026-11). A checksum such as CRC-32C is faster
still, but 32 bits would miss one of four billion changed pages.

Version 1 of the format had the hash BLAKE2b, cut to 32 bytes. A reader accepts both hashes.
"""

from __future__ import annotations

import hashlib
import threading
import zlib
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

from blake3 import blake3

from millstream.backup.objects import BackupObjects
from millstream.errors import CorruptionError

A = TypeVar("A")
B = TypeVar("B")

CHUNK_BYTES = 256 * 1024
NAMES_PER_LIST = 1_024
FOLDER = "chunks"

Piece = bytes | str
"""A chunk, or the name of a chunk that the place has."""

_PLAIN, _ZLIB = b"\x00", b"\x01"
_NAME_BYTES = 32
_DEPTH = 4
"""Pieces of work per thread that are under way at once."""


def digest(data: bytes) -> bytes:
    """Return the hash of bytes."""
    return blake3(data).digest()


def fits(data: bytes, name: str) -> bool:
    """True if bytes have a hash, in hexadecimal digits, of this or of an earlier version."""
    if digest(data).hex() == name:
        return True
    return hashlib.blake2b(data).digest()[:_NAME_BYTES].hex() == name


class ChunkStore:
    """The chunks of a place, for any thread."""

    def __init__(self, objects: BackupObjects, *, compress: bool = False) -> None:
        self._objects = objects
        self._compress = compress
        self.stored_names: set[str] = set()
        """The names of chunks in the place."""
        self._lock = threading.Lock()
        self.stored_bytes = 0
        """Bytes that were written to the place."""
        self.stored_chunks = 0

    def look(self) -> None:
        """Learn the names of the chunks in the place, which are not stored again."""
        self.stored_names = {name.rpartition("/")[2] for name in self._objects.names(FOLDER)}

    def put(self, data: Piece) -> str:
        """Store a chunk unless the place has it, and return its name."""
        name = data if isinstance(data, str) else digest(data).hex()
        with self._lock:
            if name in self.stored_names:
                return name
        if isinstance(data, str):
            raise self._damage(name, "is missing")
        stored = _packed(data) if self._compress else _PLAIN + data
        self._objects.put(path_of(name), stored)
        with self._lock:
            self.stored_names.add(name)
            self.stored_bytes += len(stored)
            self.stored_chunks += 1
        return name

    def get(self, name: str) -> bytes:
        """Return a chunk; raise `CorruptionError` if it is missing or not as it was written."""
        data, damage = self.examine(name)
        if damage:
            raise self._damage(name, damage)
        return data

    def examine(self, name: str) -> tuple[bytes, str]:
        """Return a chunk and an empty text, or no bytes and the damage."""
        stored = self._objects.get(path_of(name))
        if stored is None:
            return b"", "is missing"
        try:
            data = zlib.decompress(stored[1:]) if stored[:1] == _ZLIB else stored[1:]
        except zlib.error as error:
            return b"", f"cannot be unpacked ({error})"
        return (data, "") if fits(data, name) else (b"", "is not as it was written")

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
