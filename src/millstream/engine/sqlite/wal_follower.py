"""The frames of every commit, copied from the write-ahead log (WAL) before the log is restarted.

SQLite restarts the WAL when all of its frames were copied into the file and no reader needs them. The
old frames are then overwritten. A follower must have copied them before. So a follower always has an open read
transaction:

    the transaction began                       while it is open
    with frames that the file lacked            no writer restarts the WAL
    when the file had all frames                no checkpoint copies a frame, so the WAL is restarted
                                                once at most, and the follower has the frames before it

A follower renews its transaction: the next transaction begins, all new frames are copied, and the
previous transaction ends. So a checkpoint can copy frames up to the last renewal. If commits never pause, no renewal finds a
file with all frames, and the WAL would grow: beyond `RESTART_BYTES` the follower takes the turn to write
for a moment, and lets a checkpoint copy the last frames.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack, suppress
from typing import NamedTuple

import apsw

from millstream.engine.sqlite.file import close_connection, explained
from millstream.engine.sqlite.page_snapshot import (
    PageSnapshot,
    WalPosition,
    frame_checksum,
    wal_position,
)
from millstream.engine.sqlite.rows import SqliteReader
from millstream.engine.sqlite.wal import HEADER_BYTES, step_bytes
from millstream.errors import StoreError
from millstream.limits import MiB

FIX_TRIES = 20
"""How often a transaction is begun until no commit falls into its beginning."""

RESTART_BYTES = 16 * MiB
"""The size of the WAL beyond which it is restarted in the turn of a writer."""

COPY_BYTES_MAX = 1024 * MiB
"""Most bytes that are copied at once, into memory. SQLite reads less than 2 GiB at once."""

_WAL = 1


class WalGap(StoreError):
    """Frames were overwritten before they were copied, or are too many to copy."""


class WalPiece(NamedTuple):
    """Consecutive frames of one generation of the WAL, as they are in its file."""

    header: bytes
    """The header of the WAL, which names the generation."""
    first: int
    """The number of the first frame, from 1."""
    frames: bytes


class WalFollower:
    """Copies frames from a position on, for a single thread."""

    def __init__(self, pages: PageSnapshot, *, position: WalPosition | None = None) -> None:
        """Begin at the position of a snapshot, which is open meanwhile, or at a position before.

        Raises `WalGap` if the WAL no longer has the frames behind that position, or has other frames
        before it: a file that was copied back continues with the header of its copy.
        """
        self._step = step_bytes(pages.page_bytes)
        self._place = pages.place
        self._pieces: list[WalPiece] = []
        """Copied frames that `copy` has not returned, because it failed afterwards."""
        self.position = pages.position if position is None else position
        """The end of the copied frames."""
        if self.position.header != pages.position.header or (
            self.position.frames > pages.position.frames
        ):
            raise self._gap()
        connect = pages.connect
        self._opened = ExitStack()
        try:
            self._observer = self._open(connect)
            self._turn = self._open(connect)
            """Takes the turn to write, and makes checkpoints."""
            self._reader = SqliteReader(self._open(connect))
            self._next_reader = SqliteReader(self._open(connect))
            _begin(self._reader)
            header, frames, checksum = self.position
            if frames and frame_checksum(self._observer, header, frames) != checksum:
                raise self._gap()
            # `copy` could not tell whether the WAL was restarted between the two positions.
            self._pieces += self._copied(pages.position)
        except BaseException as error:
            self.close()
            if isinstance(error, apsw.Error):
                raise explained(error, self._place) from error
            raise

    def _open(self, connect: Callable[[], apsw.Connection]) -> apsw.Connection:
        connection = connect()
        self._opened.callback(close_connection, connection, checkpoint=False)
        return connection

    def close(self) -> None:
        """End the transaction: the WAL may be restarted."""
        self._opened.close()

    @property
    def waiting_bytes(self) -> int:
        """Bytes of the WAL, which cannot be restarted before they are copied."""
        try:
            return wal_position(self._observer).frames * self._step
        except apsw.Error as error:
            raise explained(error, self._place) from error

    @property
    def snapshot(self) -> SqliteReader:
        """The snapshot as of the last copied frame."""
        return self._reader

    def copy(self) -> list[WalPiece]:
        """Return all frames behind the position, and renew the transaction at the new position.

        Raises `WalGap` if frames are missing. After another error, the next call returns the frames.
        """
        if not self._reader.connection.in_transaction:
            raise self._gap()  # SQLite ended it, because a page could not be read
        try:
            position = self._begun()
            self._advance(position)
            if position.frames * self._step >= RESTART_BYTES:
                self._restart()
        except apsw.Error as error:
            raise explained(error, self._place) from error
        pieces, self._pieces = self._pieces, []
        return pieces

    def _begun(self) -> WalPosition:
        """Begin the next transaction, and return its position."""
        for _ in range(FIX_TRIES):
            before = wal_position(self._observer)
            _begin(self._next_reader)
            if wal_position(self._observer) == before:
                return before
        self._turn.execute("BEGIN IMMEDIATE")  # commits wait for a moment
        try:
            return self._begun_in_turn()
        finally:
            self._turn.execute("ROLLBACK")

    def _begun_in_turn(self) -> WalPosition:
        """Begin the next transaction while no other connection can commit."""
        _begin(self._next_reader)
        return wal_position(self._observer)

    def _advance(self, position: WalPosition) -> None:
        """Copy the frames up to the next transaction, and end the transaction before it.

        If the copy fails, the transaction before it still keeps the frames for the next copy.
        """
        self._pieces += self._copied(position)
        self._reader.end()
        self._reader, self._next_reader = self._next_reader, self._reader

    def _restart(self) -> None:
        """Let the next commit restart the WAL, if no other reader needs its frames."""
        with suppress(apsw.BusyError):  # another checkpoint runs now
            self._turn.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_PASSIVE)  # beside commits
        self._turn.execute("BEGIN IMMEDIATE")
        try:
            self._advance(self._begun_in_turn())
            with suppress(apsw.BusyError):
                self._observer.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_PASSIVE)
            self._advance(self._begun_in_turn())  # now the file has all frames
        finally:
            self._turn.execute("ROLLBACK")

    def _copied(self, position: WalPosition) -> list[WalPiece]:
        """Read the frames up to a position, which the open transaction keeps."""
        before = self.position
        if not position.frames:
            return []  # the WAL was restarted, and has no frame yet
        if position.header == before.header:
            if position.frames < before.frames:
                raise self._gap()
            first = before.frames + 1
        elif not before.header or _follows(before.header, position.header):
            first = 1
        else:
            raise self._gap()
        count = position.frames - first + 1
        if not count:
            self.position = position
            return []
        if count * self._step > COPY_BYTES_MAX:
            raise WalGap("the write-ahead log has more new frames than can be copied at once")
        start = HEADER_BYTES + (first - 1) * self._step
        is_complete, data = self._observer.read("main", _WAL, start, count * self._step)
        if (
            not is_complete
            or self._observer.read("main", _WAL, 0, HEADER_BYTES)[1] != position.header
        ):
            raise self._gap()
        self.position = position  # not before: a failed read is repeated
        return [WalPiece(position.header, first, data)]

    @staticmethod
    def _gap() -> WalGap:
        return WalGap("the write-ahead log was restarted before all of its frames were copied")


def _begin(reader: SqliteReader) -> None:
    """Begin a transaction with a snapshot, also after a renewal that failed."""
    if reader.connection.in_transaction:
        reader.end()
    reader.begin()
    reader.last_seq()


def _follows(header: bytes, later: bytes) -> bool:
    """True if a generation of the WAL directly follows another generation."""

    def number(of: bytes, start: int) -> int:
        return int.from_bytes(of[start : start + 4], "big")

    return all(
        number(later, start) == (number(header, start) + 1) & 0xFFFFFFFF for start in (12, 16)
    )
