"""The engines as the conformance suite asks for them: how each is made and opened again, and its rows.

A new engine is one more entry of `ENGINES`. The suite itself knows no engine by name.
"""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

import pytest

from millstream.engine.commit import Commit, Row
from millstream.engine.memory.engine import MemoryEngine
from millstream.engine.open import open_engine
from millstream.engine.place import IN_MEMORY
from millstream.engine.protocol import Engine


class EngineKit(Protocol):
    """What tests do with one kind of engine that no caller does."""

    def make(self, folder: Path) -> Engine:
        """A new engine without rows; what it keeps on disk lies in the folder."""

    def reopen(self, engine: Engine) -> Engine:
        """An engine over what another one, closed or crashed, has left."""


class _Sqlite:
    def make(self, folder: Path) -> Engine:
        return open_engine(folder / "store.db")

    def reopen(self, engine: Engine) -> Engine:
        return open_engine(engine.place)


class _Memory:
    def make(self, folder: Path) -> Engine:
        return open_engine(IN_MEMORY)

    def reopen(self, engine: Engine) -> Engine:
        assert isinstance(engine, MemoryEngine)
        return engine.reopen()


class _Slate:
    """On a folder; `tests/integration/test_object_storage.py` asks the same of a server of objects."""

    def make(self, folder: Path) -> Engine:
        return open_engine(f"file://{folder}/bucket")

    def reopen(self, engine: Engine) -> Engine:
        return open_engine(engine.place)


ENGINES: dict[str, EngineKit] = {"sqlite": _Sqlite(), "memory": _Memory(), "slatedb": _Slate()}
"""Every engine that there is, by the name that it says of itself."""

EVERY_ENGINE = [
    pytest.param(name, marks=pytest.mark.requires("s3")) if name == "slatedb" else name
    for name in ENGINES
]
"""The same as parameters of a test."""


def apply(engine: Engine, commit: Commit) -> None:
    """Do to an engine's rows what a commit did to those of another."""
    with engine.write() as writer:
        writer.commit(commit)


def all_rows(engine: Engine) -> list[Row]:
    """Every row of an engine, in the order of the keys."""
    found: list[Row] = []
    with engine.read() as snapshot:
        for kind in range(256):
            start, stop = bytes((1, kind)), bytes((1, kind + 1)) if kind < 255 else b"\x02"
            while rows := snapshot.scan(start, stop, limit=1_000):
                found += rows
                start = rows[-1][0] + b"\x00"
    return found
