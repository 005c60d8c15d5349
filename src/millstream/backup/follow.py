"""Following: every commit of a store goes to its backup, about a second after it was made.

A chain begins with a point, and grows by a segment per interval with commits. After a while a new point
begins the next chain: a restore reads one point and the segments behind it. The earlier chain grows until
the new point is written, so that no commit falls between two chains. If the point fails, the earlier chain
goes on.

A follower that starts again continues the last chain, if the write-ahead log still has the frames behind
it. Otherwise it begins with a new point, and commits between the chain and the point are in the backup
only together.

If the place does not answer, new frames wait in the write-ahead log of the store, up to
`WAITING_BYTES_MAX`. Beyond, the chain ends, and a new point follows once the place answers again.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import NamedTuple, cast

from millstream.backup.keep import Keep
from millstream.backup.place import BackupPlace, Check
from millstream.backup.point import BackupPoint
from millstream.backup.run import BackupReport, store_point
from millstream.backup.segments import ChainReader, list_chain, store_segment
from millstream.backup.source import newest_delta, refuse_overlap, source_of, store_id
from millstream.clock import Clock, SystemClock
from millstream.engine.open import open_engine
from millstream.engine.place import is_bucket
from millstream.engine.row_copy import Heard
from millstream.engine.sqlite.engine import SqliteEngine
from millstream.engine.sqlite.page_snapshot import PageSnapshot, has_positions
from millstream.engine.sqlite.wal_follower import WalFollower, WalGap, WalPiece
from millstream.errors import (
    CorruptionError,
    InvalidInput,
    MillstreamError,
    Overloaded,
    StoreError,
)
from millstream.limits import MiB

_logger = logging.getLogger("millstream.backup")

INTERVAL_S = 1.0
POINT_S = 24 * 3600.0
"""How long a chain grows before the next point."""

CHAIN_BYTES_MIN = 64 * MiB
"""A chain that is larger than this, and larger than the store's file, is followed by a new point."""

WAITING_BYTES_MAX = 256 * MiB

CHECK_AGAIN_S = 600.0
"""How long a damaged store gets no new point: the check of all rows reads the whole store."""


class FollowState(NamedTuple):
    """How far a follower is."""

    seq: int
    """The newest commit in the backup."""
    stored_ms: int
    """Wall time at which the backup had all commits last."""


class _Chain:
    """A point, and the end of its segments."""

    def __init__(
        self,
        place: BackupPlace,
        point: BackupPoint,
        follower: WalFollower,
        *,
        number: int,
        size: int,
    ) -> None:
        self.point, self.follower = point, follower
        self.seq = point.seq
        self._place, self._number, self.bytes = place, number, size
        self._unstored: list[WalPiece] = []

    def grow(self) -> None:
        """Store the frames of all new commits as a segment."""
        self._unstored += self.follower.copy()
        newest = newest_delta(self.follower.snapshot)
        self.seq = newest.seq
        if not self._unstored:
            return
        self.bytes += store_segment(
            self._place.objects,
            self.point,
            self._unstored,
            number=self._number,
            seq=newest.seq,
            committed_ms=newest.wall_ms,
        )
        self._place.objects.sync()
        self._unstored, self._number = [], self._number + 1

    @property
    def waiting_bytes(self) -> int:
        """Bytes that could not be stored yet."""
        return self.follower.waiting_bytes + sum(len(piece.frames) for piece in self._unstored)


