"""Copies of the node's store, for download by other nodes in chunks.

A copy is an unlinked file beside the store, so that no file remains however the server ends. Nodes
that ask at about the same time share a copy. A copy is kept while its chunks are downloaded.
"""

from __future__ import annotations

import asyncio
import os
import secrets
from hashlib import blake2b
from pathlib import Path

from msgspec import Struct

from millstream.clock import Clock
from millstream.cluster.node.snapshots import copy
from millstream.engine.protocol import Engine
from millstream.errors import InvalidInput, NotFound, OutOfRange, Overloaded

CHUNK_BYTES = 4 * 1024 * 1024

SHARED_S = 10.0
"""A copy younger than this is offered to another node, too."""

IDLE_S = 120.0
"""How long a copy is kept after the last download of a chunk."""

COPIES_MAX = 2


class OfferedCopy(Struct, frozen=True, kw_only=True):
    """The description of a copy that a node may download."""

    copy: str
    """The name of the copy."""
    size: int
    """The size in bytes."""
    chunk_bytes: int
    """Bytes of each chunk but the last; the first chunk is number 0."""
    sequence: int
    """The last entry of the shared log in the copy."""
    epoch: int


class _Copy:
    """A copy on disk."""

    def __init__(self, engine: Engine, folder: Path) -> None:
        path = folder / f"millstream-copy-{secrets.token_hex(8)}"
        try:
            position = copy(engine, path)
            self._descriptor = os.open(path, os.O_RDONLY)
        finally:
            path.unlink(missing_ok=True)
        self.made_s = self.touched_s = 0.0
        self.offer = OfferedCopy(
            copy=secrets.token_hex(16),
            size=os.fstat(self._descriptor).st_size,
            chunk_bytes=CHUNK_BYTES,
            sequence=position.sequence,
            epoch=position.epoch,
        )

    def read(self, chunk: int) -> bytes:
        """Read a chunk; blocks."""
        first = chunk * CHUNK_BYTES
        if first >= self.offer.size:
            raise OutOfRange(
                f"the copy has {-(-self.offer.size // CHUNK_BYTES)} chunks, from 0; not {chunk}",
                position=chunk,
            )
        return os.pread(self._descriptor, CHUNK_BYTES, first)

    def close(self) -> None:
        os.close(self._descriptor)


class Copies:
    """The copies of one server. Belongs to the server's event loop."""

    def __init__(self, engine: Engine, clock: Clock) -> None:
        self._engine = engine
        self._clock = clock
        self._copies: dict[str, _Copy] = {}
        self._making = asyncio.Lock()

    async def offer(self) -> OfferedCopy:
        """Return a copy of the store as of now, or of a few seconds ago."""
        async with self._making:
            self._sweep()
            now_s = self._clock.seconds()
            for recent in self._copies.values():
                if now_s - recent.made_s < SHARED_S:
                    return recent.offer
            if len(self._copies) >= COPIES_MAX:
                raise Overloaded("other nodes download copies of this store now; try again later")
            folder = self._engine.folder()
            if folder is None:
                raise InvalidInput("this node's rows are not in a file, so they cannot be copied")
            made = await asyncio.to_thread(_Copy, self._engine, folder)
            made.made_s = made.touched_s = self._clock.seconds()
            self._copies[made.offer.copy] = made
            asyncio.get_running_loop().call_later(IDLE_S + 1, self._sweep)
            return made.offer

    async def chunk(self, name: str, number: int) -> tuple[bytes, str]:
        """Return a chunk of a copy, and the digest of the chunk."""
        store_copy = self._copies.get(name)
        if store_copy is None:
            raise NotFound("the copy does not exist, or no longer; ask for a new copy", name=name)
        store_copy.touched_s = self._clock.seconds()
        return await asyncio.to_thread(_digested, store_copy, number)

    def _sweep(self) -> None:
        late_s = self._clock.seconds() - IDLE_S
        idle = [name for name, held in self._copies.items() if held.touched_s < late_s]
        for name in idle:
            self._copies.pop(name).close()

    def close(self) -> None:
        """Close all copies."""
        while self._copies:
            self._copies.popitem()[1].close()


def _digested(store_copy: _Copy, number: int) -> tuple[bytes, str]:
    data = store_copy.read(number)
    return data, digest_of(data)


def digest_of(chunk: bytes) -> str:
    """Return the digest by which the receiver checks a chunk."""
    return blake2b(chunk, digest_size=32).hexdigest()
