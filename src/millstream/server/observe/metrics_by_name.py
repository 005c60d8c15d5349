"""Metrics of logs, cursors, queues and rooms, each labelled with its name."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from heapq import nlargest
from operator import attrgetter
from typing import Any

import msgspec
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    Metric,
)

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
from millstream.server.core import Core
from millstream.server.observe.health import RANK
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

_RoomMetric = tuple[type[Any], str, str, Callable[[RoomBacklog], float]]


async def of_names(core: Core) -> list[Metric]:
    """Return the metrics that are the same in all processes on a store.

    Names are not filtered: the permission `store:read` covers the complete store.
    """
    logs = await _largest(core, ListLogs, attrgetter("bytes"))
    queues: list[QueueInfo] = await _largest(core, ListQueues, _length)
    cursors = await asyncio.to_thread(_cursors_of, core.store, logs)
    totals = await asyncio.to_thread(_totals_of, core.store, [queue.name for queue in queues])
    return [
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


def of_deliveries(backlogs: list[RoomBacklog]) -> Iterator[Metric]:
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