class StoreFollower:
    """Follows one store; belongs to one thread."""

    def __init__(
        self,
        engine: SqliteEngine,
        place: BackupPlace,
        check: Check,
        *,
        keep: Keep | None = None,
        compress: bool | None = None,
        point_s: float = POINT_S,
        clock: Clock | None = None,
        heard: Heard | None = None,
    ) -> None:
        """The caller holds the lock of the place; the first point claims the place for the store."""
        self._engine, self._place, self._check = engine, place, check
        self._keep, self._compress, self._point_ms = keep, compress, int(point_s * 1000)
        self._clock = clock or SystemClock()
        self._heard: Heard = heard or (lambda _stage, _done, _total: None)
        self._chain: _Chain | None = None
        self._may_resume = True
        self._damage: CorruptionError | None = None
        """Why the last point failed, if the store is damaged."""
        self._checkable_s = 0.0
        """When the rows of a damaged store may be checked again."""
        self.state: FollowState | None = None
        self.points: list[BackupReport] = []
        """The points that were added."""

    def step(self) -> FollowState:
        """Store all commits up to now, and return how far the backup is.

        Raises `StoreError` if the place or the store fails, `Overloaded` if the store is too busy for
        a new point, and `CorruptionError` if the store is damaged; a later step continues.
        """
        with self._engine.read():
            pass  # raises `StoreGone` if another file has the name of the store
        chain = self._chain or self._resumed() or self._begin_chain()
        try:
            chain.grow()
        except WalGap:
            self.close()
            chain = self._begin_chain()
            chain.grow()
        except (MillstreamError, OSError):
            if chain.waiting_bytes > WAITING_BYTES_MAX:
                _logger.warning("backup_chain_ended", extra={"place": self._place.text})
                self.close()
            raise
        self._note(chain)
        if self._is_long(chain):  # if the point fails, the chain goes on
            chain = self._begin_chain()
            chain.grow()
        return self._note(chain)

    def _note(self, chain: _Chain) -> FollowState:
        self.state = FollowState(chain.seq, self._clock.wall_ms())
        return self.state

    def close(self) -> None:
        """End the chain; the store's write-ahead log may be restarted."""
        chain, self._chain = self._chain, None
        if chain is not None:
            chain.follower.close()

    def _is_long(self, chain: _Chain) -> bool:
        age_ms = self._clock.wall_ms() - chain.point.taken_ms
        return age_ms >= self._point_ms or chain.bytes > max(
            CHAIN_BYTES_MIN, chain.point.file_bytes
        )

    def _begin_chain(self) -> _Chain:
        """Add a point, and begin its chain. The chain before grows up to the point."""
        before = self._chain
        if self._damage is not None and self._clock.seconds() < self._checkable_s:
            raise self._damage.with_traceback(None)
        self._damage = None
        with source_of(self._engine, place=self._engine.place) as source:
            follower = WalFollower(cast(PageSnapshot, source.file))
            try:
                report = store_point(
                    self._place,
                    source,
                    self._check,
                    keep=self._keep,
                    compress=self._compress,
                    heard=self._heard,
                    clock=self._clock,
                )
                if before is not None:
                    before.grow()
            except BaseException as error:
                follower.close()
                if isinstance(error, CorruptionError):
                    self._damage = error
                    self._checkable_s = self._clock.seconds() + CHECK_AGAIN_S
                raise
        self.close()
        self.points.append(report)
        self._chain = _Chain(self._place, report.point, follower, number=0, size=0)
        return self._chain

    def _resumed(self) -> _Chain | None:
        """Continue the last chain of the place, if the write-ahead log has the frames behind it."""
        points = self._place.points() if self._may_resume else []
        self._may_resume = False
        if not points or not points[-1].wal_header:
            return None
        point = points[-1]
        reader = ChainReader(self._place.objects, point)
        segments = list_chain(self._place.objects, point)
        size = 0
        try:
            for segment in segments:
                size += sum(len(frame.content) for frame in reader.frames(segment))
            with self._engine.pages() as (pages, _):
                follower = WalFollower(pages, position=reader.end)
        except MillstreamError:  # a gap, or a damaged segment
            return None
        self._chain = _Chain(self._place, point, follower, number=len(segments), size=size)
        return self._chain


@contextmanager
def following(
    engine: SqliteEngine,
    place: BackupPlace,
    *,
    keep: Keep | None = None,
    compress: bool | None = None,
    point_s: float = POINT_S,
    clock: Clock | None = None,
    heard: Heard | None = None,
) -> Iterator[StoreFollower]:
    """Hold a place for the backup of an open store, and yield a follower of the store."""
    clock = clock or SystemClock()
    if not has_positions():
        raise InvalidInput(
            "following needs SQLite 3.51 or newer: install a newer apsw (`pip install -U apsw`), or "
            "run `millstream backup` by a timer"
        )
    with engine.read() as snapshot:
        store = store_id(snapshot)
    place.check(store)
    with place.locked(clock) as check:
        follower = StoreFollower(
            engine,
            place,
            check,
            keep=keep,
            compress=compress,
            point_s=point_s,
            clock=clock,
            heard=heard,
        )
        try:
            yield follower
        finally:
            follower.close()


def follow(
    store: str | os.PathLike[str],
    place: str | os.PathLike[str],
    *,
    stop: threading.Event,
    interval_s: float = INTERVAL_S,
    keep: Keep | None = None,
    compress: bool | None = None,
    point_s: float = POINT_S,
    clock: Clock | None = None,
    heard: Heard | None = None,
    on_state: Callable[[FollowState], None] | None = None,
    on_failure: Callable[[MillstreamError], None] | None = None,
) -> None:
    """Follow a store until `stop`; a last step then stores all commits up to now.

    If the first step fails, `follow` raises its error. Later failures go to `on_failure`, and the next
    interval tries again.
    """
    if is_bucket(store):
        raise InvalidInput(
            f"{os.fspath(store)} is a bucket, and only a file can be followed: run `millstream "
            "backup` by a timer"
        )
    clock = clock or SystemClock()
    target = BackupPlace(place)
    refuse_overlap(store, target)
    with ExitStack() as opened:
        engine = cast(SqliteEngine, open_engine(store, mode="r", create=False))
        opened.callback(engine.close)
        follower = opened.enter_context(
            following(
                engine,
                target,
                keep=keep,
                compress=compress,
                point_s=point_s,
                clock=clock,
                heard=heard,
            )
        )
        report = on_state or (lambda _state: None)
        report(follower.step())
        while not stop.wait(interval_s):
            try:
                report(follower.step())
            except (StoreError, Overloaded, CorruptionError) as error:
                if on_failure is not None:
                    on_failure(error)
        report(follower.step())
