"""`millstream copy`: copy a store from one place to another, as a backup or into a bucket."""

from __future__ import annotations

from typing import Annotated

import typer

from millstream.cli.display import Printed, plural, progress, safe, size
from millstream.engine.place import is_address
from millstream.errors import InvalidInput


def copy(
    source: Annotated[str, typer.Argument(metavar="FROM", help="A file or a bucket.")],
    target: Annotated[str, typer.Argument(metavar="TO", help="A place without a store.")],
    replace: Annotated[
        bool, typer.Option("--replace", help="Replace the store's file at TO, if it is not in use.")
    ] = False,
    without_tables: Annotated[
        bool,
        typer.Option(
            "--without-tables", help="Copy to a bucket without the application's own tables."
        ),
    ] = False,
) -> Printed:
    """Copy a store while it is in use, and compare both: the backup of a store.

    A file is copied to a file completely: logs, queues, cursors, rooms, tokens, and the
    application's own tables (`tx.sql`), as of one commit. TO appears when the copy is complete;
    start an interrupted copy again. A copy from or to a bucket goes row by row, and the same
    command resumes it; a bucket cannot hold the application's tables. Commits during the copy are
    not included.
    """
    from millstream.engine.copy import copy_store

    for place in (source, target):
        if is_address(place):
            raise InvalidInput(
                f"{safe(place)} is a server: `millstream copy` works on files and buckets; run it "
                "on the machine of the server"
            )
    with progress("copying") as show:
        report = copy_store(
            source, target, replace=replace, without_tables=without_tables, heard=show
        )
    shown = [
        f"{plural(report.rows, 'row')} ({size(report.bytes)}) are the same in {safe(source)} and "
        f"{safe(target)}; {report.written} were written now"
    ]
    if report.tables:
        shown.append(f"with the application's tables: {safe(', '.join(report.tables))}")
    if report.left_behind:
        missing = safe(", ".join(report.left_behind))
        shown.append(f"WITHOUT the application's tables, which are not in the copy: {missing}")
    return Printed({"from": source, "to": target, **report._asdict()}, *shown)
