"""How the pipeline `archive` merges small files, and lets go of what was merged."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from millstream.clock import SystemClock
from millstream.spark.archive.archive import Archive, ArchivedFile, Move
from millstream.spark.archive.lake import expire_versions, register, tables_of
from millstream.spark.archive.merging import Merge, plan_merges
from millstream.spark.archive.table import TableLayout
from millstream.spark.failures import point

InTasks = Callable[[Callable[[Merge], bytes], Sequence[Merge]], list[bytes]]
"""Does something with each merge, in tasks; answers in the same order."""


def merge_and_register(
    in_tasks: InTasks,
    into: Archive,
    logs: Sequence[str],
    *,
    target_bytes: int,
    codec: str,
    table: str,
    layout: TableLayout,
    keep_ms: int,
) -> dict[str, Any]:
    """What comes after the last round: merge, if a size is given, and bring tables up to date."""
    merged = 0
    if target_bytes:
        merged = merge_small(in_tasks, into, logs, target_bytes=target_bytes, codec=codec)
    registered = register(into, table, layout) if table else None
    expired = settle_tables(into, logs, keep_ms)
    return {"merged": merged, "table": registered, "expired": expired}


def merge_small(
    in_tasks: InTasks, into: Archive, logs: Sequence[str], *, target_bytes: int, codec: str
) -> int:
    """Merge files of logs up to a size; how many were merged into others."""
    segments_by_log = into.segments_of(logs)
    planned = [
        plan
        for segments in segments_by_log.values()
        for plan in plan_merges(segments, target_bytes)
    ]
    merges = [merge for plan in planned for merge in plan.merges]
    if not merges:
        return 0
    made = iter(_write(in_tasks, into, merges, codec))
    point("merge staged")
    staged = [(merge, next(made)) for merge in merges]
    places = into.move_in(
        [
            Move(staged=file.path, target=f"{merge.files[0].path.rpartition('/')[0]}/{_name(file)}")
            for merge, file in staged
        ]
    )
    point("merge moved")
    files = (
        msgspec.structs.replace(file, path=place)
        for (_, file), place in zip(staged, places, strict=True)
    )
    now_ms = SystemClock().wall_ms()
    into.exchange([plan.joined([next(files) for _ in plan.merges], now_ms) for plan in planned])
    point("merge noted")
    for log in {plan.segments[0].log for plan in planned}:
        into.clean(log, into.segments(log))
    return sum(len(merge.files) for merge in merges)


def settle_tables(into: Archive, logs: Sequence[str], keep_ms: int) -> int:
    """Register merged files in all tables, and remove old merged files; return their number.

    An archive without a table has no older versions, so its merged files are removed at once.
    """
    segments_by_log = into.segments_of(logs)
    if not any(segment.replaced for segments in segments_by_log.values() for segment in segments):
        return 0
    before_ms = SystemClock().wall_ms() + 1
    if kinds := tables_of(into):
        for kind in kinds:
            register(into, kind)
        before_ms -= keep_ms
        if any(
            each.at < before_ms
            for segments in segments_by_log.values()
            for segment in segments
            for each in segment.replaced
        ):
            expire_versions(into, before_ms)
    return sum(into.expire(segments, before_ms) for segments in segments_by_log.values())


def _write(in_tasks: InTasks, into: Archive, merges: list[Merge], codec: str) -> list[ArchivedFile]:
    path = into.path

    def write(merge: Merge) -> bytes:
        from millstream.spark.archive.folders import folder_of
        from millstream.spark.archive.merging import merge_files

        return msgspec.json.encode(merge_files(folder_of(path), merge, codec))

    encoded = in_tasks(write, merges)
    return [msgspec.json.decode(file, type=ArchivedFile) for file in encoded]


def _name(file: ArchivedFile) -> str:
    return f"{file.start:020}-{file.stop:020}-{secrets.token_hex(4)}.parquet"
