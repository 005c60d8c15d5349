"""Metrics: how a server, its store and its queues stand, for Prometheus."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterator
from heapq import nlargest
from operator import attrgetter
from types import SimpleNamespace
from typing import Any

import msgspec
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    InfoMetricFamily,
    Metric,
    SummaryMetricFamily,
)
from prometheus_client.exposition import choose_encoder

from millstream import __version__
from millstream.command import Stats
from millstream.format import keys
from millstream.log.commands import ListLogs
from millstream.queue.commands import ListQueues
from millstream.queue.model.message import QueueInfo
from millstream.queue.model.state import QueueState
from millstream.record import LogInfo
from millstream.rooms.backlog import RoomBacklog
from millstream.rooms.sweeping import SweepCounts
from millstream.server.core import Core
from millstream.server.observe.health import RANK, loop_lag_s
from millstream.store.state.view import View
from millstream.store.store import Store

NAMES_MAX = 1_000
"""Logs and queues that have metrics of their own: each is a few time series."""

LISTED_MAX = 10_000
"""Logs and queues that a scrape looks at, to find the largest."""

_PAGE = 1_000
_LOGS = f"Of the {NAMES_MAX:,} largest logs, among the first {LISTED_MAX:,} by name."
_QUEUES = f"Of the {NAMES_MAX:,} longest queues, among the first {LISTED_MAX:,} by name."
_ROOMS = f"Of the {NAMES_MAX:,} largest rooms."
_STATES = ("available", "unrouted", "delayed", "in_flight", "done", "failed")
_TOTALS = {
    "done": "Messages that were ever done, also those that are forgotten by now.",
    "failed": "Messages that ever failed, also those that were driven again.",
    "placed": "Messages that were routed or put to a queue.",
    "claimed": "Messages that were handed out, repeats included.",
    "retried": "Attempts that ended without success, and are to be repeated.",
    "expired": "Leases that ended before the message was finished.",
    "duplicates": "Repeats that were dropped.",
    "lost": "Records that a log forgot before a lossy queue had looked at them.",
    "filter_errors": "Records for which the filter was unknown: a header was missing, of another "
    "type, or no number came out. Of long blocks it is an estimate.",
}


async def exposition(core: Core, accept: str) -> tuple[bytes, str]:
    """Everything, in a form that the client accepts, and the name of that form."""
    encode, media_type = choose_encoder(accept)
    families = [*core.meter.registry.collect(), *await _families(core)]
    registry: Any = SimpleNamespace(collect=lambda: families)
    return encode(registry), media_type


async def _families(core: Core) -> list[Metric]:
    """All names are read for every client: `store:read` is about the whole store."""
    stats = await core.session.execute(Stats())
    found = await _largest(core, ListLogs, attrgetter("bytes"))
    queues: list[QueueInfo] = await _largest(core, ListQueues, _length)
    totals = await asyncio.to_thread(_totals_of, core.store, [queue.name for queue in queues])
    return [
        *_of_server(await loop_lag_s()),
        *_of_store(stats),
        *_of_logs(found),
        *_of_queues(queues, totals),
        *_of_rooms(await core.checkup.backlogs()),
        *_of_feeds(core),
        *_of_cluster(core),
    ]


async def _largest(core: Core, command: Any, size: Any) -> list[Any]:
    listed: list[Any] = []
    after = ""
    while len(listed) < LISTED_MAX:
        page = await core.session.execute(command(after, _PAGE))
        listed += page
        if len(page) < _PAGE:
            break
        after = page[-1].name
    return sorted(nlargest(NAMES_MAX, listed, key=size), key=attrgetter("name"))


def _length(queue: QueueInfo) -> int:
    return queue.available + queue.unrouted + queue.delayed + queue.in_flight


def _totals_of(store: Store, names: list[str]) -> dict[str, dict[str, int]]:
    """What queues count beyond what their listing says, by name."""

    def ask(view: View) -> dict[str, dict[str, int]]:
        found = {}
        for name in names:
            queue = view.entity(keys.queue(name), QueueState)
            if queue.exists():
                found[name] = {
                    **msgspec.structs.asdict(queue.counts),
                    "filter_errors": queue.counts.unknown,
                    "done": queue.done_ever,
                    "failed": queue.failed_ever,
                }
        return found

    return store.view(ask)


def _of_server(lag_s: float) -> Iterator[Metric]:
    version = ".".join(str(part) for part in sys.version_info[:3])
    yield InfoMetricFamily(
        "millstream_build", "What runs.", {"version": __version__, "python": version}
    )
    yield GaugeMetricFamily(
        "millstream_event_loop_lag_seconds", "How late the event loop is.", lag_s
    )


REQUESTS = ("get", "put", "list", "delete")
"""What a store in a bucket counts."""


def _of_store(stats: dict[str, Any]) -> Iterator[Metric]:
    for name, text in (
        ("commits", "Commits of this process."),
        ("operations", "Operations in them; divided by commits: the mean size of a group."),
        ("fold_slices", "Slices folded by this process."),
    ):
        yield CounterMetricFamily(f"millstream_store_{name}", text, stats[name])
    for name, text in (
        ("sequence", "The newest commit."),
        ("unfolded_commits", "Commits that are not folded: the fold's lag."),
        ("unfolded_bytes", "Bytes of commits that are not folded."),
        ("unfolded_entities", "Entities with changes that are not folded."),
        ("entities_cached", "Heads, cursors, queues and others in memory."),
        ("file_bytes", "Size of the store's file."),
        ("wal_bytes", "Size of the write-ahead log."),
        ("objects", "Objects of a store in a bucket."),
        ("stored_bytes", "Bytes of these objects."),
        ("staged_bytes", "Of these, what bulk writers have staged there and no commit has."),
        ("month_usd", "About what a month of that store costs."),
    ):
        if name in stats:  # a store in memory has no file
            yield GaugeMetricFamily(f"millstream_store_{name}", text, stats[name])
    yield from _of_scrub(stats)
    asked = {name: stats[f"{name}_requests"] for name in REQUESTS if f"{name}_requests" in stats}
    if asked:
        family = CounterMetricFamily(
            "millstream_store_requests", "Requests to the object store.", labels=["kind"]
        )
        for name, count in asked.items():
            family.add_metric([name], count)
        yield family


def _of_scrub(stats: dict[str, Any]) -> Iterator[Metric]:
    """Of a store in a file: how far the background is in reading all rows, and what it found."""
    if "scrub_progress" not in stats:
        return
    findings = len(stats["scrub_findings"]) + stats["scrub_findings_left_off"]
    for name, text, value in (
        (
            "progress_ratio",
            "How much of the pass over all rows is done; 1 between two passes.",
            stats["scrub_progress"],
        ),
        ("findings", "Damage that the scrub has found and that is still there.", findings),
        (
            "last_pass_age_seconds",
            "Since all rows were last read; missing until they were.",
            stats["scrub_age_s"],
        ),
    ):
        if value is not None:
            yield GaugeMetricFamily(f"millstream_scrub_{name}", text, value)
    yield CounterMetricFamily(
        "millstream_scrub_rows",
        "Rows that the scrub of this process has read.",
        stats["scrub_rows"],
    )


def _of_logs(logs: list[LogInfo]) -> Iterator[Metric]:
    for kind, name, text, value in (
        (CounterMetricFamily, "end_offset", "Records ever appended.", attrgetter("end_offset")),
        (GaugeMetricFamily, "records", "Records present.", len),
        (GaugeMetricFamily, "bytes", "Bytes present.", attrgetter("bytes")),
    ):
        family = kind(f"millstream_log_{name}", f"{text} {_LOGS}", labels=["log"])
        for log in logs:
            family.add_metric([log.name], value(log))
        yield family


def _of_rooms(backlogs: list[RoomBacklog]) -> Iterator[Metric]:
    shown = nlargest(NAMES_MAX, backlogs, key=attrgetter("messages"))
    for kind, name, text, value in (
        (CounterMetricFamily, "sent", "Messages ever sent.", attrgetter("sent")),
        (GaugeMetricFamily, "messages", "Messages that can be read again.", attrgetter("messages")),
        (
            GaugeMetricFamily,
            "unpassed_messages",
            "Messages that this server has yet to deliver to its listeners.",
            attrgetter("unpassed"),
        ),
        (
            GaugeMetricFamily,
            "oldest_seconds",
            "Age of the oldest of them; 0 if there are none.",
            attrgetter("oldest_s"),
        ),
        (GaugeMetricFamily, "users", "Users who are there.", attrgetter("users")),
        (
            GaugeMetricFamily,
            "connections",
            "Connections of these users, of all instances.",
            attrgetter("connections"),
        ),
        (GaugeMetricFamily, "retained_values", "Values that are kept.", attrgetter("retained")),
        (
            GaugeMetricFamily,
            "health",
            "0 is healthy, 1 a warning, 2 critical.",
            lambda room: RANK[room.status],
        ),
    ):
        family = kind(f"millstream_room_{name}", f"{text} {_ROOMS}", labels=["room"])
        for room in sorted(shown, key=attrgetter("room")):
            family.add_metric([room.room], value(room))
        yield family


def _of_feeds(core: Core) -> Iterator[Metric]:
    feeds, here = core.session.feeds, core.room_counts()
    swept = core.store.caches.of(SweepCounts)
    yield GaugeMetricFamily(
        "millstream_feeds", "Logs that this process follows for listeners and waits.", len(feeds)
    )
    yield SummaryMetricFamily(
        "millstream_feed_look_seconds",
        "How long it took to look for news of a log.",
        count_value=feeds.counts.looks,
        sum_value=feeds.counts.look_s,
    )
    for name, text, count in (
        ("feed_failures", "Looks, fetches and deliveries that failed.", feeds.counts.failures),
        (
            "feed_skipped_records",
            "Records that could not be read, and were left out of what is pushed.",
            feeds.counts.skipped,
        ),
        ("room_pushed_messages", "Messages pushed to listeners here.", here.get("pushed", 0)),
        (
            "room_gaps",
            "Times that messages for a listener here were dropped, because it was slow.",
            here.get("gaps", 0),
        ),
        (
            "room_expired_messages",
            "Messages of rooms that this process removed because they had expired.",
            swept.messages,
        ),
        ("room_sweeps", "Times that this process looked for expired messages.", swept.sweeps),
    ):
        yield CounterMetricFamily(f"millstream_{name}", text, count)
    yield GaugeMetricFamily(
        "millstream_room_listeners", "Clients that listen here.", here.get("listeners", 0)
    )


def _of_cluster(core: Core) -> Iterator[Metric]:
    """Of a node: where it stands, and what it has done to get there."""
    if core.seat is None:
        return
    stance = core.seat.node.state()
    for name, text, value in (
        ("leads", "1 while this node leads.", int(core.seat.leads)),
        ("halted", "1 once this node has stopped for a reason.", int(stance.role == "halted")),
        ("epoch", "The epoch that this node knows of.", stance.epoch),
        (
            "sequence",
            "The last entry of the shared log that this node has applied.",
            stance.sequence,
        ),
        ("lag", "Entries that the furthest node has more, by its last report.", stance.lag),
        ("progress_age_seconds", "Since this node last applied an entry.", stance.progress_age_s),
        ("barrier_seconds", "How long the last proof for strong reads took.", stance.barrier_s),
    ):
        yield GaugeMetricFamily(f"millstream_cluster_{name}", text, value)
    for name, text, value in (
        ("elections", "How often the leader changed, as this node has seen it.", stance.elections),
        ("replays", "Commits of other nodes that this one has applied.", stance.replays),
        ("snapshots", "Times that it took a copy of another node's store.", stance.snapshots),
        ("resumes", "Times that it went on by itself after a halt.", stance.resumes),
        ("handed_on", "What the leading node answered for this one.", core.seat.handed_on),
    ):
        yield CounterMetricFamily(f"millstream_cluster_{name}", text, value)


def _of_queues(queues: list[QueueInfo], totals: dict[str, dict[str, int]]) -> Iterator[Metric]:
    depth = GaugeMetricFamily(
        "millstream_queue_messages",
        f"Messages by state; done ones while they are remembered. {_QUEUES}",
        labels=["queue", "state"],
    )
    oldest = GaugeMetricFamily(
        "millstream_queue_oldest_seconds",
        f"How long the message that waits longest could have been claimed; 0 if none. {_QUEUES}",
        labels=["queue"],
    )
    paused = GaugeMetricFamily(
        "millstream_queue_paused", f"1 while claims are held back. {_QUEUES}", labels=["queue"]
    )
    rates = GaugeMetricFamily(
        "millstream_queue_rate",
        f"Messages per second over about a minute, in and done. {_QUEUES}",
        labels=["queue", "direction"],
    )
    for queue in queues:
        for state in _STATES:
            depth.add_metric([queue.name, state], getattr(queue, state))
        oldest.add_metric([queue.name], queue.oldest_s or 0.0)
        paused.add_metric([queue.name], int(queue.paused))
        rates.add_metric([queue.name, "in"], queue.in_per_second)
        rates.add_metric([queue.name, "done"], queue.done_per_second)
    yield from (depth, oldest, paused, rates)
    for name, text in _TOTALS.items():
        total = CounterMetricFamily(
            f"millstream_queue_{name}", f"{text} {_QUEUES}", labels=["queue"]
        )
        for queue_name, found in totals.items():
            total.add_metric([queue_name], found[name])
        yield total
