"""Metrics of the store itself: commits, sizes, where its bytes are, and the scrub."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

REQUESTS = ("get", "put", "list", "delete")
"""The kinds of requests that a store in a bucket counts."""


def commits_of_process(stats: dict[str, Any]) -> Iterator[Metric]:
    """Return the counters of the commits of this process."""
    for name, text in (
        ("commits", "Commits of this process."),
        ("operations", "Operations in these commits; divided by commits: the mean group size."),
        ("fold_slices", "Slices folded by this process."),
    ):
        yield CounterMetricFamily(f"millstream_store_{name}", text, stats[name])


def of_store(stats: dict[str, Any]) -> Iterator[Metric]:
    """Return the figures of the store: commits, sizes, use of bytes, scrub, and requests to a bucket."""
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
    yield from _of_space(stats.get("space", {}))
    yield from _of_scrub(stats)
    requests = {name: stats[f"{name}_requests"] for name in REQUESTS if f"{name}_requests" in stats}
    if requests:
        family = CounterMetricFamily(
            "millstream_store_requests", "Requests to the object store.", labels=["kind"]
        )
        for name, count in requests.items():
            family.add_metric([name], count)
        yield family


def _of_space(space: dict[str, Any]) -> Iterator[Metric]:
    """Return where the bytes of the store are; the figures of records are estimates."""
    for name, text in (
        ("live", "Bytes of records that readers can read."),
        ("waiting", "The part of the live bytes that a cursor or a queue has not finished."),
        ("held", "Bytes of deleted records that a fork, a queue or a copy still needs."),
        ("free", "Bytes of free pages in the store's file."),
        ("application", "Bytes of the application's own tables; missing if they are too large."),
        ("other", "Bytes of keys, indexes, the states of queues and rooms, and gaps in pages."),
    ):
        value = space.get(f"{name}_bytes")
        if value is not None:
            yield GaugeMetricFamily(f"millstream_space_{name}_bytes", text, value)


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
