"""Health: whether a server can do its work, and what will soon keep it from doing so.

`/health` needs no token; without one it says only healthy, warning or critical. Clients that may
read the store see each check.
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
"""How long a finding is cached: frequent requests do not make the store work for it."""

ANSWER_S_MAX = 5.0
"""A store that takes longer to answer is as good as gone."""

DISK_FREE_WARNING = 1024 * MiB
DISK_FREE_CRITICAL = 100 * MiB

FOLD_CRITICAL = 4
"""Times the bound at which writers begin to fold by themselves."""

LAG_SLEEP_S = 0.005
LAG_S_WARNING = 0.25
LAG_S_CRITICAL = 5.0

QUEUES_LOOKED_AT = 1_000

RANK = {"healthy": 0, "warning": 1, "critical": 2}
"""How bad a status is."""


async def loop_lag_s() -> float:
    """How much later than asked for the event loop wakes a coroutine now."""
    loop = asyncio.get_running_loop()
    began_s = loop.time()
    await asyncio.sleep(LAG_SLEEP_S)
    return max(0.0, loop.time() - began_s - LAG_SLEEP_S)


ADVICE: dict[str, str] = {
    "store": "If the disk is full, make room: writes go on by themselves. If a file is gone, put it "
    "back, or restart the server. If it repairs itself, wait; if that takes long, look at the "
    "server's log, and run millstream doctor on a copy of the file.",
    "upkeep": "The detail says what failed last. It is tried again; if it stays, run millstream "
    "doctor.",
    "scrub": "Rows on the disk are damaged. Run millstream doctor on the store: it says what is lost. Put "
    "back a copy, or copy what can be read to a new store, and look after the disk.",
    "fold": "More is written than the disk folds. Write in larger batches, or give the store a "
    "faster disk.",
    "disk": "Let logs forget more (retention), truncate what is not needed, or give the store a "
    "larger disk.",
    "event_loop": "The process has too little processor time: fewer clients per process, or more "
    "processors.",
    "queues": "Start more workers, or look why those that run fail: the queue's page shows its "
    "attempts.",
    "rooms": "This server does not deliver what is stored. Its log says what fails; if it says "
    "nothing, restart the server: its clients go on where they were.",
    "instances": "Look whether that process hangs, and end it or let it go on. If it is gone for good: "
    "millstream room remove-instance NAME.",
    "cluster": "Look at GET /cluster/status of every node: one must lead, and a majority must run. A node "
    "that has halted says why; `millstream cluster repair` rebuilds a shared log that was lost.",
}
"""What an operator does about a check that is not healthy."""


class Check(Struct, frozen=True):
    """One thing that was looked at, and what to do about it."""

    name: str
    status: Status
    detail: str = ""
    """What was found."""
    advice: str = ""
    """What to do about it; empty if it is healthy."""


class Health(Struct, frozen=True, omit_defaults=True):
    """The worst of all checks, and the checks."""

    status: Status
    checks: list[Check] = []
    """Left out for clients that may not read the store."""


class Checkup:
    """Looks after one server; belongs to its event loop."""

    def __init__(
        self,
        session: AsyncEmbeddedSession,
        settings: Settings,
        *,
        disk_free: Callable[[Path], int] = lambda p: shutil.disk_usage(p).free,
    ) -> None:
        self._session = session
        self._queue_age_s_max = settings.queue_age_s_max
        self._disk_free = disk_free
        self.own_place: Callable[[], OwnPlace] = lambda: NOWHERE
        """How far this server has come in its rooms."""
        self._stuck: dict[str, tuple[int, float]] = {}
        """Rooms with a backlog: the place that was found, and when it was found there first."""
        self.check_cluster: Callable[[], Awaitable[Check]] | None = None
        """How a node of a cluster finds out whether it can do its part."""
        self._found: Health | None = None
        self._looked_s = 0.0
        self._lock = asyncio.Lock()

    async def health(self) -> Health:
        """How the server is, as of a second ago at most."""
        clock = self._session.clock
        async with self._lock:
            if self._found is None or clock.seconds() - self._looked_s >= KEPT_S:
                checks = [advised(check) for check in await self._look()]
                worst = max((check.status for check in checks), key=RANK.__getitem__)
                self._found, self._looked_s = Health(worst, checks), clock.seconds()
            return self._found

    async def backlogs(self) -> list[RoomBacklog]:
        """How rooms stand, with what this server has yet to deliver."""
        own = self.own_place()
        found = await asyncio.to_thread(find_backlogs, self._session.store, own)
        return self._with_ages(found, own)

    def _with_ages(self, found: list[RoomBacklog], own: OwnPlace) -> list[RoomBacklog]:
        """Let a backlog be at least as old as its place: what is stuck stays so if messages expire."""
        now_s, stuck = self._session.clock.seconds(), {}
        aged = []
        for one in found:
            if one.unpassed:
                position = own.positions[one.room]
                known = self._stuck.get(one.room)
                since_s = known[1] if known is not None and known[0] == position else now_s
                stuck[one.room] = position, since_s
                one = replace(one, oldest_s=max(one.oldest_s, now_s - since_s))
            aged.append(one)
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
        if self.check_cluster is not None:
            checks.append(await self.check_cluster())
        if folder is not None:
            free = await asyncio.to_thread(self._disk_free, folder)
            checks.append(check_disk(free))
        return checks


def advised(check: Check) -> Check:
    """A check with what to do about it, unless it is healthy."""
    if check.status == "healthy" or check.advice:
        return check
    return replace(check, advice=ADVICE.get(check.name, ""))


def check_store(store: Store, stats: dict[str, Any]) -> Check:
    """Whether the store takes writes; it answers reads."""
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
    """What the store's own facts say."""
    failure = stats["last_upkeep_failure"]
    yield Check("upkeep", "warning" if failure else "healthy", failure or "")
    behind = max(
        stats["unfolded_commits"] / limits.tail_deltas_max,
        stats["unfolded_bytes"] / limits.tail_bytes_max,
        stats["unfolded_entities"] / limits.tail_entities_max,
    )
    status = _graded(behind, 1, FOLD_CRITICAL)
    detail = f"{stats['unfolded_commits']:,} commits, {stats['unfolded_bytes']:,} bytes unfolded"
    yield Check("fold", status, detail)
    if stats.get("scrub", "off") != "off" or stats.get("scrub_findings"):
        yield check_scrub(stats)


