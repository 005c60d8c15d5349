"""The SQLite engine: one file, many threads, many processes.

Records lie in one table with an index by key: in a table that is itself sorted by key, large values
would stand between the keys, and a search would read many more pages. What is keyed by one number
(payloads, payload blocks, deltas) lies in tables by that number. Beside each row stands the CRC32C of
its key and value, checked whenever the row is read; SQLite's checksum layer does so with each page.

Writers take turns by `BEGIN IMMEDIATE`; readers never wait. Checkpoints run on a connection of
their own. "Database is locked" is waited for, and becomes `Overloaded` in the end.
"""

from __future__ import annotations

import os
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any

import apsw

from millstream.clock import Clock, SystemClock
from millstream.errors import (
    CannotOpen,
    Closed,
    CorruptionError,
    MillstreamError,
    OutcomeUnknown,
    Overloaded,
    WriteFailed,
)
from millstream.limits import Limits
from millstream.store.disk import DiskSpace, full
from millstream.store.engine import Ability, Durability, Shortage
from millstream.store.polling import poll
from millstream.store.sqlite_check import check_pages
from millstream.store.sqlite_checkpoints import Checkpoints
from millstream.store.sqlite_copy import copy_file, exchange_file
from millstream.store.sqlite_file import (
    FILE_MODE,
    PAGE_BYTES,
    check_mode,
    connect,
    create,
    damaged,
    explained,
    inspect,
    is_damage,
    patience,
    sync_folder,
)
from millstream.store.sqlite_options import SqliteOptions
from millstream.store.sqlite_pages import checksum_layer, is_verified
from millstream.store.sqlite_repair import break_in_log, repair_log
from millstream.store.sqlite_room import LogRoom
from millstream.store.sqlite_rows import SqliteReader, SqliteWriter

READERS_KEPT = 8

READS_S_MAX = 10.0
"""How long closing waits for running reads: an interrupted one may never report that it ended."""

_open_paths: Counter[str] = Counter()
"""How many engines of this process have a file open."""


def is_open_here(path: Path) -> bool:
    """Whether this process uses a file: then it must not be opened and closed by other means.

    Closing any descriptor of a file drops all locks that the process has on it.
    """
    return _open_paths[os.path.realpath(path)] > 0


