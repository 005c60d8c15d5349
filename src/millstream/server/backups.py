"""The backups that a server makes of its store, on a thread of their own.

A failed backup is tried again after a minute at the latest. The server's health warns if the last
backup is too old, and shows why the last try failed.
"""

from __future__ import annotations

import logging
import threading

from millstream.backup.follow import INTERVAL_S, following
from millstream.backup.keep import parse_keep
from millstream.backup.place import BackupPlace
from millstream.backup.run import add_point
from millstream.backup.source import refuse_overlap, source_of
from millstream.engine.sqlite.engine import SqliteEngine
from millstream.errors import InvalidInput, MillstreamError
from millstream.server.observe.health import Check
from millstream.server.settings import Settings
from millstream.store.store import Store

_logger = logging.getLogger("millstream.backup")

RETRY_S = 60.0
FOLLOW_LATE_S = 60.0
"""The age at which the backup of a followed store is late."""


class ServerBackups:
    """Makes backups until `close`; any thread may read how old the last one is."""

    def __init__(self, store: Store, settings: Settings) -> None:
        self._store, self._settings = store, settings
        self._keep = parse_keep(settings.backup_keep) if settings.backup_keep else None
        self._late_s = FOLLOW_LATE_S if settings.backup_follow else 2 * settings.backup_every_s
        self._began_ms = store.clock.wall_ms()
        self.stored_ms = 0
        """Wall time of the last backup; 0 before the first one is known."""
        self.failures = 0
        self.last_failure = ""
        self.tried = threading.Event()
        """An event of each backup and each failure."""
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="millstream-backup", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop; a follower stores the last commits first."""
        self._stop.set()
        self._thread.join()

    def age_s(self) -> float:
        """Return the age of the last backup, or the time since the server began to try."""
        since_ms = self.stored_ms or self._began_ms
        return max(0.0, (self._store.clock.wall_ms() - since_ms) / 1000)

    def check(self) -> Check:
        """Check whether the last backup is young enough."""
        age_s = self.age_s()
        age_text = f"the last backup is {age_s:,.0f} s old" if self.stored_ms else "no backup yet"
        if self.last_failure:
            return Check(
                "backup", "warning", f"{age_text}; the last try failed: {self.last_failure}"
            )
        return Check("backup", "warning" if age_s > self._late_s else "healthy", age_text)

    def _run(self) -> None:
        work = self._follow if self._settings.backup_follow else self._add_points
        while not self._stop.is_set():
            try:
                work()
            except Exception as error:  # a thread that ended would make no backup any more
                self._note_failure(error)
                self._stop.wait(min(RETRY_S, self._settings.backup_every_s))

    def _note_failure(self, error: Exception) -> None:
        self.failures += 1
        self.last_failure = getattr(error, "message", "") or str(error)
        _logger.warning("backup_failed", extra={"why": self.last_failure})
        self.tried.set()

    def _note_success(self, stored_ms: int) -> None:
        self.stored_ms, self.last_failure = stored_ms, ""
        self.tried.set()

    def _place(self) -> BackupPlace:
        place = BackupPlace(self._settings.backup_place)
        refuse_overlap(self._store.engine.place, place)
        return place

    def _add_points(self) -> None:
        """Add a point whenever the last one is old enough, until `close` or a failure."""
        place, clock = self._place(), self._store.clock
        self.stored_ms = max((point.taken_ms for point in place.points()), default=self.stored_ms)
        every_s = self._settings.backup_every_s
        while not self._stop.is_set():
            due_s = every_s - self.age_s() if self.stored_ms else 0.0
            if due_s > 0:
                self._stop.wait(due_s)
                continue
            report = add_point(
                place,
                source_of(self._store.engine, place=self._store.engine.place),
                keep=self._keep,
                compress=None,
                heard=lambda _stage, _done, _total: None,
                clock=clock,
            )
            self._note_success(report.point.taken_ms)

    def _follow(self) -> None:
        """Store every commit, until `close` or a failure of the store."""
        engine = self._store.engine
        if not isinstance(engine, SqliteEngine):
            raise InvalidInput(
                "backup_follow is for a store in a file that is no node of a cluster: leave it out, and "
                "points are made every so often"
            )
        with following(engine, self._place(), keep=self._keep, clock=self._store.clock) as follower:
            self._note_success(follower.step().stored_ms)
            while not self._stop.wait(INTERVAL_S):
                try:
                    self._note_success(follower.step().stored_ms)
                except (MillstreamError, OSError) as error:
                    if follower.state is not None:  # commits may be stored although a point failed
                        self.stored_ms = follower.state.stored_ms
                    self._note_failure(error)
            follower.step()
