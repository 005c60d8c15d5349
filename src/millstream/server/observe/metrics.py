"""Metrics: the figures of a server, its store, logs, queues and rooms, for Prometheus."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Iterator, Sequence
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
from prometheus_client.parser import text_string_to_metric_families

from millstream import __version__
from millstream.command import Stats
from millstream.format import keys
from millstream.log.commands import ListCursors, ListLogs
from millstream.log.model.names import ROOM
from millstream.log.reading.queries import list_cursors
from millstream.partitioning import partition_name
from millstream.queue.commands import ListQueues
from millstream.queue.model.message import QueueInfo
from millstream.queue.model.own_logs import INBOX, LATER
from millstream.queue.model.state import QueueState
from millstream.queue.rules.sources import OWN
from millstream.record import CursorInfo, LogInfo
from millstream.rooms.backlog import RoomBacklog
from millstream.rooms.sweep import SweepCounts
from millstream.server.core import Core
from millstream.server.observe.health import RANK, loop_lag_s
from millstream.store.state.view import View
from millstream.store.store import Store

NAMES_MAX = 1_000
"""Most logs, and most queues, with their own metrics: each takes a few time series."""

LISTED_MAX = 10_000
"""Most logs, and most queues, that a scrape reads to find the largest."""

_PAGE = 1_000
_LOGS = f"For the {NAMES_MAX:,} largest logs, among the first {LISTED_MAX:,} by name."
_CURSORS = f"For {NAMES_MAX:,} cursors of these logs, of which the most records were lost or wait."
_QUEUES = f"For the {NAMES_MAX:,} longest queues, among the first {LISTED_MAX:,} by name."
_ROOMS = f"For the {NAMES_MAX:,} largest rooms."
_STATES = ("available", "unrouted", "delayed", "in_flight", "done", "failed")
_TOTALS = {
    "done": "Messages that were ever done, including forgotten ones.",
    "failed": "Messages that ever failed, including redriven ones.",
    "placed": "Messages that were routed or put into a queue.",
    "claimed": "Messages that were claimed, including repeats.",
    "retried": "Attempts that ended without success and are repeated.",
    "expired": "Leases that ended before the message was finished.",
    "duplicates": "Repeats that were dropped.",
    "lost": "Records that a log deleted before a lossy queue had routed them.",
    "filter_errors": "Records for which the filter's result was unknown: a header was missing, had "
    "another type, or was no number. An estimate for long blocks.",
}


async def exposition(
    core: Core, accept: str, shares: Sequence[tuple[int, bytes]] = ()
) -> tuple[bytes, str]:
    """Return all metrics in a format that the client accepts, and its media type.

    `shares` are the metrics of the other processes of a group, by their numbers. A metric of one
    process then has the label `process`: a process that is restarted counts from 0 again, which is
    visible to Prometheus only if the counters are not summed.
    """
    stats = await core.session.execute(Stats())
    own = await _of_process(core, stats)
    if core.siblings is not None:
        parsed = [(core.siblings.number, own)]
        for number, text in shares:
            parsed.append((number, [*text_string_to_metric_families(text.decode())]))
        own = _labelled(parsed)
    return _encoded([_build(), *own, *await _of_all_processes(core, stats)], accept)


async def share_of_process(core: Core) -> bytes:
    """Return the metrics of this process alone, as text."""
    own = await _of_process(core, await core.session.execute(Stats()))
    return _encoded(own, "")[0]


def _encoded(families: list[Metric], accept: str) -> tuple[bytes, str]:
    encode, media_type = choose_encoder(accept)
    registry: Any = SimpleNamespace(collect=lambda: families)
    return encode(registry), media_type


def _labelled(shares: list[tuple[int, list[Metric]]]) -> list[Metric]:
    """Join the metrics of several processes, each with the label of its process."""
    families: dict[str, Metric] = {}
    for number, share in shares:
        for metric in share:
            family = families.get(metric.name)
            if family is None:
                family = families[metric.name] = Metric(
                    metric.name, metric.documentation, metric.type
                )
            for sample in metric.samples:
                labels = {**sample.labels, "process": str(number)}
                family.add_sample(sample.name, labels, sample.value)
    return [*families.values()]


async def _of_process(core: Core, stats: dict[str, Any]) -> list[Metric]:
    """Return the metrics of this process."""
    return [
        *core.meter.registry.collect(),
        _loop_lag(await loop_lag_s()),
        *_commits_of_process(stats),
        *_of_feeds(core),
        *_of_deliveries(await core.checkup.backlogs()),
        *_of_cluster(core),
        *_of_backups(core),
    ]


async def _of_all_processes(core: Core, stats: dict[str, Any]) -> list[Metric]:
    """Return the metrics of the store. Names are not filtered: the permission `store:read` covers
    the complete store."""
    logs = await _largest(core, ListLogs, attrgetter("bytes"))
    queues: list[QueueInfo] = await _largest(core, ListQueues, _length)
    cursors = await asyncio.to_thread(_cursors_of, core.store, logs)
    totals = await asyncio.to_thread(_totals_of, core.store, [queue.name for queue in queues])
    return [
        *_of_store(stats),
        *_of_logs(logs),
        *_of_cursors(cursors),
        *_of_queues(queues, totals),
        *_of_rooms(await core.checkup.backlogs()),
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
    """Return the counters of queues that their listing does not have, by name."""

    def ask(view: View) -> dict[str, dict[str, int]]:
        totals = {}
        for name in names:
            queue = view.entity(keys.queue(name), QueueState)
            if queue.exists():
                totals[name] = {
                    **msgspec.structs.asdict(queue.counts),
                    "filter_errors": queue.counts.unknown,
                    "done": queue.done_ever,
                    "failed": queue.failed_ever,
                }
        return totals

    return store.view(ask)


def _build() -> Metric:
    version = ".".join(str(number) for number in sys.version_info[:3])
    return InfoMetricFamily(
        "millstream_build", "The running version.", {"version": __version__, "python": version}
    )


def _loop_lag(lag_s: float) -> Metric:
    return GaugeMetricFamily(
        "millstream_event_loop_lag_seconds", "How late the event loop is.", lag_s
    )


REQUESTS = ("get", "put", "list", "delete")
"""The kinds of requests that a store in a bucket counts."""


def _commits_of_process(stats: dict[str, Any]) -> Iterator[Metric]:
    for name, text in (
        ("commits", "Commits of this process."),
        ("operations", "Operations in these commits; divided by commits: the mean group size."),
        ("fold_slices", "Slices folded by this process."),
    ):
        yield CounterMetricFamily(f"millstream_store_{name}", text, stats[name])


def _of_store(stats: dict[str, Any]) -> Iterator[Metric]:
    for name, text in (
        ("sequence", "The newest commit."),
        ("unfolded_commits", "Commits that are not folded yet: the lag of the fold."),
        ("unfolded_bytes", "Bytes of commits that are not folded yet."),
        ("unfolded_entities", "Entities with changes that are not folded yet."),
        ("entities_cached", "Entities in memory, such as heads, cursors and queues."),
        ("file_bytes", "Size of the store's file."),
        ("wal_bytes", "Size of the write-ahead log."),
        ("objects", "Objects of a store in a bucket."),
        ("stored_bytes", "Bytes of these objects."),
        ("staged_bytes", "Bytes of these that bulk writers have staged and not committed."),
        ("month_usd", "The approximate cost of this store per month."),
    ):
        if name in stats:  # a store in memory has no file
            yield GaugeMetricFamily(f"millstream_store_{name}", text, stats[name])
    yield from _of_scrub(stats)
    requests = {name: stats[f"{name}_requests"] for name in REQUESTS if f"{name}_requests" in stats}
    if requests:
        family = CounterMetricFamily(
            "millstream_store_requests", "Requests to the object store.", labels=["kind"]
        )
        for name, count in requests.items():
            family.add_metric([name], count)
        yield family


def _of_scrub(stats: dict[str, Any]) -> Iterator[Metric]:
    """Return the progress and the findings of the scrub, for a store in a file."""
    if "scrub_progress" not in stats:
        return
    findings = len(stats["scrub_findings"]) + stats["scrub_findings_left_off"]
    for name, text, value in (
        (
            "progress_ratio",
            "The progress of the pass over all rows; 1 between two passes.",
            stats["scrub_progress"],
        ),
        ("findings", "Damage that the scrub has found and that is still there.", findings),
        (
            "last_pass_age_seconds",
            "Seconds since all rows were last read; missing before the first pass has ended.",
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


def _cursors_of(store: Store, logs: list[LogInfo]) -> list[tuple[str, CursorInfo]]:
    """Return cursors with the names of their logs; rooms and queues have cursors of their own kind."""
    names = [
        name
        for log in logs
        if not log.name.startswith((OWN, ROOM, INBOX, LATER))
        for name in _plain_names(log)
    ]
    cursors = [
        (name, cursor)
        for name in names
        for cursor in store.view(lambda view: list_cursors(view, ListCursors(name)))  # noqa: B023
    ]
    shown = nlargest(NAMES_MAX, cursors, key=lambda named: (named[1].lost, named[1].lag))
    return sorted(shown, key=lambda named: (named[0], named[1].name))


def _plain_names(log: LogInfo) -> list[str]:
    """Return the name of a log, or of each partition."""
    return [partition_name(log.name, number) for number in range(log.partitions)] or [log.name]


def _of_cursors(cursors: list[tuple[str, CursorInfo]]) -> Iterator[Metric]:
    for name, text in (
        ("lag", "Records that the cursor has not acknowledged."),
        ("lost", "Records that retention deleted before the cursor acknowledged them."),
    ):
        family = GaugeMetricFamily(
            f"millstream_cursor_{name}", f"{text} {_CURSORS}", labels=["log", "cursor"]
        )
        for log, cursor in cursors:
            family.add_metric([log, cursor.name], getattr(cursor, name))
        yield family


_RoomMetric = tuple[type[Any], str, str, Callable[[RoomBacklog], float]]


def _of_rooms(backlogs: list[RoomBacklog]) -> Iterator[Metric]:
    """Return the metrics of rooms that are the same in all processes."""
    metrics: tuple[_RoomMetric, ...] = (
        (CounterMetricFamily, "sent", "Messages ever sent.", attrgetter("sent")),
        (GaugeMetricFamily, "messages", "Messages that can be read again.", attrgetter("messages")),
        (GaugeMetricFamily, "users", "Users who are present.", attrgetter("users")),
        (
            GaugeMetricFamily,
            "connections",
            "Connections of these users, at all instances.",
            attrgetter("connections"),
        ),
        (GaugeMetricFamily, "retained_values", "Retained values.", attrgetter("retained")),
    )
    return _families_of_rooms(backlogs, metrics)


def _of_deliveries(backlogs: list[RoomBacklog]) -> Iterator[Metric]:
    """Return how far this process has delivered the messages of rooms to its listeners."""
    metrics: tuple[_RoomMetric, ...] = (
        (
            GaugeMetricFamily,
            "unpassed_messages",
            "Messages that this server has yet to deliver to its listeners.",
            attrgetter("unpassed"),
        ),
        (
            GaugeMetricFamily,
            "oldest_seconds",
            "Age of the oldest of these messages; 0 without such messages.",
            attrgetter("oldest_s"),
        ),
        (
            GaugeMetricFamily,
            "health",
            "0 is healthy, 1 a warning, 2 critical.",
            lambda room: RANK[room.status],
        ),
    )
    return _families_of_rooms(backlogs, metrics)


def _families_of_rooms(
    backlogs: list[RoomBacklog], metrics: Sequence[_RoomMetric]
) -> Iterator[Metric]:
    shown = nlargest(NAMES_MAX, backlogs, key=attrgetter("messages"))
    for kind, name, text, value in metrics:
        family = kind(f"millstream_room_{name}", f"{text} {_ROOMS}", labels=["room"])
        for room in sorted(shown, key=attrgetter("room")):
            family.add_metric([room.room], value(room))
        yield family


def _of_backups(core: Core) -> Iterator[Metric]:
    if core.backups is None:
        return
    yield GaugeMetricFamily(
        "millstream_backup_age_seconds",
        "Age of the last backup that this server made; before the first, the time it has tried.",
        core.backups.age_s(),
    )
    yield CounterMetricFamily(
        "millstream_backup_failures", "Backups of this server that failed.", core.backups.failures
    )


def _of_feeds(core: Core) -> Iterator[Metric]:
    feeds, room_counts = core.session.feeds, core.room_counts()
    swept = core.store.caches.of(SweepCounts)
    yield GaugeMetricFamily(
        "millstream_feeds", "Logs that this process follows for listeners and waits.", len(feeds)
    )
    yield SummaryMetricFamily(
        "millstream_feed_look_seconds",
        "How long it took to look for new records of a log.",
        count_value=feeds.counts.looks,
        sum_value=feeds.counts.look_s,
    )
    for name, text, count in (
        ("feed_failures", "Looks, fetches and deliveries that failed.", feeds.counts.failures),
        (
            "feed_skipped_records",
            "Records that could not be read, and were skipped.",
            feeds.counts.skipped,
        ),
        (
            "room_pushed_messages",
            "Messages pushed to listeners of this server.",
            room_counts.get("pushed", 0),
        ),
        (
            "room_gaps",
            "How often messages for a listener of this server were dropped, because it was slow.",
            room_counts.get("gaps", 0),
        ),
        (
            "room_expired_messages",
            "Messages of rooms that this process removed because they had expired.",
            swept.messages,
        ),
        ("room_sweeps", "How often this process looked for expired messages.", swept.sweeps),
    ):
        yield CounterMetricFamily(f"millstream_{name}", text, count)
    yield GaugeMetricFamily(
        "millstream_room_listeners", "Listeners of this server.", room_counts.get("listeners", 0)
    )


def _of_cluster(core: Core) -> Iterator[Metric]:
    """Return the status and the counters of a cluster's node."""
    if core.seat is None:
        return
    stance = core.seat.node.state()
    for name, text, value in (
        ("leads", "1 while this node leads.", int(core.seat.leads)),
        ("halted", "1 while this node is halted.", int(stance.role == "halted")),
        ("epoch", "The newest epoch that this node knows.", stance.epoch),
        (
            "sequence",
            "The last entry of the shared log that this node has applied.",
            stance.sequence,
        ),
        ("lag", "Entries that this node is behind the furthest node.", stance.lag),
        (
            "progress_age_seconds",
            "Seconds since this node last applied an entry.",
            stance.progress_age_s,
        ),
        ("barrier_seconds", "How long the last proof for strong reads took.", stance.barrier_s),
    ):
        yield GaugeMetricFamily(f"millstream_cluster_{name}", text, value)
    for name, text, value in (
        ("elections", "How often this node saw the leader change.", stance.elections),
        ("replays", "Commits of other nodes that this node has applied.", stance.replays),
        ("snapshots", "How often this node copied the store of another node.", stance.snapshots),
        ("resumes", "How often this node resumed by itself after a halt.", stance.resumes),
        ("handed_on", "Requests that the leader answered for this node.", core.seat.handed_on),
    ):
        yield CounterMetricFamily(f"millstream_cluster_{name}", text, value)


def _of_queues(queues: list[QueueInfo], totals: dict[str, dict[str, int]]) -> Iterator[Metric]:
    depth = GaugeMetricFamily(
        "millstream_queue_messages",
        f"Messages by state; done messages while they are remembered. {_QUEUES}",
        labels=["queue", "state"],
    )
    oldest = GaugeMetricFamily(
        "millstream_queue_oldest_seconds",
        f"How long the longest waiting message could have been claimed; 0 if none waits. {_QUEUES}",
        labels=["queue"],
    )
    paused = GaugeMetricFamily(
        "millstream_queue_paused", f"1 while the queue is paused. {_QUEUES}", labels=["queue"]
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
        for queue_name, counts in totals.items():
            total.add_metric([queue_name], counts[name])
        yield total
