"""Metrics: the figures of a server, its store, logs, queues and rooms, for Prometheus."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from types import SimpleNamespace
from typing import Any

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
from millstream.rooms.sweep import SweepCounts
from millstream.server.core import Core
from millstream.server.observe.health import loop_lag_s
from millstream.server.observe.metrics_by_name import of_deliveries, of_names
from millstream.server.observe.store_metrics import commits_of_process, of_store


async def exposition(
    core: Core, accept: str, shares: Sequence[tuple[int, bytes]] = ()
) -> tuple[bytes, str]:
    """Return all metrics in a format that the client accepts, and its media type.

    `shares` are the metrics of the other processes of a group, by their numbers. A metric of one
    process then has the label `process`: a process that is restarted counts from 0 again, which is
    visible to Prometheus only if the counters are not summed.
    """
    stats = await core.session.execute(Stats())
    figures = await _of_process(core, stats)
    if core.siblings is not None:
        parsed = [(core.siblings.number, figures)]
        for number, text in shares:
            parsed.append((number, [*text_string_to_metric_families(text.decode())]))
        figures = _labelled(parsed)
    return _encoded([_build(), *figures, *of_store(stats), *await of_names(core)], accept)


async def share_of_process(core: Core) -> bytes:
    """Return the metrics of this process alone, as text."""
    figures = await _of_process(core, await core.session.execute(Stats()))
    return _encoded(figures, "")[0]


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
        *commits_of_process(stats),
        *_of_feeds(core),
        *of_deliveries(await core.checkup.backlogs()),
        *_of_cluster(core),
        *_of_backups(core),
    ]


def _build() -> Metric:
    version = ".".join(str(number) for number in sys.version_info[:3])
    return InfoMetricFamily(
        "millstream_build", "The running version.", {"version": __version__, "python": version}
    )


def _loop_lag(lag_s: float) -> Metric:
    return GaugeMetricFamily(
        "millstream_event_loop_lag_seconds", "How late the event loop is.", lag_s
    )


def _of_backups(core: Core) -> Iterator[Metric]:
    age_s = core.downloads.age_s() if core.backups is None else core.backups.age_s()
    if age_s is not None:
        yield GaugeMetricFamily(
            "millstream_backup_age_seconds",
            "Age of the last backup that this server made, or that a client downloaded if the server "
            "makes none; before the first, the time the server has tried.",
            age_s,
        )
    if core.backups is not None:
        yield CounterMetricFamily(
            "millstream_backup_failures",
            "Backups of this server that failed.",
            core.backups.failures,
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
