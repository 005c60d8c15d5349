"""Stores whose rows a test damages: which row holds what, and how it is spoilt or lost."""

from __future__ import annotations

from itertools import count

from millstream import Millstream
from millstream.clock import Clock
from millstream.engine.commit import Commit
from millstream.engine.memory.engine import MemoryEngine
from millstream.format import block as blocks
from millstream.format import entries, keys
from millstream.store.store import Store
from millstream.testing import Probe, SimulatedClock, memory_store


class Fragile:
    """A store in memory that can be damaged while it is open."""

    def __init__(self, clock: Clock | None = None) -> None:
        self.engine = MemoryEngine()
        self.clock = SimulatedClock()
        self.ms = memory_store(self.engine, clock=clock or self.clock)

    @property
    def store(self) -> Store:
        return Probe(self.ms).store

    def settle(self) -> None:
        """Bring every row home, so that reads find it in the engine."""
        fold_all(self.ms)

    def reopen(self) -> Millstream:
        """Close the store and open it again: nothing of it is remembered in memory."""
        self.ms.close()
        self.engine = self.engine.reopen()
        self.ms = memory_store(self.engine, clock=self.clock)
        return self.ms

    def entry(self, log: str, offset: int) -> bytes:
        """The key of the entry that covers a record."""
        log_id = int(self.store.seen(keys.log_name(log)))
        start, (_, stop) = keys.entry(log_id, offset), keys.of_log(keys.ENTRY, log_id)
        with self.engine.read() as snapshot:
            ((key, _),) = snapshot.scan(start, stop, limit=1)
        return key

    def payload(self, log: str, offset: int) -> bytes:
        """The key of the row that holds a record's value, of it alone or of its whole batch."""
        key = self.entry(log, offset)
        with self.engine.read() as snapshot:
            value = snapshot.get(key)
        assert value is not None
        if blocks.is_block(value):
            return keys.payload_block(blocks.decode_header(value, kind=blocks.METADATA).first_id)
        index = offset - entries.extent(key, value)[0]
        return keys.payload(entries.decode(value).ids[index])

    def spoil(self, log: str, *offsets: int) -> None:
        """Damage the values of records."""
        for key in {self.payload(log, offset) for offset in offsets}:
            self.engine.corrupt(key)

    def lose(self, log: str, *offsets: int) -> None:
        """Let the rows of values vanish."""
        with self.engine.write() as writer:
            writer.commit(Commit(deletes={self.payload(log, offset) for offset in offsets}))

    def spoil_entry(self, log: str, offset: int) -> None:
        """Damage the metadata of a record, and of all that are stored with it."""
        self.engine.corrupt(self.entry(log, offset))


_folds = count()


def fold_all(ms: Millstream) -> None:
    """Fold every commit so far: the newest one always stays.

    The newest commit has no record, so no fold joins its rows with the rows of others.
    """
    ms.log("something else").metadata.set("fold", next(_folds))
    ms.fold()
