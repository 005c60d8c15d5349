"""Where the bytes of a store are: records, records that consumers still need, free pages, tables.

    live         records that readers can read
    waiting      the part of live that a cursor or a queue has not finished
    held         deleted records that a fork, a queue or a copy still needs, or that go next
    free         free pages of the file, which later records fill or a compaction returns
    application  tables of the application in the same file
    other        keys, indexes, the states of queues and rooms, and unused space within pages
    wal          the write-ahead log beside the file

Logs keep their number of bytes anyway, so a look adds up the heads of logs. The waiting part is the
share of records behind the slowest reader, for the largest logs and within a time limit. A result is
kept for ten seconds, and longer if the look took long: a look takes at most 1 % of the time.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from msgspec import Struct, to_builtins

from millstream.errors import MillstreamError
from millstream.format import keys
from millstream.log.model.head import Head
from millstream.log.model.users import passed
from millstream.store.state.view import View
from millstream.store.store import Store

if TYPE_CHECKING:
    from millstream.engine.sqlite.rows import SqliteReader

KEPT_S = 10.0
"""The age from which a result is measured anew."""

KEPT_TIMES = 100
"""The age of a result is at least this many times the duration of its measurement."""

LOOK_S_MAX = 0.05
"""The time limit for readers of logs, and the one for the application's tables."""

UNCOUNTED_S = 600.0
"""Pause after tables of the application that could not be counted in time."""

HEADS_PER_STEP = 500
LOGS_WITH_READERS_MAX = 200


class SpaceUse(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Bytes of a store by their use."""

    live_bytes: int
    waiting_bytes: int
    held_bytes: int
    logs_left_off: int = 0
    """Logs whose waiting records were not counted: the figure is then a lower bound."""
    free_bytes: int | None = None
    """Bytes of free pages. A store without a file has None here and in the fields below."""
    application_bytes: int | None = None
    """None if the tables are too large to be counted; `other_bytes` then includes the tables."""
    other_bytes: int | None = None
    wal_bytes: int | None = None
    age_s: float = 0.0
    """The time since the records were counted."""


class _LogUse(NamedTuple):
    log_id: int
    live_bytes: int
    held_bytes: int


class _Counted(NamedTuple):
    live_bytes: int
    waiting_bytes: int
    held_bytes: int
    logs_left_off: int
    application_bytes: int | None


class SpaceLook:
    """The last measurement of a store; for any thread."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._lock = threading.Lock()
        self._counted: _Counted | None = None
        self._counted_s = self._due_s = self._tables_due_s = 0.0

    def use(self) -> SpaceUse:
        """Return the use of the store's bytes; records are counted anew after some seconds."""
        store = self._store
        facts = store.engine.describe()
        with self._lock:
            now_s = store.clock.seconds()
            if self._counted is None or now_s >= self._due_s:
                self._counted = self._count()
                self._counted_s = store.clock.seconds()
                took_s = self._counted_s - now_s
                self._due_s = self._counted_s + max(KEPT_S, KEPT_TIMES * took_s)
            counted, age_s = self._counted, max(0.0, now_s - self._counted_s)
        use = {"age_s": round(age_s, 1), **counted._asdict()}
        if "free_bytes" in facts:
            counted_bytes = (
                counted.live_bytes + counted.held_bytes + (counted.application_bytes or 0)
            )
            use["other_bytes"] = max(0, facts["file_bytes"] - facts["free_bytes"] - counted_bytes)
            use |= {name: facts[name] for name in ("free_bytes", "wal_bytes")}
        return SpaceUse(**use)

    def _count(self) -> _Counted:
        logs = self._logs()
        waiting_bytes, left_off = self._waiting(logs)
        return _Counted(
            live_bytes=sum(log.live_bytes for log in logs),
            waiting_bytes=waiting_bytes,
            held_bytes=sum(log.held_bytes for log in logs),
            logs_left_off=left_off,
            application_bytes=self._tables(),
        )

    def _logs(self) -> list[_LogUse]:
        start, stop = keys.range_of(keys.prefix(keys.HEAD))
        logs: list[_LogUse] = []

        def page(view: View) -> list[bytes]:
            head_keys = view.find(start, stop, limit=HEADS_PER_STEP)
            logs.extend(_use_of(keys.number(key), view.entity(key, Head)) for key in head_keys)
            return head_keys

        while heads := self._store.view(page):
            start = keys.successor(heads[-1])
        return logs

    def _waiting(self, logs: list[_LogUse]) -> tuple[int, int]:
        """Return the bytes that readers have not finished, and the number of uncounted logs."""
        full = sorted((log for log in logs if log.live_bytes), key=lambda log: -log.live_bytes)
        is_late = self._time_limit()
        total = 0
        for at, log in enumerate(full):
            if at == LOGS_WITH_READERS_MAX or is_late():
                return total, len(full) - at
            share = self._store.view(lambda view: _waiting_share(view, log.log_id))  # noqa: B023
            total += round(log.live_bytes * share)
        return total, 0

    def _tables(self) -> int | None:
        """Return the bytes of the application's tables, unless they took too long lately."""
        from millstream.engine.sqlite.table_sizes import application_bytes  # late: it loads SQLite

        engine, now_s = self._store.engine, self._store.clock.seconds()
        if "sql" not in engine.abilities or now_s < self._tables_due_s:
            return None
        with engine.read() as snapshot:
            connection = cast("SqliteReader", snapshot).connection
            counted_bytes = application_bytes(connection, self._time_limit())
        if counted_bytes is None:
            self._tables_due_s = now_s + UNCOUNTED_S
        return counted_bytes

    def _time_limit(self) -> Callable[[], bool]:
        clock = self._store.clock
        until_s = clock.seconds() + LOOK_S_MAX
        return lambda: clock.seconds() >= until_s


def _use_of(log_id: int, head: Head) -> _LogUse:
    """Split the bytes of a log at its start, as if its records had one size."""
    stored = head.bytes - head.kept
    records = head.count(head.dropped, head.end)
    share = head.count(max(head.start, head.dropped), head.end) / records if records else 0.0
    live_bytes = 0 if head.deleted else round(stored * share)
    return _LogUse(log_id, live_bytes, max(0, head.bytes - live_bytes))


def _waiting_share(view: View, log_id: int) -> float:
    """Return the share of a log's records that its slowest reader has not finished."""
    head = view.entity(keys.head(log_id), Head)
    floor = min(passed(view, log_id), default=head.end)
    floor = min(max(floor, head.start), head.end)
    records = head.count(head.start, head.end)
    return head.count(floor, head.end) / records if records else 0.0


def stats_of(store: Store) -> dict[str, Any]:
    """Return facts and counters of a handle, with the use of the store's bytes."""
    facts = store.stats()
    try:
        use = store.caches.of(SpaceLook, store).use()
    except MillstreamError:  # a store that cannot be read still has its other facts
        return facts
    return {**facts, "space": to_builtins(use)}
