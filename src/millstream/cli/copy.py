"""`millstream copy`: a store from one place to another: a backup, or the way into a bucket."""

from __future__ import annotations

from typing import Annotated

import typer

from millstream.cli.display import Printed, plural, progress, safe, size
from millstream.engine.place import is_address
from millstream.errors import InvalidInput


def copy(
    source: Annotated[str, typer.Argument(metavar="FROM", help="A file or a bucket.")],
    target: Annotated[str, typer.Argument(metavar="TO", help="Where there is no store yet.")],
    replace: Annotated[
        bool, typer.Option("--replace", help="Replace the store's file at TO, if nobody uses it.")
    ] = False,
    without_tables: Annotated[
        bool,
        typer.Option(
            "--without-tables", help="Copy to a bucket without the application's own tables."
        ),
    ] = False,
) -> Printed:
    """Copy a store while it is used, and compare both: the backup of a store.

    A file is copied into a file as a whole: logs, queues, cursors, rooms, tokens, and the
    application's own tables (`tx.sql`), as of one commit. The name TO is there once all of it is;
    if the copy is broken off, start it again. From or to a bucket it goes row by row, and the same
    command goes on; a bucket has no room for the application's tables. What is committed while it
    runs stays behind.
    """
    from millstream.engine.copy import copy_store

    for place in (source, target):
        if is_address(place):
            raise InvalidInput(
                f"{safe(place)} is a server: `millstream copy` works on files and buckets; run it "
                "on the machine of the server"
            )
    with progress("copying") as tell:
        report = copy_store(
            source, target, replace=replace, without_tables=without_tables, heard=tell
        )
    shown = [
        f"{plural(report.rows, 'row')} ({size(report.bytes)}) are the same in {safe(source)} and "
        f"{safe(target)}; {report.written} were written now"
    ]
    if report.tables:
        shown.append(f"with the application's tables: {safe(', '.join(report.tables))}")
    if report.left_behind:
        left = safe(", ".join(report.left_behind))
        shown.append(f"WITHOUT the application's tables, which are not in the copy: {left}")
    return Printed({"from": source, "to": target, **report._asdict()}, *shown)
