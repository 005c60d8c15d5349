"""Health: whether a server works, and problems that will soon stop it.

`/health` needs no token. Without a token it answers only healthy, warning or critical. A client
that may read the store also gets every check.
"""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from millstream.command import Stats
from millstream.embedded.loop.session import AsyncEmbeddedSession
from millstream.errors import MillstreamError
from millstream.limits import Limits, MiB
from millstream.log.commands import GetBounds
from millstream.queue.commands import ListQueues
from millstream.queue.model.message import QueueInfo
from millstream.record import Status
from millstream.rooms.backlog import NOWHERE, OwnPlace, RoomBacklog, find_backlogs
from millstream.rooms.commands import ListInstances
from millstream.rooms.model import InstanceInfo
from millstream.server.auth.need import RESERVED
from millstream.server.settings import Settings
from millstream.store.store import Store

KEPT_S = 1.0
"""How long a result is cached, so that frequent requests do not load the store."""

ANSWER_S_MAX = 5.0
"""A store that answers later than this counts as failed."""

DISK_FREE_WARNING = 1024 * MiB
DISK_FREE_CRITICAL = 100 * MiB

FOLD_CRITICAL = 4
"""A factor above the limit at which writers begin to fold."""

LAG_SLEEP_S = 0.005
LAG_S_WARNING = 0.25
LAG_S_CRITICAL = 5.0

QUEUES_LOOKED_AT = 1_000

RANK = {"healthy": 0, "warning": 1, "critical": 2}
"""The order of statuses, the worst last."""


async def loop_lag_s() -> float:
    """Measure how late the event loop wakes a coroutine."""
    loop = asyncio.get_running_loop()
    began_s = loop.time()
    await asyncio.sleep(LAG_SLEEP_S)
    return max(0.0, loop.time() - began_s - LAG_SLEEP_S)


ADVICE: dict[str, str] = {
    "store": "If the disk is full, free disk space: writes then continue. If a file is gone, put it "
    "back, or restart the server. If the store repairs itself, wait; if that takes long, read the "
    "server's log, and run millstream doctor on a copy of the file.",
    "upkeep": "The detail shows the last failure. The upkeep is repeated; if it keeps failing, run "
    "millstream doctor.",
    "scrub": "Rows on the disk are damaged. Run millstream doctor on the store: it shows what is lost. "
    "Restore a copy, or copy all readable rows to a new store, and check the disk.",
    "fold": "Writes are faster than the disk can fold. Write in larger batches, or use a faster disk.",
    "disk": "Let logs delete more records (retention), truncate logs, or use a larger disk.",
    "event_loop": "The process gets too little processor time: use fewer clients per process, or more "
    "processors.",
    "queues": "Start more workers, or find out why the running workers fail: the queue's page shows "
    "the attempts.",
    "rooms": "This server does not deliver stored messages. Its log shows the failure; if it does not, "
    "restart the server: its clients resume where they were.",
    "instances": "Check whether that process hangs, and end it or let it continue. If it is gone for "
    "good: millstream room remove-instance NAME.",
    "processes": "A process that ended is started again: the server's log shows how it ended. If it "
    "ends again and again, its last log lines show the reason.",
    "backup": "The detail shows the last failure; a failed backup is tried again within a minute. If "
    "it keeps failing, check the place of the backup: its disk, its address and its credentials.",
    "cluster": "Read GET /cluster/status of every node: one node must lead, and a majority must run. A "
    "halted node shows the reason; `millstream cluster repair` rebuilds a lost shared log.",
}
"""What an operator should do about a check that is not healthy."""


class Check(Struct, frozen=True):
    """One check of the server, with its result and advice."""

    name: str
    status: Status
    detail: str = ""
    """The result in words."""
    advice: str = ""
    """The advice; empty for a healthy check."""


class Health(Struct, frozen=True, omit_defaults=True):
    """The worst status of all checks, and the checks."""

    status: Status
    checks: list[Check] = []
    """Left out for clients that may not read the store."""


