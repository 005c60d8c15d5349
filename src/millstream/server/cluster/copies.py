"""Copies of this node's store that other nodes fetch, in chunks that are asked for one by one.

A copy lies in an unlinked file beside the store, so that none is left behind however the server ends.
Nodes that ask at about the same time share one. It is kept for as long as chunks are asked for.
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
"""A copy that is younger is given to another node as well."""

IDLE_S = 120.0
"""How long a copy is kept of which no chunk is asked for."""

COPIES_MAX = 2


class OfferedCopy(Struct, frozen=True, kw_only=True):
    """What a node is told of a copy that it may fetch."""

    copy: str
    """Its name."""
    size: int
    """Bytes."""
    chunk_bytes: int
    """Bytes of each chunk but the last; the first chunk is number 0."""
    sequence: int
    """The last entry of the shared log that is in it."""
    epoch: int


class _Copy:
    """One copy, on the disk."""

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
        """A chunk; blocks."""
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
    """The copies of one server; belongs to its event loop."""

    def __init__(self, engine: Engine, clock: Clock) -> None:
        self._engine = engine
        self._clock = clock
        self._kept: dict[str, _Copy] = {}
        self._making = asyncio.Lock()

    async def offer(self) -> OfferedCopy:
        """A copy of the store as it is now, or was a moment ago."""
        async with self._making:
            self._sweep()
            now_s = self._clock.seconds()
            for one in self._kept.values():
                if now_s - one.made_s < SHARED_S:
                    return one.offer
            if len(self._kept) >= COPIES_MAX:
                raise Overloaded("other nodes fetch copies of this store now; try again later")
            folder = self._engine.folder()
            if folder is None:
                raise InvalidInput("this node's rows are in no file, so there is no copy of them")
            made = await asyncio.to_thread(_Copy, self._engine, folder)
            made.made_s = made.touched_s = self._clock.seconds()
            self._kept[made.offer.copy] = made
            asyncio.get_running_loop().call_later(IDLE_S + 1, self._sweep)
            return made.offer

    async def chunk(self, name: str, number: int) -> tuple[bytes, str]:
        """A chunk of a copy, and its digest."""
        found = self._kept.get(name)
        if found is None:
            raise NotFound("there is no such copy, or no longer; ask for another one", name=name)
        found.touched_s = self._clock.seconds()
        return await asyncio.to_thread(_digested, found, number)

    def _sweep(self) -> None:
        late_s = self._clock.seconds() - IDLE_S
        for name in [name for name, one in self._kept.items() if one.touched_s < late_s]:
            self._kept.pop(name).close()

    def close(self) -> None:
        """Let go of all."""
        while self._kept:
            self._kept.popitem()[1].close()


def _digested(found: _Copy, number: int) -> tuple[bytes, str]:
    data = found.read(number)
    return data, digest_of(data)


def digest_of(chunk: bytes) -> str:
    """What shows that a chunk came as it was sent."""
    return blake2b(chunk, digest_size=32).hexdigest()
