"""`millstream restore`: build a store's file from a backup."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from millstream.cli.backup import Place, moment_of
from millstream.cli.display import Printed, progress, safe, size, time_of


def restore(
    place: Place,
    store: Annotated[str, typer.Argument(metavar="STORE", help="The file to restore to.")],
    at: Annotated[
        str | None,
        typer.Option(
            "--at",
            metavar="TIME|SEQ",
            help="The newest commit at a time such as 2026-12-24T18:30, or the commit with a number.",
            show_default="the newest point",
        ),
    ] = None,
    replace: Annotated[
        bool,
        typer.Option(
            "--replace",
            help="Replace the store at STORE, if no program uses it; it is kept under another name.",
        ),
    ] = False,
) -> Printed:
    """Restore a store from a backup, as of one commit.

    The file is built beside STORE, every part is compared with its hash, and the file is opened and
    checked before it gets its name. The restored store does not have commits that came later: it
    hands out messages again that were done since. Stop all programs that use the store before, and
    start them after.
    """
    from millstream.backup.restore import restore as restore_place
    from millstream.backup.restore import restore_stream

    if place == "-" and at is not None:
        raise typer.BadParameter("--at is for a folder or a bucket: a stream holds one commit")
    with progress("reading") as show:
        if place == "-":
            report = restore_stream(sys.stdin.buffer, store, replace=replace, heard=show)
        else:
            report = restore_place(place, store, at=moment_of(at), replace=replace, heard=show)
    shown = [
        f"{safe(store)} is the store as of commit {report.seq}, {time_of(report.committed_ms)} "
        f"({size(report.bytes)})"
    ]
    if report.aside is not None:
        shown.append(f"the replaced store is {safe(str(report.aside))}")
    facts = {
        "store": store,
        "place": place,
        "seq": report.seq,
        "committed_ms": report.committed_ms,
        "bytes": report.bytes,
        "aside": None if report.aside is None else str(report.aside),
    }
    return Printed(facts, *shown)