class Checkup:
    """Checks one server. Belongs to the server's event loop."""

    def __init__(
        self,
        session: AsyncEmbeddedSession,
        settings: Settings,
        *,
        disk_free: Callable[[Path], int] = lambda p: shutil.disk_usage(p).free,
        own_place: Callable[[], OwnPlace] = lambda: NOWHERE,
        check_cluster: Callable[[], Awaitable[Check]] | None = None,
        check_processes: Callable[[], Check] | None = None,
        check_backup: Callable[[], Check] | None = None,
    ) -> None:
        """`check_cluster`, `check_processes` and `check_backup` are additional checks: of a cluster's
        node, of a group of server processes, and of the backups that the server makes."""
        self._session = session
        self._queue_age_s_max = settings.queue_age_s_max
        self._disk_free = disk_free
        self.own_place = own_place
        """Returns how far this server has delivered in its rooms."""
        self._stuck: dict[str, tuple[int, float]] = {}
        """Rooms with a backlog: the position, and the time when it was first seen there."""
        self._check_cluster = check_cluster
        self._check_processes = check_processes
        self._check_backup = check_backup
        self._health: Health | None = None
        self._looked_s = 0.0
        self._lock = asyncio.Lock()

    async def health(self) -> Health:
        """Return the server's health, at most a second old."""
        clock = self._session.clock
        async with self._lock:
            if self._health is None or clock.seconds() - self._looked_s >= KEPT_S:
                checks = [advised(check) for check in await self._look()]
                worst = max((check.status for check in checks), key=RANK.__getitem__)
                self._health, self._looked_s = Health(worst, checks), clock.seconds()
            return self._health

    async def backlogs(self) -> list[RoomBacklog]:
        """Return the backlogs of all rooms, with the messages that this server must still
        deliver."""
        place = self.own_place()
        backlogs = await asyncio.to_thread(find_backlogs, self._session.store, place)
        return self._with_ages(backlogs, place)

    def _with_ages(self, backlogs: list[RoomBacklog], place: OwnPlace) -> list[RoomBacklog]:
        """Make a backlog at least as old as its position.

        A room that is stuck must stay visible even if its old messages expire.
        """
        now_s, stuck = self._session.clock.seconds(), {}
        aged = []
        for backlog in backlogs:
            if backlog.unpassed:
                position = place.positions[backlog.room]
                previous = self._stuck.get(backlog.room)
                is_same = previous is not None and previous[0] == position
                since_s = previous[1] if previous is not None and is_same else now_s
                stuck[backlog.room] = position, since_s
                backlog = replace(backlog, oldest_s=max(backlog.oldest_s, now_s - since_s))
            aged.append(backlog)
        self._stuck = stuck
        return aged

    async def _look(self) -> list[Check]:
        session, store = self._session, self._session.store
        checks = [check_lag(await loop_lag_s())]
        try:
            async with asyncio.timeout(ANSWER_S_MAX):
                await session.execute(GetBounds(f"{RESERVED}health"))
                stats = await session.execute(Stats())
                checks += [check_store(store, stats), *check_stats(stats, store.limits)]
                if self._queue_age_s_max:
                    queues = await session.execute(ListQueues("", QUEUES_LOOKED_AT))
                    checks.append(check_ages(queues, self._queue_age_s_max))
                if backlogs := await self.backlogs():
                    checks.append(check_rooms(backlogs, session.feeds.counts.skipped))
                if instances := await session.execute(ListInstances()):
                    checks.append(check_instances(instances, session.clock.wall_ms()))
        except (MillstreamError, OSError) as error:
            text = getattr(error, "message", "") or str(error)
            return [*checks, Check("store", "critical", text)]
        except TimeoutError:
            text = f"no answer within {ANSWER_S_MAX:g} s: something holds the write lock"
            return [*checks, Check("store", "critical", text)]
        folder = store.engine.folder()
        if self._check_cluster is not None:
            checks.append(await self._check_cluster())
        if self._check_processes is not None:
            checks.append(self._check_processes())
        if self._check_backup is not None:
            checks.append(self._check_backup())
        if folder is not None:
            free = await asyncio.to_thread(self._disk_free, folder)
            checks.append(check_disk(free))
        return checks


def advised(check: Check) -> Check:
    """Add the advice to a check that is not healthy."""
    if check.status == "healthy" or check.advice:
        return check
    return replace(check, advice=ADVICE.get(check.name, ""))


def check_store(store: Store, stats: dict[str, Any]) -> Check:
    """Check whether the store accepts writes; reads were checked before."""
    if stats.get("missing"):
        return Check("store", "critical", f"{stats['missing']} was removed, renamed or replaced")
    shortage, recovering = store.engine.shortage(), store.recovery.reason
    if recovering is not None:
        failed = store.recovery.failure
        return Check("store", "critical", f"{recovering.message}{f' ({failed})' if failed else ''}")
    if shortage is not None:
        return Check("store", "critical", shortage.error().message)
    return Check("store", "healthy")


def check_stats(stats: dict[str, Any], limits: Limits) -> Iterator[Check]:
    """Check the store's upkeep, fold and scrub by its statistics."""
    failure = stats["last_upkeep_failure"]
    yield Check("upkeep", "warning" if failure else "healthy", failure or "")
    behind = max(
        stats["unfolded_commits"] / limits.tail_deltas_max,
        stats["unfolded_bytes"] / limits.tail_bytes_max,
        stats["unfolded_entities"] / limits.tail_entities_max,
    )
    status = _graded(behind, 1, FOLD_CRITICAL)
    commits, size = stats["unfolded_commits"], size_text(stats["unfolded_bytes"])
    detail = (
        f"{commits:,} {'commit waits' if commits == 1 else 'commits wait'} to be folded, {size}"
    )
    yield Check("fold", status, detail)
    if stats.get("scrub", "off") != "off" or stats.get("scrub_findings"):
        yield check_scrub(stats)