def check_scrub(stats: dict[str, Any]) -> Check:
    """What the background found when it read all rows, and how far it is.

    A damaged row keeps nobody from reading or writing others: it is a warning.
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
    """How long ago something was, in the largest unit that fits."""
    for unit, seconds in (("day", 86_400), ("hour", 3_600), ("minute", 60)):
        if age_s >= seconds:
            number = int(age_s // seconds)
            return f"{number:,} {unit}{'s' if number > 1 else ''} ago"
    return "less than a minute ago"


def check_disk(free_bytes: int) -> Check:
    """How much room the store's disk has."""
    status = _graded(-free_bytes, -DISK_FREE_WARNING, -DISK_FREE_CRITICAL)
    return Check("disk", status, f"{free_bytes // MiB:,} MiB free")


def check_lag(lag_s: float) -> Check:
    """How late the event loop is."""
    status = _graded(lag_s, LAG_S_WARNING, LAG_S_CRITICAL)
    return Check("event_loop", status, f"{lag_s * 1000:.0f} ms late")


def _graded(found: float, warning: float, critical: float) -> Status:
    """How bad it is to be above two bounds."""
    return "healthy" if found <= warning else "warning" if found <= critical else "critical"


def check_rooms(backlogs: list[RoomBacklog], skipped: int = 0) -> Check:
    """Whether this server is behind in a room: by how many messages, and since when."""
    late = [one for one in backlogs if one.status != "healthy"]
    if not late:
        passed = f"{skipped:,} records could not be read, and were passed over" if skipped else ""
        return Check("rooms", "healthy", passed)
    worst = max(late, key=lambda one: (RANK[one.status], one.unpassed))
    detail = (
        f"in {worst.room!r} this server has yet to deliver {worst.unpassed:,} messages, the oldest "
        f"for {worst.oldest_s:.0f} s"
    )
    more = f", and {len(late) - 1} more rooms" if len(late) > 1 else ""
    return Check("rooms", worst.status, detail + more)


def check_instances(instances: list[InstanceInfo], now_ms: int) -> Check:
    """Whether a server that shares the store hangs, or vanished without having stopped.

    That is no more than a warning: this one does its work.
    """
    silent = [one for one in instances if one.is_silent]
    if not silent:
        return Check("instances", "healthy")
    longest = min(silent, key=lambda one: one.seen)
    detail = (
        f"instance {longest.name!r} has given no sign of life for "
        f"{max(0, now_ms - longest.seen) / 1000:.0f} s, and has not stopped"
    )
    more = f", and {len(silent) - 1} more instances" if len(silent) > 1 else ""
    return Check("instances", "warning", detail + more)


def check_ages(queues: list[QueueInfo], age_s_max: float) -> Check:
    """Whether a message has waited for longer than it should."""
    late = [queue for queue in queues if (queue.oldest_s or 0.0) > age_s_max]
    if not late:
        return Check("queues", "healthy")
    worst = max(late, key=lambda queue: queue.oldest_s or 0.0)
    detail = f"{worst.name!r} has a message that waits for {worst.oldest_s:.0f} s"
    more = f", and {len(late) - 1} more queues" if len(late) > 1 else ""
    return Check("queues", "warning", detail + more)
