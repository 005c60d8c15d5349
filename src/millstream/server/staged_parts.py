"""Staged parts of bulk writers, before their commit, in unlinked files beside the store.

Parts are not durable: a server that stops loses them, and the writers stage them again. A file
without a name leaves nothing behind, however the server ends. There are bounds on the bytes of one
transaction, since one commit publishes it, on the bytes of all transactions, and on the idle time.
"""

from __future__ import annotations

import asyncio
import os
import tempfile
import weakref
from pathlib import Path

from msgspec import Struct

from millstream.clock import Clock
from millstream.errors import Conflict, Overloaded, TooLarge

MiB = 1024 * 1024

GiB = 1024 * MiB

TRANSACTION_BYTES_MAX = 16 * GiB
"""Bytes of one transaction, replaced attempts included; the commit reads one part at a time."""

STAGED_BYTES_MAX = 32 * GiB
"""Bytes of all transactions together, on the disk."""

TRANSACTIONS_MAX = 100
PARTS_MAX = 50_000
"""Most parts of one transaction: a commit lists all parts."""

IDLE_S = 15 * 60.0
"""How long the server keeps an idle transaction."""


class Part(Struct, frozen=True):
    """One attempt at a part: its position in the file, and the facts that a commit must repeat."""

    position: int
    size: int
    count: int
    crc: int


class ShelvedParts:
    """The parts of one transaction, in a file of their own."""

    def __init__(self, folder: Path | None) -> None:
        self.parts: dict[tuple[str, int], Part] = {}
        self.size = 0
        self.touched_s = 0.0
        self.descriptor, path = tempfile.mkstemp(prefix="millstream-staging-", dir=folder)
        self.close = weakref.finalize(self, os.close, self.descriptor)
        os.unlink(path)

    def write(self, data: bytes, position: int) -> None:
        """Put bytes into the file; called on a thread."""
        view = memoryview(data)
        while view:
            written = os.pwrite(self.descriptor, view, position)
            position += written
            view = view[written:]

    def read(self, part: Part) -> bytes:
        """Read the bytes of a part; called on a thread."""
        chunks, position, missing = [], part.position, part.size
        while missing:
            chunk = os.pread(self.descriptor, missing, position)
            if not chunk:
                raise Conflict("a staged part was cut short; stage it again")
            chunks.append(chunk)
            position += len(chunk)
            missing -= len(chunk)
        return b"".join(chunks)


class Shelf:
    """The staged transactions of one server, by principal and name."""

    def __init__(self, clock: Clock, folder: Path | None) -> None:
        self.committing = asyncio.Lock()
        """Serializes commits: a commit is large, and first looks for an earlier commit."""
        self._clock = clock
        self._folder = folder
        self._staged: dict[tuple[str, str], ShelvedParts] = {}

    def total_bytes(self) -> int:
        """Return the staged bytes of all transactions."""
        return sum(staged.size for staged in self._staged.values())

    async def add(
        self, key: tuple[str, str], name: tuple[str, int], data: bytes, *, count: int, crc: int
    ) -> None:
        """Store a part; a second attempt replaces the first."""
        self.sweep()
        staged = self._place_for(key, name, len(data))
        position = staged.size
        staged.size += len(data)
        staged.touched_s = self._clock.seconds()
        await asyncio.to_thread(staged.write, data, position)
        staged.parts[name] = Part(position, len(data), count, crc)

    def _place_for(self, key: tuple[str, str], name: tuple[str, int], size: int) -> ShelvedParts:
        staged = self._staged.get(key)
        before = staged.size if staged else 0
        if before + size > TRANSACTION_BYTES_MAX:
            raise TooLarge(
                f"a staged transaction has up to {TRANSACTION_BYTES_MAX:,} bytes; use several",
                size=before + size,
                limit=TRANSACTION_BYTES_MAX,
            )
        if staged and len(staged.parts) >= PARTS_MAX and name not in staged.parts:
            raise TooLarge(
                f"a staged transaction has up to {PARTS_MAX:,} parts; make them larger",
                size=len(staged.parts) + 1,
                limit=PARTS_MAX,
            )
        if self.total_bytes() + size > STAGED_BYTES_MAX:
            raise Overloaded("too much is staged and not committed; try again later")
        if staged is None:
            if len(self._staged) >= TRANSACTIONS_MAX:
                raise Overloaded("too many transactions are staged; try again later")
            staged = self._staged[key] = ShelvedParts(self._folder)
            asyncio.get_running_loop().call_later(IDLE_S + 1, self.sweep)
        return staged

    def find(self, key: tuple[str, str]) -> ShelvedParts | None:
        """Return the parts of a transaction; None if nothing is staged under its key."""
        self.sweep()
        staged = self._staged.get(key)
        if staged is not None:
            staged.touched_s = self._clock.seconds()
        return staged

    def drop(self, key: tuple[str, str]) -> bool:
        """Forget a transaction; False if nothing was staged."""
        return self._staged.pop(key, None) is not None

    def sweep(self) -> None:
        """Forget transactions that have been idle for too long."""
        late_s = self._clock.seconds() - IDLE_S
        for key in [key for key, parts in self._staged.items() if parts.touched_s < late_s]:
            del self._staged[key]