def check_scrub(stats: dict[str, Any]) -> Check:
    """Check the findings and the progress of the scrub.

    Damage is only a warning: the other rows can still be read and written.
    """
    findings, age_s = stats["scrub_findings"], stats["scrub_age_s"]
    if findings:
        more = len(findings) - 1 + stats["scrub_findings_left_off"]
        return Check("scrub", "warning", findings[0] + (f"; and {more:,} more" if more else ""))
    if age_s is None:
        last = "no pass over all rows has ended yet"
    else:
        last = f"all rows were sound {duration_ago(age_s)}"
    if stats["scrub_progress"] < 1:
        last += f"; {stats['scrub_progress']:.0%} of the next pass"
    return Check("scrub", "healthy", last)


def duration_ago(age_s: float) -> str:
    """Return an age as text, in the largest unit that fits."""
    for unit, seconds in (("day", 86_400), ("hour", 3_600), ("minute", 60)):
        if age_s >= seconds:
            number = int(age_s // seconds)
            return f"{number:,} {unit}{'s' if number > 1 else ''} ago"
    return "less than a minute ago"


def size_text(size_bytes: int) -> str:
    """Return a number of bytes as text, in the largest unit that fits: `31.7 GiB`."""
    size, units = float(size_bytes), iter(("bytes", "KiB", "MiB", "GiB"))
    unit = next(units)
    while size >= 1024 and (larger := next(units, None)) is not None:
        size, unit = size / 1024, larger
    return f"{size:,.0f} {unit}" if unit == "bytes" or size >= 100 else f"{size:.1f} {unit}"


def duration_text(seconds: float) -> str:
    """Return a duration as text, in the largest unit that fits: `45 s`, `17 min`, `5.2 h`."""
    if seconds < 120:
        return f"{seconds:.0f} s"
    if seconds < 7_200:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3_600:.1f} h" if seconds < 172_800 else f"{seconds / 86_400:.1f} days"


def check_disk(free_bytes: int) -> Check:
    """Check the free space of the store's disk."""
    status = _graded(-free_bytes, -DISK_FREE_WARNING, -DISK_FREE_CRITICAL)
    return Check("disk", status, f"{size_text(free_bytes)} free")


def check_lag(lag_s: float) -> Check:
    """Check the lag of the event loop."""
    status = _graded(lag_s, LAG_S_WARNING, LAG_S_CRITICAL)
    return Check("event_loop", status, f"answers are delayed by {lag_s * 1000:.0f} ms")


def _graded(value: float, warning: float, critical: float) -> Status:
    """Return the status of a value with two bounds."""
    return "healthy" if value <= warning else "warning" if value <= critical else "critical"


def check_rooms(backlogs: list[RoomBacklog], skipped: int = 0) -> Check:
    """Check whether this server is late in a room: by how many messages, and for how long."""
    late = [backlog for backlog in backlogs if backlog.status != "healthy"]
    if not late:
        passed = f"{skipped:,} records could not be read, and were passed over" if skipped else ""
        return Check("rooms", "healthy", passed)
    worst = max(late, key=lambda backlog: (RANK[backlog.status], backlog.unpassed))
    detail = (
        f"in {worst.room!r} this server has yet to deliver {worst.unpassed:,} messages, the oldest "
        f"for {worst.oldest_s:.0f} s"
    )
    rest_text = f", and {len(late) - 1} more rooms" if len(late) > 1 else ""
    return Check("rooms", worst.status, detail + rest_text)


def check_instances(instances: list[InstanceInfo], now_ms: int) -> Check:
    """Check whether another server of the store hangs, or vanished without having stopped.

    This is only a warning: this server works.
    """
    silent = [instance for instance in instances if instance.is_silent]
    if not silent:
        return Check("instances", "healthy")
    longest = min(silent, key=lambda instance: instance.seen)
    detail = (
        f"instance {longest.name!r} has given no sign of life for "
        f"{max(0, now_ms - longest.seen) / 1000:.0f} s, and has not stopped"
    )
    rest_text = f", and {len(silent) - 1} more instances" if len(silent) > 1 else ""
    return Check("instances", "warning", detail + rest_text)


def check_ages(queues: list[QueueInfo], age_s_max: float) -> Check:
    """Check whether a message has waited for too long."""
    late = [queue for queue in queues if (queue.oldest_s or 0.0) > age_s_max]
    if not late:
        return Check("queues", "healthy")
    worst = max(late, key=lambda queue: queue.oldest_s or 0.0)
    waited = duration_text(worst.oldest_s or 0.0)
    detail = f"{worst.name!r} has a message that has waited for {waited}"
    rest_text = f", and {len(late) - 1} more queues" if len(late) > 1 else ""
    return Check("queues", "warning", detail + rest_text)
