"""The engines that there are: from the place of a store to the engine that keeps it."""

from __future__ import annotations

import os
from typing import Any

from millstream.clock import Clock
from millstream.errors import InvalidInput
from millstream.limits import Limits
from millstream.store.engine import Durability, Engine
from millstream.store.memory import MemoryEngine
from millstream.store.place import IN_MEMORY, check_file
from millstream.store.sqlite import SqliteEngine
from millstream.store.sqlite_options import SqliteOptions

EngineOptions = SqliteOptions
"""Options of one engine; `open_engine` refuses those of another."""


def open_engine(
    place: str | os.PathLike[str],
    *,
    durability: Durability = "full",
    options: EngineOptions | None = None,
    limits: Limits | None = None,
    clock: Clock | None = None,
    **of_files: Any,
) -> Engine:
    """The engine of a place: a file is SQLite's, and `:memory:` is memory.

    `of_files` are `SqliteEngine`'s own arguments. An engine in memory has no use for them.
    """
    if os.fspath(place) == IN_MEMORY:
        if options is not None:
            raise InvalidInput(f"options={type(options).__name__} is for a file, not for memory")
        return MemoryEngine(durability=durability)
    check_file(place)
    return SqliteEngine(
        place, durability=durability, options=options, limits=limits, clock=clock, **of_files
    )
