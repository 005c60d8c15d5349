"""SQLite's write-ahead log (WAL), frame by frame: commits that SQLite would silently ignore.

The WAL holds commits that no checkpoint has copied into the file. Each frame carries a checksum over
all frames before it. Where this chain breaks, SQLite takes the WAL to end. That is right for the last
transaction, which a power cut may have torn before it was acknowledged, and wrong for an acknowledged
transaction. Commits are certainly lost

- if the frame at the break differs in one bit from its checksum: torn writes do not look so, or
- if behind the break a commit is followed by a frame that continues its chain: its writer had seen
  the commit succeed, or
- if the header of the WAL is damaged and commits follow: it is synced before they are written.

The second case proves nothing for a store whose commits are not synced (`durability="relaxed"`).

Damage of more than a bit in the last transaction alone stays unseen: it looks like a torn write.

    header  32 bytes, big-endian: magic, version, page size, sequence, two salts, two checksums
    frame   24 bytes: page, size of the file after a commit or 0, two salts, two checksums; then the page

Another process may be writing to a log that a dead process has left. A half-written frame is no
damage there, so a break counts only if it is still there while no process has the turn to write
(`break_beside_writers`).

After a failed sync the operating system may mark pages as clean that never reached the disk. A later
sync then succeeds without them, and a power cut would lose them with every commit behind them. So
`repair_log` checks all frames, writes them again in place with the same bytes, and syncs them. It
cuts off everything behind the last commit: a commit that failed could otherwise come back after a
crash, although readers have seen that it is missing. Readers see no difference.
"""

from __future__ import annotations

import errno
import os
import struct
import sys
from collections.abc import Callable, Iterator
from io import FileIO
from pathlib import Path
from typing import NamedTuple, Self

import apsw

from millstream.engine.sqlite.file import PAGE_BYTES, close_connection, damaged
from millstream.engine.sqlite.header import is_page_size
from millstream.engine.sqlite.pages import is_one_bit, sums

HEADER_BYTES = 32
FRAME_BYTES = 24
CHECKSUM_AT = 16
"""The place of the checksums in the head of a frame."""
COUNTER_AT = 24
"""The place of the change counter in the first page."""

TRIES = 3
"""How often a WAL is read that restarts during the read."""

_HEADER = struct.Struct(">8I")
_FRAME = struct.Struct(">6I")
_SALTS = struct.Struct(">2I")
_SUMMED_BYTES = 24
"""Of the header."""
_LITTLE, _BIG = 0x377F0682, 0x377F0683

Salts = tuple[int, int]


class Break(NamedTuple):
    """A break in the chain of checksums with commits behind it."""

    frame: int
    """The number of the broken frame, from 1; 0 is the header."""
    frames: int
    commits_behind: int
    """The number of commits that are visible behind the break."""
    may_be_torn: bool = False
    """True if a power cut could explain the break, for commits that were not synced singly."""

    def __str__(self) -> str:
        """Describe the damage and the loss."""
        place = f"frame {self.frame} of {self.frames}" if self.frame else "its header"
        return (
            f"the write-ahead log is damaged at {place}: SQLite would ignore what lies behind, and "
            f"at least {max(1, self.commits_behind)} commits that were acknowledged would be lost"
        )


class _Frame(NamedTuple):
    page: int
    commit: int
    salts: Salts
    stored: tuple[int, int]
    summed: bytes

    @classmethod
    def decode(cls, head: bytes) -> Self:
        page, commit, first, second, *stored = _FRAME.unpack(head)
        return cls(page, commit, (first, second), (stored[0], stored[1]), head[:8])


def step_bytes(page_bytes: int) -> int:
    """Return the bytes of a frame with its page."""
    return FRAME_BYTES + page_bytes


def find_break(
    path: Path,
    count_known: Callable[[], int] = lambda: 0,
    is_written: Callable[[], bool] = lambda: False,
) -> Break | None:
    """Find the break that cuts off acknowledged commits; None without a break or without a WAL.

    `count_known` returns the number of frames that SQLite accepts now, up to a commit. `is_written`
    tells whether a living process has the turn to write. Frames that SQLite accepts are not checked,
    nor uncommitted frames of a living process.
    """
    for _ in range(TRIES):
        try:
            with path.open("rb", buffering=0) as file:  # a buffer would keep old bytes
                before = file.read(HEADER_BYTES)
                if len(before) < HEADER_BYTES:
                    return None
                log = _Log(file, before, path.stat().st_size)
                damage = log.find_break(count_known, is_written)
                file.seek(0)
                if file.read(HEADER_BYTES) == before:
                    return damage
        except FileNotFoundError:
            return None
    return None


