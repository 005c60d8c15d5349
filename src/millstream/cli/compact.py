"""`millstream compact`: return the free space of a store's file to the disk."""

from __future__ import annotations

from typing import Annotated

import typer

from millstream.cli.display import Printed, progress, safe, size
from millstream.cli.place import StorePlace
from millstream.engine.place import is_bucket
from millstream.errors import CannotOpen, InvalidInput


def compact(
    place: StorePlace,
    path: Annotated[
        str | None, typer.Argument(metavar="PATH", help="The store's file; default: --store.")
    ] = None,
    rewrite: Annotated[
        bool,
        typer.Option(
            "--rewrite",
            help="Write the whole file anew; writers wait meanwhile. For files of earlier versions.",
        ),
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only say how much space would be returned.")
    ] = False,
) -> Printed:
    """Return the free space of a file in use to the disk.

    Deleted records leave free pages in the file. This command moves the last pages of the file into
    the free pages, in many short steps, and cuts the file. Other programs read and write meanwhile.
    It can be interrupted at any time. A server does the same by itself, slowly. The exit code is also 0
    if there was nothing to return.
    """
    file = place.home("compact", path)
    if isinstance(file, str) or is_bucket(file):
        raise InvalidInput(
            f"{safe(str(file))} is a bucket: SlateDB, which stores it, compacts it by itself while a "
            "program has it open to write"
        )
    if not file.exists():
        raise CannotOpen(f"{safe(str(file))}: there is no store", path=str(file))
    from millstream.engine.sqlite.compact_file import compact_file, plan_compaction

    name = safe(str(file))
    if dry_run:
        report = plan_compaction(file.absolute(), rewrite=rewrite)
        how = "by writing the file anew (--rewrite)" if report.rewritten else "in short steps"
        shown = (
            f"{name}: {size(report.free_bytes)} of {size(report.bytes_before)} are free, and would be "
            f"returned {how}; nothing was changed"
        )
    else:
        with progress("opening") as show:
            report = compact_file(file.absolute(), rewrite=rewrite, heard=show)
        shown = (
            f"{name}: {size(report.returned_bytes)} were returned; the file has "
            f"{size(report.bytes_after)} now"
        )
        if report.bytes_after > report.bytes_before - report.returned_bytes:
            shown += ", and shrinks further when its readers have ended"
    return Printed({"path": str(file), "dry_run": dry_run, **report._asdict()}, shown)