class SqliteEngine:
    """Rows in one SQLite file."""

    shared = True
    abilities: frozenset[Ability] = frozenset({"sql", "forks"})

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        durability: Durability = "full",
        options: SqliteOptions | None = None,
        limits: Limits | None = None,
        clock: Clock | None = None,
        vfs: str | None = None,
        read_only: bool = False,
        accept_loss: bool = False,
        file_mode: int | None = None,
    ) -> None:
        """Open or make a file; one that is there keeps its mode.

        A write-ahead log whose damage cuts off commits is refused; with `accept_loss` the store
        opens as it was before them, and they are gone. `vfs` names the layer that SQLite reaches
        files by, instead of the one with checksums of pages.
        """
        self.path = Path(path).absolute()
        self.place = str(self.path)
        self.on_upkeep_due: Callable[[], None] | None = None
        self.on_damage: Callable[[CorruptionError], None] | None = None
        """Called by any thread that meets a damaged row or page, before its caller is told."""
        self.read_only = read_only
        self.durability: Durability = durability
        self.commits = 0
        self._options = options or SqliteOptions()
        self._clock = clock or SystemClock()
        self._vfs = vfs or checksum_layer()
        self._page_checksums = False
        self._lock = threading.Lock()
        self._writer: SqliteWriter | None = None
        self._tender: apsw.Connection | None = None
        self._readers: list[SqliteReader] = []
        self._in_use = 0
        self._idle = threading.Condition(self._lock)
        self._checkpoints = Checkpoints(self._options)
        self._log_room = LogRoom(os.path.realpath(self.path)) if vfs is None else None
        """None if SQLite reaches files by another layer, which has to see every write."""
        self._closed = False
        self._suspended = False
        self._real_path = os.path.realpath(self.path)
        self._room = DiskSpace(os.path.dirname(self._real_path), limits or Limits(), self._clock)
        log_was_left = False
        if not is_open_here(self.path):
            inspect(self.path)
            log_was_left = self._wal_file_bytes() > 0
        if not read_only:
            mode = FILE_MODE if file_mode is None else check_mode(file_mode)
            create(self.path, busy=self._busy(), vfs=self._vfs, file_mode=mode)
        elif not self.path.exists() or not self.path.stat().st_size:
            raise CannotOpen(f"{self.path}: there is no store", path=str(self.path))
        connection = self._connect()
        try:
            self._page_checksums = is_verified(connection)
            if log_was_left:
                self._check_log(connection, accept_loss=accept_loss)
            if not read_only:
                self._writer = self._make_writer(connection)
        except BaseException as error:
            _close(connection, checkpoint=False)
            if isinstance(error, apsw.Error):
                raise self._damaged(error) from error
            raise
        if read_only:
            self._readers.append(SqliteReader(connection))
        _open_paths[self._real_path] += 1

    def write(self, *, waits: bool = True) -> SqliteWriter:
        """Wait for the turn to write; leaving without a commit undoes it all."""
        if self.read_only:
            raise CannotOpen(f"{self.path} was opened to be read only", path=str(self.path))
        writer = self._writer or self._reopen_writer()
        writer.waits = waits
        return writer

    def read(self) -> PooledSnapshot:
        """A snapshot on a connection from the pool."""
        return PooledSnapshot(self)

    def last_seq(self) -> int:
        """The sequence of the newest delta."""
        reader = self._take_reader()
        try:
            return reader.last_seq()
        except apsw.Error as error:
            raise self._damaged(error) from error
        finally:
            self._give_reader(reader)

    def await_change(self, seen: int, stop: threading.Event) -> bool:
        """Look every few milliseconds for what other processes have committed."""
        return poll(lambda: self.last_seq() != seen, stop)

    def upkeep(self, alone: AbstractContextManager[object]) -> None:
        """Copy the write-ahead log into the file if it has grown enough, also by others."""
        self._checkpoints.notice(self._wal_file_bytes())
        if self._checkpoints.is_due():
            self.checkpoint(alone)

    def checkpoint(self, alone: AbstractContextManager[object]) -> None:
        """Copy the write-ahead log into the file, whether it has grown or not."""
        self._checkpoints.run(self._copy_log, alone)

    def shortage(self) -> Shortage | None:
        """Whether the disk has too little room."""
        return self._room.shortage(self._checkpoints.wal_bytes)

    def folder(self) -> Path | None:
        """The folder of the file, wherever links lead."""
        return Path(self._real_path).parent

    def recover(self) -> None:
        """Write what the write-ahead log holds to disk once more; the writer is opened anew."""
        with self._held():
            found: list[apsw.Connection] = []
            try:
                found = [self._connect(), self._connect()]
                repair_log(Path(self._real_path), turn=found[0], other=found[1])
            except apsw.Error as error:
                raise self._refused(error) from error
            except OSError as error:
                raise WriteFailed(f"{self.path}: {error}", path=str(self.path)) from error
            finally:
                for connection in found:
                    _close(connection, checkpoint=False)
            with self._lock:
                writer, self._writer = self._writer, None
            if writer is not None:
                _close(writer.connection, checkpoint=False)

    def suspend(self) -> None:
        """Before a fork: close every connection, without a checkpoint, and hold back new ones."""
        with self._idle:
            self._suspended = True
            self._idle.wait_for(lambda: not self._in_use, READS_S_MAX)
            self._drop_connections(checkpoint=False)

    def resume(self, *, in_child: bool) -> None:
        """After the fork: connections are opened again when they are needed."""
        if in_child:
            self._lock = threading.Lock()
            self._idle = threading.Condition(self._lock)
        with self._idle:
            self._suspended = False
            self._idle.notify_all()

    def copy_to(self, path: Path) -> None:
        """Write a consistent copy of the whole file into a new one, beside running commits."""
        with self.read() as snapshot:
            snapshot.last_seq()  # the transaction sees from now on what it saw at its first read
            copy_file(snapshot.connection, path, vfs=self._vfs)

    def verify(self, stop: Callable[[], bool]) -> bool:
        """Read every page, beside running commits; False if it was stopped.

        Raises `CorruptionError` for a damaged one.
        """
        with self.read() as snapshot:
            return check_pages(snapshot.connection, stop, place=self.place)

    def exchange(self, path: Path, *, aside: Path) -> None:
        """Put another file in the place of this one, which goes aside; reads wait meanwhile."""
        self.suspend()
        try:
            exchange_file(Path(self._real_path), path, aside=aside)
        finally:
            self.resume(in_child=False)

    def close(self) -> None:
        """Close every connection; the last one to go checkpoints and removes the log."""
        with self._idle:
            if self._closed:
                return
            self._closed = True
            self._idle.wait_for(lambda: not self._in_use, READS_S_MAX)
            self._drop_connections(checkpoint=not (self.read_only and self._wal_file_bytes()))
            _open_paths[self._real_path] -= 1

    def describe(self) -> dict[str, Any]:
        """Facts for `stats`."""
        return {
            "engine": "sqlite",
            "durability": self.durability,
            "file_bytes": self.path.stat().st_size,
            "wal_bytes": self._wal_file_bytes(),
            "page_checksums": self._page_checksums,
            "sqlite_version": apsw.sqlite_lib_version(),
        }

    def _refused(self, error: apsw.Error) -> MillstreamError:
        """Why a transaction to write could not be begun."""
        if isinstance(error, apsw.BusyError):
            return Overloaded(
                f"{self.path}: other processes kept the write lock for "
                f"{self._options.busy_timeout_ms / 1000:g} s",
                path=str(self.path),
            )
        if isinstance(error, apsw.FullError):
            return full(os.path.dirname(self._real_path), str(error))
        failed = isinstance(error, apsw.IOError | apsw.ReadOnlyError)
        if failed and not is_damage(error):
            return WriteFailed(f"{self.path}: {error}", path=str(self.path))
        return self._damaged(error)

    def _wal_file_bytes(self) -> int:
        try:
            return os.stat(f"{self.path}-wal").st_size
        except FileNotFoundError:
            return 0

    def _connect(self) -> apsw.Connection:
        connection = connect(self.path, busy=self._busy(), vfs=self._vfs, read_only=self.read_only)
        level = "FULL" if self.durability == "full" else "NORMAL"
        connection.execute(f"PRAGMA synchronous = {level}")
        if self.read_only:
            connection.execute("PRAGMA query_only = 1")
            connection.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1)
        return connection

    def _make_writer(self, connection: apsw.Connection) -> SqliteWriter:
        sync_folder(self.path)  # SQLite has made the log by now, if there was none
        connection.set_wal_hook(self._on_wal)
        room = None if self.durability == "relaxed" else self._log_room
        writer = SqliteWriter(connection, busy=self._busy(), refused=self._refused, room=room)
        writer.on_damage = self._tell_damage
        return writer

    def _on_wal(self, _connection: apsw.Connection, _name: str, pages: int) -> int:
        self.commits += 1
        if self._log_room is not None:
            self._log_room.note(pages)
        due = self._checkpoints.committed(pages * PAGE_BYTES)
        if due and self.on_upkeep_due is not None:
            self.on_upkeep_due()
        return apsw.SQLITE_OK

    def _reopen_writer(self) -> SqliteWriter:
        with self._lock:
            if self._closed:
                raise self._gone()
            if self._writer is None:
                connection = self._connect()
                try:
                    self._writer = self._make_writer(connection)
                except BaseException:
                    _close(connection, checkpoint=False)
                    raise
            return self._writer

    def _check_log(self, connection: apsw.Connection, *, accept_loss: bool) -> None:
        """Refuse a log that a dead process has left if acknowledged commits in it are cut off."""
        if break_in_log(self.path, connection) is None:
            return
        other = connect(self.path, busy=self._busy(), vfs=self._vfs, read_only=self.read_only)
        try:
            other.execute("BEGIN IMMEDIATE")  # another process may have been writing just now
            found = break_in_log(self.path, connection)
        finally:
            _close(other, checkpoint=False)
        if found is None:
            return
        torn = self.durability == "relaxed" and found.may_be_torn
        if not (accept_loss or torn):
            raise damaged(
                self.path, f"{found}; to go on without them, open it with accept_loss=True"
            )
        if not self.read_only:  # or the next one to open it would find the same
            connection.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_TRUNCATE)

    def _take_reader(self) -> SqliteReader:
        with self._lock:
            self._begin_use()
            if self._readers:
                return self._readers.pop()
        try:
            reader = SqliteReader(self._connect())
        except BaseException:
            self._end_use()
            raise
        reader.on_damage = self._tell_damage
        return reader

    def _tell_damage(self, error: CorruptionError) -> None:
        if self.on_damage is not None:
            self.on_damage(error)

    def _give_reader(self, reader: SqliteReader) -> None:
        with self._lock:
            self._in_use -= 1
            if len(self._readers) < READERS_KEPT:
                self._readers.append(reader)
            else:
                reader.connection.close()
            if self._closed or self._suspended:
                self._idle.notify_all()

    @contextmanager
    def _held(self) -> Iterator[None]:
        """Keep forks and closing from going on meanwhile."""
        with self._lock:
            self._begin_use()
        try:
            yield
        finally:
            self._end_use()

    def _begin_use(self) -> None:
        """Wait for a running fork, and keep the next one back; called under the lock."""
        while self._suspended:
            self._idle.wait()
        if self._closed:
            raise self._gone()
        self._in_use += 1

    def _end_use(self) -> None:
        with self._idle:
            self._in_use -= 1
            self._idle.notify_all()

    def _gone(self) -> Closed:
        return Closed(f"{self.path} was closed", path=str(self.path))

    def _copy_log(self, mode: int) -> tuple[int, int] | None:
        if self._closed:
            return None
        with self._held():
            with self._lock:
                if self._tender is None:
                    self._tender = self._connect()
            return self._copy(self._tender, mode)

    def _copy(self, tender: apsw.Connection, mode: int) -> tuple[int, int] | None:
        try:
            pages, copied_pages = tender.wal_checkpoint(mode=mode)
            return pages * PAGE_BYTES, copied_pages * PAGE_BYTES
        except apsw.BusyError:
            return None  # another process reads or writes just now; the next commit asks again
        except apsw.Error as error:
            if is_damage(error):
                raise self._damaged(error) from error
            if getattr(error, "extendedresult", 0) == apsw.SQLITE_IOERR_FSYNC:
                raise OutcomeUnknown(f"{self.path}: checkpoint: {error}") from error
            raise WriteFailed(f"{self.path}: checkpoint: {error}") from error

    def _drop_connections(self, *, checkpoint: bool) -> None:
        found = [reader.connection for reader in self._readers]
        found += [self._writer.connection] if self._writer else []
        found += [self._tender] if self._tender else []
        self._readers.clear()
        self._tender = self._writer = None
        for connection in found:
            _close(connection, checkpoint=checkpoint)

    def _busy(self) -> Callable[[int], bool]:
        return patience(self._clock, self._options.busy_timeout_ms / 1000)

    def _damaged(self, error: apsw.Error) -> MillstreamError:
        if isinstance(error, apsw.BusyError | apsw.LockedError):
            return Overloaded(f"{self.path} is busy: {error}", path=str(self.path))
        return explained(error, self.path)


def _close(connection: apsw.Connection, *, checkpoint: bool) -> None:
    """Close a connection; the last one of all copies the log into the file, if it is to."""
    connection.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 0 if checkpoint else 1)
    connection.close()


class PooledSnapshot:
    """A snapshot while it is open: a reader of the engine's pool, in a transaction."""

    __slots__ = ("_engine", "_reader")

    def __init__(self, engine: SqliteEngine) -> None:
        self._engine = engine

    def __enter__(self) -> SqliteReader:
        reader = self._reader = self._engine._take_reader()
        try:
            reader.begin()
        except BaseException as error:
            self._engine._give_reader(reader)
            if isinstance(error, apsw.Error):
                raise self._engine._damaged(error) from error
            raise
        return reader

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            self._reader.end()
        except apsw.Error as failed:
            raise self._engine._damaged(failed) from failed
        finally:
            self._engine._give_reader(self._reader)
        if isinstance(error, apsw.Error):
            raise self._engine._damaged(error) from error
