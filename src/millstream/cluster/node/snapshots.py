"""Snapshots: a consistent copy of a node's file, and how it takes the place of another's.

A copy is made on a connection to read, beside running commits. Its position row says where it stands
in the shared log. The file that is exchanged is moved aside first: a crash in between leaves a node
without rows, which takes another snapshot, and never a file with another one's write-ahead log.
"""

from __future__ import annotations

import logging
import os
from contextlib import suppress
from pathlib import Path
from typing import Any, Protocol, cast

from millstream.cluster.entry import Position, decode_position
from millstream.engine.open import open_engine
from millstream.engine.protocol import Engine
from millstream.engine.sqlite.copy import move_aside
from millstream.engine.sqlite.file import sync_folder
from millstream.errors import CorruptionError, InvalidInput
from millstream.format import keys

_logger = logging.getLogger("millstream.cluster")


class Exchangeable(Protocol):
    """What an engine has whose whole rows can be copied and exchanged."""

    def copy_to(self, path: Path) -> None:
        """Write a consistent copy of all rows and tables into a new file."""

    def exchange(self, path: Path, *, aside: Path) -> None:
        """Put a file in the place of this one, which goes aside; reads wait meanwhile."""


def open_member(path: Path, **options: Any) -> Engine:
    """The engine of a node's own file; a damaged one goes aside, and the node begins without rows.

    It then takes what it had from the shared log or from another node.
    """
    try:
        return _opened(path, options)
    except CorruptionError as error:
        aside = _free(path)
        _logger.warning("store_set_aside path=%s aside=%s reason=%s", path, aside, error)
    move_aside(path, aside)
    sync_folder(path)
    return _opened(path, options)


def _opened(path: Path, options: dict[str, Any]) -> Engine:
    engine = open_engine(path, member=True, **options)
    try:
        with engine.read() as snapshot:
            decode_position(snapshot.get(keys.CLUSTER_KEY))
    except BaseException:
        engine.close()
        raise
    return engine


def copy(engine: Engine, path: Path) -> Position:
    """Make a snapshot of a node's store in a new file; answers where it stands in the shared log."""
    if not hasattr(engine, "copy_to"):
        raise InvalidInput(f"the rows of {engine.place} cannot be copied: they are in no file")
    cast(Exchangeable, engine).copy_to(path)
    return read_position(path)


def read_position(path: Path) -> Position:
    """Where a file stands in the shared log; a damaged one raises `CorruptionError`."""
    engine = open_engine(path, mode="r")
    try:
        with engine.read() as snapshot:
            return decode_position(snapshot.get(keys.CLUSTER_KEY))
    finally:
        engine.close()
        for ending in ("-wal", "-shm"):  # of a look at a file that nobody else has
            with suppress(FileNotFoundError):
                os.unlink(f"{path}{ending}")


def exchange(engine: Engine, path: Path, *, keep_old: bool) -> None:
    """Put a snapshot in the place of a node's file; a damaged one is kept aside, and never deleted."""
    place = Path(engine.place)
    aside = _free(place)
    _exchangeable(engine).exchange(path, aside=aside)
    if not keep_old:
        for ending in ("", "-wal"):
            with suppress(FileNotFoundError):
                os.unlink(f"{aside}{ending}")
    sync_folder(place)


def _free(place: Path) -> Path:
    """A name beside a file that is not taken."""
    number = 1
    while (found := place.with_name(f"{place.name}.aside-{number}")).exists():
        number += 1
    return found


def _exchangeable(engine: Engine) -> Exchangeable:
    if not hasattr(engine, "exchange"):
        raise InvalidInput(f"the rows of {engine.place} cannot be exchanged: they are in no file")
    return cast(Exchangeable, engine)
