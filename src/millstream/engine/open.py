"""Opening an engine: from the place of a store to SQLite, SlateDB or memory."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, get_args

from millstream.clock import Clock
from millstream.engine.disk import sync_folder
from millstream.engine.memory.engine import MemoryEngine
from millstream.engine.place import IN_MEMORY, check_file, check_there, is_bucket
from millstream.engine.protocol import Durability, Engine, Mode
from millstream.engine.slate.binding import load
from millstream.engine.slate.engine import SlateEngine
from millstream.engine.slate.options import SlateOptions
from millstream.engine.sqlite.copy import move_aside
from millstream.engine.sqlite.engine import SqliteEngine
from millstream.engine.sqlite.options import SqliteOptions
from millstream.errors import InvalidInput
from millstream.limits import Limits


def open_engine(
    place: str | os.PathLike[str],
    *,
    mode: Mode = "rw",
    create: bool = True,
    durability: Durability = "full",
    options: SqliteOptions | SlateOptions | None = None,
    limits: Limits | None = None,
    clock: Clock | None = None,
    before_fencing: Callable[[], None] | None = None,
    adopt: bool = False,
    **of_files: Any,
) -> Engine:
    """Open the engine of a place: SQLite for a file, SlateDB for a bucket, memory for `:memory:`.

    Opening a bucket to write fences its present writer. `before_fencing` is called right before, and
    may still refuse by an error. A node's file is opened as any other file; the package `embedded`
    refuses to write it. `adopt` allows to change the journal mode of an application's database. `of_files` are arguments of `SqliteEngine` alone, ignored for other places.
    """
    if durability not in get_args(Durability):
        raise InvalidInput(f"durability is 'full' or 'relaxed', not {durability!r}")
    if is_bucket(place):
        if isinstance(options, SqliteOptions):
            raise InvalidInput("options=SqliteOptions is for a file: give SlateOptions")
        return SlateEngine(
            str(place),
            read_only=mode == "r",
            create=create,
            durability=durability,
            options=options,
            limits=limits,
            clock=clock,
            before_fencing=before_fencing,
        )
    if isinstance(options, SlateOptions):
        raise InvalidInput("options=SlateOptions is for object storage, such as s3://bucket/prefix")
    if os.fspath(place) == IN_MEMORY:
        if mode == "r" or not create:
            raise InvalidInput("mode='r' and create=False are for a file: memory begins empty")
        if options is not None:
            raise InvalidInput(f"options={type(options).__name__} is for a file, not for memory")
        return MemoryEngine(durability=durability)
    check_file(place)
    if mode == "r" or not create:
        check_there(place, "" if mode == "r" else "; create=True makes one")
    return SqliteEngine(
        place,
        adopt=(adopt or None) if create else False,
        durability=durability,
        options=options,
        limits=limits,
        clock=clock,
        read_only=mode == "r",
        **of_files,
    )


def load_engine(place: str | os.PathLike[str]) -> None:
    """Import the packages that the engine of a place needs; `CannotOpen` if one is missing.

    A standby calls it before it waits for its lease: an import would delay the takeover.
    """
    if is_bucket(place):
        load()


def set_aside(path: Path, aside: Path) -> None:
    """Give the file of a store that cannot be opened another name, durably; no process has it open."""
    move_aside(path, aside)
    sync_folder(path)
