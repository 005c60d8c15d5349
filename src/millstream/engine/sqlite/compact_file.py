"""The compaction of a complete file, as `millstream compact` runs it beside other processes.

Steps go on until no page is free. Between two steps other writers have their turns. A kill at any time
leaves a complete file, and the next run goes on where this one has ended.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from time import sleep
from typing import NamedTuple

from millstream.engine.sqlite.compaction import FileUse
from millstream.engine.sqlite.engine import SqliteEngine
from millstream.engine.sqlite.header import NONE
from millstream.engine.sqlite.identity import size_of
from millstream.engine.sqlite.options import SqliteOptions
from millstream.errors import InvalidInput

Heard = Callable[[str, int, int], None]
"""Receives progress: the stage, the returned pages, and the pages to return."""

PAUSE_TIMES = 3
"""The pause after a step, in durations of the step: writers have three quarters of the time."""

PAUSE_S_MAX = 0.05


class CompactionReport(NamedTuple):
    """The result of a compaction, or of its dry run."""

    bytes_before: int
    bytes_after: int
    """In a dry run, the size that the file would have."""
    free_bytes: int
    """Bytes of free pages before."""
    returned_bytes: int
    rewritten: bool
    """True if the file was, or would have to be, rewritten as a whole."""


def plan_compaction(path: Path, *, rewrite: bool) -> CompactionReport:
    """Return what `compact_file` would return; the file is only read."""
    engine = SqliteEngine(path, read_only=True)
    try:
        use = engine.file_use()
    finally:
        engine.close()
    after = use.live_bytes
    return CompactionReport(
        use.file_bytes, after, use.free_bytes, use.free_bytes, rewrite or use.mode == NONE
    )


def compact_file(
    path: Path, *, rewrite: bool = False, heard: Heard | None = None
) -> CompactionReport:
    """Return all free pages of a file to the disk, while other processes use it.

    With `rewrite` the file is written anew, and writers wait meanwhile. Raises `InvalidInput` for a
    file whose pages cannot be returned in steps, and `DiskFull` if a rewrite does not fit.
    """
    hear = heard or (lambda _stage, _done, _total: None)
    engine = SqliteEngine(path, adopt=False, options=SqliteOptions(compact_share=0))
    try:
        before, bytes_before = engine.file_use(), size_of(path)
        if rewrite:
            hear("rewriting", 0, 0)
            engine.compaction.rewrite()
        elif before.free_pages:
            if before.mode == NONE:
                raise _needs_rewrite(path, before)
            _return_all(engine, before, hear)
        engine.checkpoint(nullcontext())  # which cuts the file
        after = engine.file_use()
        returned_bytes = before.file_bytes - after.file_bytes
    finally:
        engine.close()
    return CompactionReport(
        max(bytes_before, before.file_bytes),
        size_of(path),
        before.free_bytes,
        max(0, returned_bytes),
        rewrite,
    )


def _return_all(engine: SqliteEngine, before: FileUse, hear: Heard) -> None:
    """Take steps until no page is free; pages that are freed meanwhile are also returned, once."""
    returned = 0
    while returned < 2 * before.free_pages:
        step = engine.compaction.step(waits=True)
        if step == 0:
            return
        returned += step or 0
        hear("returning pages", min(returned, before.free_pages), before.free_pages)
        engine.upkeep(nullcontext())  # a checkpoint, if the write-ahead log has grown
        sleep(min(PAUSE_S_MAX, PAUSE_TIMES * engine.compaction.step_s))


def _needs_rewrite(path: Path, use: FileUse) -> InvalidInput:
    made = (
        "was made by an earlier version"
        if use.is_own
        else "is a database of an application, whose setting auto_vacuum stays as it is"
    )
    return InvalidInput(
        f"{path} {made}: its {use.free_bytes:,} free bytes cannot be returned in small steps. "
        f"`millstream compact {path} --rewrite` writes the file anew: writers wait meanwhile, about a "
        f"second for each 100 MB of its {use.live_bytes:,} bytes in use; nothing was changed"
    )
