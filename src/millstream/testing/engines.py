"""The engines as the conformance suite asks for them: how each is made, opened again and damaged.

A new engine is one more entry of `ENGINES`. The suite itself knows no engine by name.
"""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

import apsw

from millstream.errors import InvalidInput
from millstream.format import keys
from millstream.store.engine import Engine
from millstream.store.engines import open_engine
from millstream.store.memory import MemoryEngine
from millstream.store.place import IN_MEMORY
from millstream.store.sqlite_rows import NUMBERED, RECORD


class EngineKit(Protocol):
    """What tests do with one kind of engine that no caller does."""

    def make(self, folder: Path) -> Engine:
        """A new engine without rows; what it keeps on disk lies in the folder."""

    def reopen(self, engine: Engine) -> Engine:
        """An engine over what another one, closed or crashed, has left."""

    def corrupt(self, engine: Engine, key: bytes) -> None:
        """Flip one bit of a stored value, behind the engine's back."""


class _Sqlite:
    def make(self, folder: Path) -> Engine:
        return open_engine(folder / "store.db")

    def reopen(self, engine: Engine) -> Engine:
        return open_engine(engine.place)

    def corrupt(self, engine: Engine, key: bytes) -> None:
        """By a plain connection: it writes sound pages, so that the row's own checksum must tell."""
        table = NUMBERED.get(key[1])
        column, at = ("id", keys.number(key)) if table else ("key", key)
        row = f"{table or RECORD} WHERE {column} = ?"
        connection = apsw.Connection(engine.place)
        try:
            found = connection.execute(f"SELECT value FROM {row}", (at,)).fetchone()
            if found is None:
                raise _missing(key)
            flipped = bytes((found[0][0] ^ 8, *found[0][1:]))
            row = f"{table or RECORD} SET value = ? WHERE {column} = ?"
            connection.execute(f"UPDATE {row}", (flipped, at))
        finally:
            connection.close()


class _Memory:
    def make(self, folder: Path) -> Engine:
        return open_engine(IN_MEMORY)

    def reopen(self, engine: Engine) -> Engine:
        assert isinstance(engine, MemoryEngine)
        return engine.reopen()

    def corrupt(self, engine: Engine, key: bytes) -> None:
        assert isinstance(engine, MemoryEngine)
        if key not in dict(engine.survivors()):
            raise _missing(key)
        engine.corrupt(key, bit=3)


def _missing(key: bytes) -> InvalidInput:
    return InvalidInput(f"there is no row {key.hex()} to damage; what is unfolded has no row yet")


ENGINES: dict[str, EngineKit] = {"sqlite": _Sqlite(), "memory": _Memory()}
"""Every engine that there is, by the name that it says of itself."""


def corrupt(engine: Engine, key: bytes) -> None:
    """Flip one bit of a stored value of an engine of any kind: the next read of it must notice."""
    ENGINES[engine.describe()["engine"]].corrupt(engine, key)
