"""The source of a backup: the pages of one snapshot of a store, wherever the store lies.

    a file             the file itself, beside running commits; also the file of a node of a cluster
    a bucket           its rows, copied into a temporary SQLite file first
    an open store      the engine of a server
    a server           `millstream.remote.backup`: a stream of chunks

A SQLite without a count of frames (before 3.51) cannot be read in large pieces: SQLite's backup API
copies its file first.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Collection, Iterator
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, cast

import msgspec

from millstream.backup.chunks import CHUNK_BYTES, Piece
from millstream.backup.place import BackupPlace
from millstream.backup.point import BackupPoint
from millstream.engine.open import open_engine
from millstream.engine.place import IN_MEMORY, is_address, is_bucket
from millstream.engine.protocol import Engine, FilePages, Paged, Snapshot
from millstream.engine.row_copy import Heard, copy_rows
from millstream.engine.sqlite.page_snapshot import START, WalPosition, has_positions
from millstream.errors import CannotOpen, CorruptionError, InvalidInput
from millstream.format import keys
from millstream.objects.address import parse_address
from millstream.store.state import delta as deltas
from millstream.store.state.delta import StoredDelta


class PointSource(Protocol):
    """A store that a point can be made of."""

    @property
    def store(self) -> str:
        """The id of the store."""

    def capture(
        self, known_names: Collection[str], *, checks_rows: bool, heard: Heard
    ) -> AbstractContextManager[tuple[BackupPoint, Iterator[Piece]]]:
        """Hold a snapshot: a point without lists and times, and the pieces of its file in order.

        A piece may be the name of a chunk in `known_names`. With `checks_rows` all pages and rows are
        checked before; raises `CorruptionError` for a damaged store.
        """


@dataclass(frozen=True, slots=True, kw_only=True)
class BackupSource:
    """The pages of one snapshot, and what the snapshot is."""

    place: str
    store: str
    """The id of the store."""
    seq: int
    committed_ms: int
    file: FilePages
    position: WalPosition
    """The end of the snapshot in the write-ahead log."""
    verify: Callable[[Callable[[], bool]], object]
    """Checks all pages and rows of the store; raises `CorruptionError`."""
    stop: Callable[[], bool] = lambda: False
    """Ends the check of all rows early."""

    @contextmanager
    def capture(
        self, known_names: Collection[str], *, checks_rows: bool, heard: Heard
    ) -> Iterator[tuple[BackupPoint, Iterator[Piece]]]:
        """Read the file in order, from the snapshot that is held already."""
        if checks_rows:
            heard("checking", 0, 0)
            self._check()
        yield self._point(), self._pieces()

    def _check(self) -> None:
        try:
            self.verify(self.stop)
        except CorruptionError as error:
            raise CorruptionError(
                f"{self.place} is damaged and gets no new point: {error.message}", **error.data
            ) from error

    def _point(self) -> BackupPoint:
        return BackupPoint(
            store=self.store,
            seq=self.seq,
            committed_ms=self.committed_ms,
            taken_ms=0,
            checked_ms=0,
            page_bytes=self.file.page_bytes,
            pages=self.file.pages,
            has_checksums=self.file.has_checksums,
            lists=[],
            wal_header=self.position.header.hex(),
            wal_frames=self.position.frames,
            wal_checksum=self.position.checksum.hex(),
        )

    def _pieces(self) -> Iterator[bytes]:
        file = self.file
        pages_per_chunk = CHUNK_BYTES // file.page_bytes
        for first in range(1, file.pages + 1, pages_per_chunk):
            yield file.read(first, min(pages_per_chunk, file.pages - first + 1))


@contextmanager
def open_source(store: str | os.PathLike[str], heard: Heard) -> Iterator[BackupSource]:
    """Hold a snapshot of the store at a path or in a bucket."""
    name = os.fspath(store)
    if name == IN_MEMORY:
        raise InvalidInput("a store in memory has no backup: back up files and buckets")
    if is_address(name):
        raise InvalidInput(
            f"{name.rpartition('@')[2]} is a server: `millstream.remote.backup` reads its store"
        )
    with ExitStack() as opened:
        engine = open_engine(name, mode="r", create=False)
        opened.callback(engine.close)
        yield opened.enter_context(source_of(engine, place=name, heard=heard))


def _quiet(_stage: str, _done: int, _total: int) -> None:
    """Ignore progress."""


@contextmanager
def source_of(
    engine: Engine,
    *,
    place: str,
    heard: Heard | None = None,
    stop: Callable[[], bool] = lambda: False,
) -> Iterator[BackupSource]:
    """Hold a snapshot of an open store; rows that are in no file are copied into one first."""
    with ExitStack() as opened:
        if "pages" not in engine.abilities:
            engine = opened.enter_context(_copied(engine, heard or _quiet))
        if not has_positions():
            engine = opened.enter_context(_paged(engine))
        file, snapshot = opened.enter_context(cast(Paged, engine).pages())
        seq = snapshot.last_seq()
        if not seq:
            raise CannotOpen(f"there is no store at {place}", path=place)
        newest = newest_delta(snapshot)
        yield BackupSource(
            place=place,
            store=store_id(snapshot),
            seq=seq,
            committed_ms=newest.wall_ms,
            file=file,
            position=getattr(file, "position", START),
            verify=cast(Paged, engine).verify,
            stop=stop,
        )


@contextmanager
def _copied(origin: Engine, heard: Heard) -> Iterator[Engine]:
    """Copy the rows of a store into a temporary file, and open the file."""
    with (
        tempfile.TemporaryDirectory(prefix="millstream-backup-") as folder,
        closing(open_engine(Path(folder, "rows.db"))) as made,
    ):
        copy_rows(origin, made, heard)
        yield made


@contextmanager
def _paged(engine: Engine) -> Iterator[Engine]:
    """Copy a file by SQLite's backup API, and open the copy."""
    with tempfile.TemporaryDirectory(prefix="millstream-backup-", dir=engine.folder()) as folder:
        path = Path(folder, "copy.db")
        cast(Paged, engine).copy_to(path)
        with closing(open_engine(path)) as made:
            yield made