def count_sound(path: Path) -> int:
    """Return the number of intact frames from the first on."""
    with path.open("rb", buffering=0) as file:
        header = file.read(HEADER_BYTES)
        if len(header) < HEADER_BYTES:
            return 0
        return _Log(file, header, path.stat().st_size).count_sound()


def change_counters(path: Path) -> list[int]:
    """Return the change counter of each first page in a WAL, in the order of the frames."""
    try:
        with path.open("rb", buffering=0) as file:
            header = file.read(HEADER_BYTES)
            if len(header) < HEADER_BYTES:
                return []
            return _Log(file, header, path.stat().st_size).change_counters()
    except FileNotFoundError:
        return []


class _Log:
    """An open WAL; frames are numbered from 1."""

    def __init__(self, file: FileIO, header: bytes, size: int) -> None:
        self._file = file
        magic, _, page_bytes, _, first, second, *stored = _HEADER.unpack(header)
        self.page_bytes = page_bytes if is_page_size(page_bytes) else PAGE_BYTES
        self._step_bytes = step_bytes(self.page_bytes)
        self.frames = (size - HEADER_BYTES) // self._step_bytes
        self._swap = (magic & 1 == 1) != (sys.byteorder == "big")
        self._seeds = (stored[0], stored[1])
        self.salts: Salts = (first, second)
        self.is_sound = (
            magic in (_LITTLE, _BIG)
            and sums(header[:_SUMMED_BYTES], swap=self._swap) == self._seeds
        )

    def find_break(
        self, count_known: Callable[[], int], is_written: Callable[[], bool]
    ) -> Break | None:
        """Find the break that cuts off commits."""
        if not self.is_sound:
            return self._break_in_header()
        before = 0
        while True:
            known = min(count_known(), self.frames)
            ours = list(self._ours(known + 1))
            if not ours:  # the usual case: later frames are older than the last restart of the WAL
                return None
            if not any(frame.commit for _, frame in ours):
                if is_written():
                    return None
                if min(count_known(), self.frames) > known:
                    continue  # committed just now
            at = self._first_broken(known)
            damage = self._break_at(at, ours) if at <= self.frames else None
            if damage is None or at <= before:
                return damage
            # A writer may have been writing this frame. Later frames are written after it, so a
            # second look finds it complete, unless it is damaged.
            before = at

    def _break_at(self, at: int, ours: list[tuple[int, _Frame]]) -> Break | None:
        """Count the commits behind a frame that does not continue the chain."""
        ours = [numbered for numbered in ours if numbered[0] >= at]
        behind = sum(frame.commit > 0 for _, frame in ours)
        if self._is_one_bit(at):
            return Break(at, self.frames, behind)
        if self._has_successor(ours):
            return Break(at, self.frames, behind, may_be_torn=True)
        return None

    def count_sound(self) -> int:
        """Return the number of frames before the first break of the chain."""
        return self._first_broken(0) - 1 if self.is_sound else 0

    def change_counters(self) -> list[int]:
        """Return the change counter of each first page since the last restart of the WAL."""
        first_pages = (number for number, frame in self._ours(1) if frame.page == 1)
        places = (self._place(number) + FRAME_BYTES + COUNTER_AT for number in first_pages)
        return [int.from_bytes(self._read(place, 4), "big") for place in places]

    def _break_in_header(self) -> Break | None:
        """Find commits behind a damaged header, by the salts of the first frame."""
        if self.frames < 1:
            return None
        header, self.salts = self.salts, self._frame(1).salts
        if _distance(header, self.salts) > 1 and self.salts == (0, 0):
            return None
        behind = sum(frame.commit > 0 for _, frame in self._ours(1))
        return Break(0, self.frames, behind) if behind else None

    def _first_broken(self, sound: int) -> int:
        """Return the first frame after frame `sound` that breaks the chain; `frames + 1` if none does."""
        chain = self._frame(sound).stored if sound else self._seeds
        for number in range(sound + 1, self.frames + 1):
            frame = self._frame(number)
            if frame.salts != self.salts or self._summed(number, chain) != frame.stored:
                return number
            chain = frame.stored
        return self.frames + 1

    def _is_one_bit(self, number: int) -> bool:
        chain = self._frame(number - 1).stored if number > 1 else self._seeds
        frame, computed = self._frame(number), self._summed(number, chain)
        off = _distance(frame.salts, self.salts)
        if off:
            return off == 1 and computed == frame.stored
        return is_one_bit(computed, frame.stored, len(frame.summed) + self.page_bytes)

    def _has_successor(self, ours: list[tuple[int, _Frame]]) -> bool:
        """True if a frame continues the chain of a commit: its writer knew of the commit."""
        for number, frame in ours:
            if frame.commit and number < self.frames:
                after = self._frame(number + 1)
                if after.salts == self.salts and after.stored == self._summed(
                    number + 1, frame.stored
                ):
                    return True
        return False

    def _ours(self, start: int) -> Iterator[tuple[int, _Frame]]:
        """Yield the frames since the last restart of the WAL; one damaged bit in a salt is tolerated."""
        descriptor, salted = self._file.fileno(), _SALTS.pack(*self.salts)
        for number in range(start, self.frames + 1):
            head = os.pread(descriptor, FRAME_BYTES, self._place(number)).ljust(FRAME_BYTES, b"\0")
            if head[8:16] == salted or _distance(_SALTS.unpack_from(head, 8), self.salts) <= 1:
                yield number, _Frame.decode(head)

    def _frame(self, number: int) -> _Frame:
        return _Frame.decode(self._read(self._place(number), FRAME_BYTES))

    def _summed(self, number: int, chain: tuple[int, int]) -> tuple[int, int]:
        data = self._read(self._place(number), self._step_bytes)
        return sums(data[:8] + data[FRAME_BYTES:], chain, swap=self._swap)

    def _place(self, number: int) -> int:
        return HEADER_BYTES + (number - 1) * self._step_bytes

    def _read(self, place: int, size: int) -> bytes:
        self._file.seek(place)
        return self._file.read(size).ljust(size, b"\0")


