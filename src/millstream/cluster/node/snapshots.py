"""Snapshots: a consistent copy of a node's file, and how it replaces the file of another node.

A read-only connection makes the copy beside running commits. The position row of the copy tells its
place in the shared log. The replaced file is moved aside first: a crash in between leaves a node
without rows, which takes another snapshot, and never a file with the write-ahead log of another
file.
"""

from __future__ import annotations

import logging
import os
from contextlib import suppress
from pathlib import Path
from typing import Any, cast

from millstream.cluster.entry import Position, decode_position
from millstream.engine.disk import sync_folder
from millstream.engine.open import open_engine, set_aside
from millstream.engine.protocol import Engine, Exchangeable, SqlEngine
from millstream.errors import CorruptionError, InvalidInput
from millstream.format import keys

_logger = logging.getLogger("millstream.cluster")


NO_POSTS = (
    "this file belongs to a node of a Millstream cluster: nodes change their files only together, so "
    "put messages through the address of a node"
)
"""Why a program cannot post messages into the file of a node."""


def open_member(path: Path, **options: Any) -> Engine:
    """Open the engine of a node's file, without rows if the file is damaged and moved aside.

    The node then recovers its rows from the shared log or from another node.
    """
    try:
        return _opened(path, options)
    except CorruptionError as error:
        aside = _free(path)
        _logger.warning("store_set_aside path=%s aside=%s reason=%s", path, aside, error)
    set_aside(path, aside)
    return _opened(path, options)


def _opened(path: Path, options: dict[str, Any]) -> Engine:
    engine = open_engine(path, **options)
    try:
        with engine.read() as snapshot:
            decode_position(snapshot.get(keys.CLUSTER_KEY))
        if "sql" in engine.abilities and not engine.read_only:
            cast(SqlEngine, engine).refuse_posts(NO_POSTS)
    except BaseException:
        engine.close()
        raise
    return engine


def copy(engine: Engine, path: Path) -> Position:
    """Make a snapshot of a node's store in a new file, and return its position in the shared log."""
    if not hasattr(engine, "copy_to"):
        raise InvalidInput(f"the rows of {engine.place} cannot be copied: they are in no file")
    cast(Exchangeable, engine).copy_to(path)
    return read_position(path)


def read_position(path: Path) -> Position:
    """Return the position of a file in the shared log. Raises `CorruptionError` for a damaged file."""
    engine = open_engine(path, mode="r")
    try:
        with engine.read() as snapshot:
            return decode_position(snapshot.get(keys.CLUSTER_KEY))
    finally:
        engine.close()
        for ending in ("-wal", "-shm"):  # left by this read; the file has no other reader
            with suppress(FileNotFoundError):
                os.unlink(f"{path}{ending}")


def exchange(engine: Engine, path: Path, *, keep_old: bool) -> None:
    """Replace a node's file by a snapshot. A damaged file is kept aside, and never deleted."""
    place = Path(engine.place)
    aside = _free(place)
    _exchangeable(engine).exchange(path, aside=aside)
    if not keep_old:
        for ending in ("", "-wal"):
            with suppress(FileNotFoundError):
                os.unlink(f"{aside}{ending}")
    sync_folder(place)


def _free(place: Path) -> Path:
    """Return an unused name beside a file."""
    number = 1
    while (path := place.with_name(f"{place.name}.aside-{number}")).exists():
        number += 1
    return path


def _exchangeable(engine: Engine) -> Exchangeable:
    if "exchange" not in engine.abilities:
        raise InvalidInput(f"the rows of {engine.place} cannot be exchanged: they are in no file")
    return cast(Exchangeable, engine)