def newest_delta(snapshot: Snapshot) -> StoredDelta:
    """Return the newest commit of a store."""
    seq = snapshot.last_seq()
    row = snapshot.get(keys.delta(seq))
    if row is None:
        raise CorruptionError(f"delta {seq} is missing", what="delta", where=seq)
    return deltas.decode(seq, row)


def store_id(snapshot: Snapshot) -> str:
    """Return the id of a store: from its row, or from the first commit if that is not folded yet."""
    row = snapshot.get(keys.STORE_KEY)
    if row is not None:
        return str(msgspec.msgpack.decode(row)[1])
    last = snapshot.last_seq()
    for _, value in snapshot.scan(keys.delta(0), keys.delta(last + 1), limit=deltas.ROWS_PER_SCAN):
        for key, change in msgspec.msgpack.decode(value, type=StoredDelta).changes:
            if key == keys.STORE_KEY:
                return str(msgspec.msgpack.decode(change)[0])
    raise CorruptionError("the store has no id", what="store", where="")


def refuse_overlap(store: str | os.PathLike[str], place: BackupPlace) -> None:
    """Refuse a place inside the store, and a store inside the place."""
    name = os.fspath(store)
    if is_address(name):
        return
    if place.folder is None:
        if is_bucket(name) and not name.lower().startswith("file:"):
            here, there = parse_address(name), parse_address(place.text)
            is_same = (here.scheme, here.bucket) == (there.scheme, there.bucket)
            if is_same and _is_below(f"{here.prefix}/", f"{there.prefix}/"):
                raise _overlap(name, place)
        return
    path = f"/{parse_address(name).prefix}" if is_bucket(name) else name
    if _is_below(f"{os.path.realpath(path)}/", f"{place.folder}/"):
        raise _overlap(name, place)


def _is_below(first: str, second: str) -> bool:
    return first.startswith(second) or second.startswith(first)


def _overlap(name: str, place: BackupPlace) -> InvalidInput:
    return InvalidInput(
        f"the store {name} and the backup {place.text} lie in each other: name a folder beside the "
        "store, better on another disk; nothing was changed"
    )