def _distance(first: Salts, second: Salts) -> int:
    return (first[0] ^ second[0]).bit_count() + (first[1] ^ second[1]).bit_count()


def break_in_log(
    path: Path, connection: apsw.Connection, is_written: Callable[[], bool] = lambda: False
) -> Break | None:
    """Find the break in the WAL of a file, behind the frames that SQLite accepts.

    `is_written` tells whether a living process has the turn to write.
    """
    noop = getattr(apsw, "SQLITE_CHECKPOINT_NOOP", None)

    def count_known() -> int:
        return 0 if noop is None else max(0, connection.wal_checkpoint(mode=noop)[0])

    return find_break(Path(f"{path}-wal"), count_known, is_written)


def break_beside_writers(
    path: Path, connection: apsw.Connection, connect: Callable[[], apsw.Connection]
) -> Break | None:
    """Find the break in the WAL while other processes may write; `connect` opens connections."""
    if break_in_log(path, connection, lambda: _is_written(connect())) is None:
        return None
    # Another process may have been writing a frame. Look again while no process can write.
    blocker = connect()
    try:
        blocker.execute("BEGIN IMMEDIATE")
        return break_in_log(path, connection)
    finally:
        close_connection(blocker, checkpoint=False)


def _is_written(connection: apsw.Connection) -> bool:
    """True if a living process has the turn to write; closes the connection."""
    try:
        connection.set_busy_handler(None)
        connection.execute("BEGIN IMMEDIATE")
    except apsw.BusyError:
        return True
    finally:
        close_connection(connection, checkpoint=False)
    return False


CHUNK_BYTES = 1 << 20


def repair_log(path: Path, *, turn: apsw.Connection, observer: apsw.Connection) -> None:
    """Make the WAL of a file durable again; `turn` excludes writers, `observer` counts frames.

    Raises `CorruptionError` if frames of commits are missing, and `OSError` if the disk still fails.
    """
    turn.execute("BEGIN IMMEDIATE")
    mode = getattr(apsw, "SQLITE_CHECKPOINT_NOOP", apsw.SQLITE_CHECKPOINT_PASSIVE)
    frames = max(0, observer.wal_checkpoint(mode=mode)[0])
    log = Path(f"{path}-wal")
    sound = count_sound(log) if frames else 0
    if sound < frames:
        raise damaged(
            path, f"only {sound:,} of {frames:,} frames of the write-ahead log are as written"
        )
    step = step_bytes(turn.pragma("page_size"))
    _write_again(log, HEADER_BYTES + frames * step if frames else 0)


def _write_again(log: Path, size: int) -> None:
    """Truncate a file, write its content again in place, and sync it."""
    with log.open("r+b", buffering=0) as file:
        file.truncate(size)
        for place in range(0, size, CHUNK_BYTES):
            file.seek(place)
            data = file.read(min(CHUNK_BYTES, size - place))
            file.seek(place)
            if file.write(data) != len(data):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        os.fsync(file.fileno())
