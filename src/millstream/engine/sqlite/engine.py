"""The SQLite engine: one file, many threads, many processes.

Records lie in one table with two indexes by key. In a table that is itself sorted by key, large values
would lie between the keys, and a search would read many more pages. Rows that are keyed by one number
(payloads, payload blocks, deltas) lie in tables by that number. Beside each row lies the CRC32C of
its key and value, compared at each read. The second index shows rows that the first index has lost
(`schema.py`).

Writers take turns by `BEGIN IMMEDIATE`; readers never wait. Checkpoints run on a separate
connection. The engine waits while the database is locked, and raises `Overloaded` after a timeout.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

import apsw

from millstream.clock import Clock, SystemClock
from millstream.engine.disk import DiskSpace, FileSpace, sync_folder
from millstream.engine.protocol import (
    Ability,
    Durability,
    Reference,
    ScrubStep,
    StepBounds,
    poll,
)
from millstream.engine.sqlite.checkpoint import Checkpoints, WalPreallocation
from millstream.engine.sqlite.checks import check_pages
from millstream.engine.sqlite.compaction import Compaction, FileUse, file_use
from millstream.engine.sqlite.copy import PagesCopied, copy_file, exchange_file
from millstream.engine.sqlite.failures import failed_begin, failed_task, failed_use
from millstream.engine.sqlite.file import (
    PAGE_BYTES,
    close_connection,
    connect,
    no_store,
    patience,
)
from millstream.engine.sqlite.identity import Home, size_of
from millstream.engine.sqlite.neighbour import (
    closed,
    guard_of,
    has_neighbour,
    opened,
)
from millstream.engine.sqlite.opening import FileOpening
from millstream.engine.sqlite.options import SqliteOptions, fitted
from millstream.engine.sqlite.page_snapshot import PageSnapshot
from millstream.engine.sqlite.pages import is_verified
from millstream.engine.sqlite.pool import PooledSnapshot, ReaderPool, TaskConnections
from millstream.engine.sqlite.rows import OnDamage, SqliteReader
from millstream.engine.sqlite.schema import has_tables, refuse_posts
from millstream.engine.sqlite.scrub import STAGES, bound_cache, scrub_step
from millstream.engine.sqlite.wal import FRAME_BYTES, repair_log
from millstream.engine.sqlite.wal_events import WalEvents
from millstream.engine.sqlite.writer import SqliteWriter
from millstream.errors import (
    CannotOpen,
    CorruptionError,
    MillstreamError,
    StoreGone,
    WriteFailed,
)
from millstream.limits import Limits


class SqliteEngine:
    """Rows in one SQLite file."""

    shared = True
    writes_alone = False
    abilities: frozenset[Ability] = frozenset(
        {"sql", "forks", "scrub", "changesets", "pages", "exchange"}
    )
    scrub_stages = STAGES

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
        adopt: bool | None = None,
    ) -> None:
        """Open or create a file; an existing file keeps its mode.

        A database without our tables becomes a store if it is in write-ahead mode, with `adopt` in
        every mode, and with `adopt=False` in no mode.

        A damaged write-ahead log that cuts off commits is refused. With `accept_loss` the store
        opens without these commits, and they are lost. `vfs` names the layer through which SQLite
        reaches files, in place of the layer with page checksums.
        """
        self.path = Path(path).absolute()
        self.place = str(self.path)
        self.on_upkeep_due: Callable[[], None] | None = None
        self.on_damage: OnDamage | None = None
        """Called on the thread that meets a damaged row or page, before the error is raised.

        A node assigns it, because it is made around an engine that exists already.
        """
        self.read_only = read_only
        self.durability: Durability = durability
        self.commits = 0
        self._clock = clock or SystemClock()
        self._vfs = vfs
        self._is_twofold = True
        self._page_bytes = PAGE_BYTES
        self._page_checksums = False
        self._pool = ReaderPool(
            self.path, make=lambda: self._reader_on(self._connect()), explain=self._damaged
        )
        self._tasks = TaskConnections(self._pool, self._connect)
        self._writer: SqliteWriter | None = None
        self._preallocation = WalPreallocation(os.path.realpath(self.path)) if vfs is None else None
        """None with a layer of the caller, which has to see every write."""
        self._real_path = os.path.realpath(self.path)
        folder = os.path.dirname(self._real_path)
        self._options = fitted(options or SqliteOptions(), folder)
        self._checkpoints = Checkpoints(self._options)
        self.scrub_share = 0.0 if read_only else self._options.scrub_share
        """A read-only handle leaves the scrub to handles that write."""
        disk = DiskSpace(
            folder, limits or Limits(), self._clock, file=self._space, log=self._checkpoints
        )
        self.shortage = disk.shortage
        self.compaction = Compaction(
            self.path, self._options, self._clock, self.file_use, self._connected_compactor
        )
        self._guard = guard_of(self._real_path)
        self._close = partial(self._guard.close, self, connect=self._connect_beside)
        try:
            opening = self._prepare_file(file_mode, adopt)
            self._home = Home(self._real_path, self._clock, shown=self.place)
            self._open_first(opening, accept_loss=accept_loss)
        except BaseException:
            self._guard.release(self)
            raise
        opened(self._real_path)

    def _prepare_file(self, file_mode: int | None, adopt: bool | None) -> FileOpening:
        """Inspect the file, convert or create it, and choose its layer."""
        if has_neighbour(self._real_path):  # `prepare` closes the file, which drops its locks
            self._guard.hold(self, self._busy())
        else:
            self._guard.drop_left_lock()  # adoption needs the exclusive lock
        opening = FileOpening(
            self.path, vfs=self._vfs, durability=self.durability, read_only=self.read_only
        )
        opening.prepare(
            busy=self._busy(),
            page_checksums=self._options.page_checksums,
            file_mode=file_mode,
            adopt=adopt,
        )
        self._vfs = opening.vfs
        return opening

    def _open_first(self, opening: FileOpening, *, accept_loss: bool) -> None:
        """Open the first connection, and check the file through it."""
        connection = self._connect()
        try:
            if not has_tables(connection):
                raise no_store(self.path)
            self._page_checksums = is_verified(connection)
            self._page_bytes = connection.pragma("page_size")
            opening.check_log(connection, self._connect_beside, accept_loss=accept_loss)
            self._is_twofold = opening.check_file(connection)
            if not self.read_only:
                self._writer = self._make_writer(connection)
        except BaseException as error:
            # A checkpoint leaves no empty log behind.
            self._close([connection], checkpoint=not opening.log_was_left)
            if isinstance(error, apsw.Error):
                raise self._damaged(error) from error
            raise
        if self.read_only:
            self._pool.keep(self._reader_on(connection))

    def write(self, *, waits: bool = True) -> SqliteWriter:
        """Return the writer. Entering it takes the write lock, or raises `WouldWait` without `waits`;
        leaving it without a commit undoes all changes."""
        if self.read_only:
            raise CannotOpen(f"{self.path} was opened to be read only", path=str(self.path))
        writer = self._writer or self._reopen_writer()
        if self._clock.seconds() >= self._home.due_s:
            self._home.check_write(writer.connection)
        writer.waits = waits
        return writer

    def read(self) -> PooledSnapshot:
        """Open a snapshot on a connection from the pool."""
        try:
            self._home.check_read()
        except StoreGone:
            with self._pool.held():  # waits for the end of an exchange, which replaces the file
                self._home.check_read()
        return PooledSnapshot(self._pool)

    def last_seq(self) -> int:
        """Return the sequence of the newest delta."""
        reader = self._pool.take()
        try:
            return reader.last_seq()
        except apsw.Error as error:
            raise self._damaged(error) from error
        finally:
            self._pool.give(reader)

    def await_change(self, seen: int, stop: threading.Event) -> bool:
        """Poll for commits of other processes."""
        return poll(lambda: self.last_seq() != seen, stop)

    def upkeep(self, alone: AbstractContextManager[object]) -> None:
        """Checkpoint the write-ahead log if it has grown enough, also by other processes."""
        self._checkpoints.notice(self._wal_file_bytes())
        if self._checkpoints.is_due():
            self.checkpoint(alone)
        short = self.shortage()
        large = self._wal_file_bytes() > self._options.wal_bytes_checkpoint
        if short is not None and (large or short.owed_bytes):  # the disk needs the space of the log
            with alone:
                self._copy_log(apsw.SQLITE_CHECKPOINT_TRUNCATE)
        if self.read_only or (short is not None and short.is_severe):
            return
        if self.compaction.turn(alone) and self.compaction.state == "resting":
            self.checkpoint(alone)  # which cuts the file

    def checkpoint(self, alone: AbstractContextManager[object]) -> None:
        """Checkpoint the write-ahead log at once."""
        self._checkpoints.run(self._copy_log, alone)

    def _space(self) -> FileSpace:
        """Return the space in the file; assume the worst if it cannot be read now."""
        with suppress(MillstreamError, apsw.Error, OSError):
            use = self.file_use()
            owed_bytes = use.file_bytes - os.stat(self._real_path).st_size
            return FileSpace(use.free_bytes, max(0, owed_bytes))
        return FileSpace(0, self._checkpoints.wal_bytes)

    def file_use(self) -> FileUse:
        """Count the pages of the file, and the free pages among them."""
        with self.read() as snapshot:
            return file_use(snapshot.connection)

    def refuse_posts(self, reason: str) -> None:
        """Refuse messages that other programs post by SQL; they see the reason."""
        refuse_posts((self._writer or self._reopen_writer()).connection, reason)

    def write_events(self) -> WalEvents:
        """Report writes to the WAL from now on; raise `OSError` where the system does not."""
        return WalEvents(f"{self._real_path}-wal")

    def folder(self) -> Path | None:
        """Return the folder of the file, with links resolved."""
        return Path(self._real_path).parent

    def recover(self) -> None:
        """Write the write-ahead log to disk again, and open the writer anew."""
        with self._pool.held():
            connections: list[apsw.Connection] = []
            try:
                connections = [self._connect(), self._connect()]
                repair_log(Path(self._real_path), turn=connections[0], observer=connections[1])
            except apsw.Error as error:
                raise self._refused(error) from error
            except OSError as error:
                raise WriteFailed(f"{self.path}: {error}", path=str(self.path)) from error
            finally:
                for connection in connections:
                    close_connection(connection, checkpoint=False)
            with self._pool.lock:
                writer, self._writer = self._writer, None
            if writer is not None:
                close_connection(writer.connection, checkpoint=False)

    def suspend(self) -> None:
        """Before a fork: close every connection, without a checkpoint, and hold back new ones."""
        self._pool.suspend(partial(self._drop_connections, checkpoint=False))

    def resume(self, *, in_child: bool) -> None:
        """After the fork: allow new connections."""
        self._pool.resume(in_child=in_child)

    def copy_to(
        self,
        path: Path,
        *,
        heard: PagesCopied | None = None,
        check: Callable[[SqliteReader], None] | None = None,
    ) -> None:
        """Write a consistent copy of the file into a new file, beside running commits.

        `check` is called with the copied snapshot, to compare it with the copy.
        """
        with self.read() as snapshot:
            snapshot.last_seq()  # the first read of a transaction fixes its snapshot
            copy_file(snapshot.connection, path, vfs=self._vfs, heard=heard)
            if check is not None:
                check(snapshot)

    @contextmanager
    def pages(self) -> Iterator[tuple[PageSnapshot, SqliteReader]]:
        """Hold a snapshot, to read its pages in large pieces and its rows, beside running commits."""
        with self.read() as snapshot:
            yield PageSnapshot(snapshot, self._connect_beside, self.place), snapshot

    def verify(self, stop: Callable[[], bool]) -> bool:
        """Read every page, beside running commits; False if `stop` ended it.

        Raises `CorruptionError` for a damaged page.
        """
        with self.read() as snapshot:
            return check_pages(snapshot.connection, stop, place=self.place)

    def scrub(self, stage: str, at: str, bounds: StepBounds, needs: Reference) -> ScrubStep:
        """Continue to read a stage, on a separate connection that leaves other caches alone."""
        self._home.check_read()
        with self._tasks.held("scrub", bound_cache) as connection:
            try:
                step = scrub_step(connection, stage, at, bounds, needs)
            except apsw.Error as error:
                raise self._damaged(error) from error
        for unsound in step.unsound:
            self._tell_damage(CorruptionError(unsound.message, what="row", where=unsound.at))
        return step

    def scrubbed_file(self) -> Path:
        """Return the store's file, with links resolved."""
        return Path(self._real_path)

    def exchange(self, path: Path, *, aside: Path) -> None:
        """Replace the file by another file, and move the old one aside; reads wait."""
        self.suspend()
        try:
            exchange_file(Path(self._real_path), path, aside=aside)
            self._home.settle()
        finally:
            self.resume(in_child=False)

    def close(self) -> None:
        """Close every connection; the last connection checkpoints and removes the log."""
        self._pool.close(self._close_all)

    def _close_all(self) -> None:
        keeps_wal = self.read_only and self._wal_file_bytes() > 0
        if self._writer is not None:
            with suppress(StoreGone):
                self._home.check_contents(self._writer.connection)
        self._drop_connections(checkpoint=not keeps_wal and self._home.may_checkpoint)
        closed(self._real_path)

    def describe(self) -> dict[str, Any]:
        """Return facts for `stats`."""
        return {
            "engine": "sqlite",
            "durability": self.durability,
            "missing": self._home.missing(),
            "file_bytes": size_of(self._real_path),
            "wal_bytes": self._wal_file_bytes(),
            "free_bytes": self._space().inside_bytes,
            "compaction": "off" if self.read_only else self.compaction.state,
            "returned_bytes": self.compaction.returned_pages * self._page_bytes,
            "page_checksums": self._page_checksums,
            "sqlite_version": apsw.sqlite_lib_version(),
        }

    def _refused(self, error: apsw.Error) -> MillstreamError:
        return failed_begin(error, self.path, self._options.busy_timeout_ms)

    def _wal_file_bytes(self) -> int:
        return size_of(f"{self._real_path}-wal")

    def _connect(self) -> apsw.Connection:
        self._home.check_connecting()
        connection = self._guard.connect(self, self._connect_beside, self._busy())
        level = "FULL" if self.durability == "full" else "NORMAL"
        connection.execute(f"PRAGMA synchronous = {level}")
        if self.read_only:
            connection.execute("PRAGMA query_only = 1")
            connection.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1)
        return connection

    def _make_writer(self, connection: apsw.Connection) -> SqliteWriter:
        self._home.forget_log()
        self._home.check_contents(connection)
        sync_folder(self.path)  # SQLite has made the log by now, if there was none
        connection.set_wal_hook(self._on_wal)
        preallocation = None if self.durability == "relaxed" else self._preallocation
        if preallocation is not None:
            preallocation.step_bytes = self._page_bytes + FRAME_BYTES
        return SqliteWriter(
            connection,
            busy=self._busy(),
            refused=self._refused,
            preallocation=preallocation,
            on_damage=self._tell_damage,
            is_twofold=self._is_twofold,
        )

    def _on_wal(self, _connection: apsw.Connection, _name: str, pages: int) -> int:
        self.commits += 1
        if self._preallocation is not None:
            self._preallocation.pages = pages
        due = self._checkpoints.committed(pages * self._page_bytes)
        if due and self.on_upkeep_due is not None:
            self.on_upkeep_due()
        return apsw.SQLITE_OK

    def _reopen_writer(self) -> SqliteWriter:
        with self._pool.lock:
            self._pool.check_open()
            if self._writer is None:
                connection = self._connect()
                try:
                    self._writer = self._make_writer(connection)
                except BaseException:
                    close_connection(connection, checkpoint=False)
                    raise
            return self._writer

    def _connect_beside(self) -> apsw.Connection:
        path = Path(self._real_path)  # links may lead elsewhere by now
        return connect(path, make_busy=self._busy, vfs=self._vfs)

    def _reader_on(self, connection: apsw.Connection) -> SqliteReader:
        return SqliteReader(connection, on_damage=self._tell_damage, is_twofold=self._is_twofold)

    def _tell_damage(self, error: CorruptionError) -> None:
        if self.on_damage is not None:
            self.on_damage(error)

    def _copy_log(self, mode: int) -> tuple[int, int] | None:
        if self._pool.is_closed:
            return None
        with self._tasks.held("checkpoint") as connection:
            # A checkpoint that restarts the log has the turn to write, and waits for readers.
            wait_s = self._checkpoints.reader_wait_s()
            connection.set_busy_handler(patience(SystemClock(), wait_s))
            self._home.check_contents(connection)  # else pages of two files would be mixed
            return self._copy(connection, mode)

    def _copy(self, connection: apsw.Connection, mode: int) -> tuple[int, int] | None:
        try:
            pages, copied_pages = connection.wal_checkpoint(mode=mode)
            return pages * self._page_bytes, copied_pages * self._page_bytes
        except apsw.BusyError:
            return None  # another process reads or writes now; the next commit tries again
        except apsw.Error as error:
            raise failed_task("checkpoint", error, self.path) from error

    @contextmanager
    def _connected_compactor(self) -> Iterator[apsw.Connection]:
        with self._tasks.held("compaction", self._hear_commits) as connection:
            self._home.check_contents(connection)
            yield connection

    def _hear_commits(self, compactor: apsw.Connection) -> None:
        compactor.set_wal_hook(self._on_compacted)

    def _on_compacted(self, _connection: apsw.Connection, _name: str, pages: int) -> int:
        self._checkpoints.committed(pages * self._page_bytes)
        return apsw.SQLITE_OK

    def _drop_connections(self, *, checkpoint: bool) -> None:
        connections = [reader.connection for reader in self._pool.drain()]
        connections += [self._writer.connection] if self._writer else []
        connections += self._tasks.drain()
        self._writer = None
        self._close(connections, checkpoint=checkpoint)

    def _busy(self) -> Callable[[int], bool]:
        return patience(self._clock, self._options.busy_timeout_ms / 1000)

    def _damaged(self, error: apsw.Error) -> MillstreamError:
        return failed_use(error, self.path)
