"""`millstream stats`, `fold`, `copy` and `adopt`: commands for a store as a whole."""

from __future__ import annotations

from contextlib import closing
from typing import Annotated, Any

import typer

from millstream import Millstream
from millstream.cli.display import FactSheet, Printed, plural, progress, safe, size
from millstream.cli.place import StorePlace
from millstream.engine.place import is_address, is_bucket
from millstream.errors import CannotOpen, InvalidInput


def stats(ms: Millstream) -> Printed:
    """Show facts and counters of the store."""
    logs = list(ms.logs())
    facts = ms.stats() | {
        "logs": len(logs),
        "records": sum(len(info) for info in logs),
        "bytes": sum(info.bytes for info in logs),
    }
    space = facts.get("space", {})
    shown = {name: value for name, value in facts.items() if name != "space"}
    shown |= {f"space_{name}": value for name, value in space.items() if name != "age_s"}
    pairs = [
        (name.removesuffix("_s").replace("_", " "), _shown(name, value))
        for name, value in shown.items()
        if value is not None
    ]
    return Printed(facts, FactSheet(pairs))


def _shown(name: str, value: Any) -> Any:
    if isinstance(value, list):
        return "\n".join(map(safe, value)) or "none"
    if name.endswith("_s"):
        return f"{value:,.0f} s"
    return size(value) if name.endswith("bytes") else value


def fold(ms: Millstream) -> Printed:
    """Fold all commits into base rows now. The background of a store does so by itself."""
    folded = ms.fold()
    return Printed({"folded": folded}, f"{plural(folded, 'commit')} folded")


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
    """Copy a store while it is in use, and compare both.

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


def adopt(
    place: StorePlace,
    path: Annotated[
        str | None, typer.Argument(metavar="PATH", help="The database; default: --store.")
    ] = None,
) -> Printed:
    """Add Millstream's tables to an application's SQLite database.

    The names of the added tables begin with `millstream_`. The application's tables, its
    `user_version` and its `application_id` stay as they are. A database in another journal mode
    changes to WAL, which SQLite allows only while no other connection is open. The exit code is
    also 0 if the database is a store already.
    """
    from millstream.embedded.session import open_file
    from millstream.engine.sqlite.file import is_store

    file = place.home("adopt", path)
    if isinstance(file, str) or is_bucket(file):
        raise InvalidInput(f"{safe(str(file))} is a bucket: `millstream adopt` is for files")
    if not file.exists():
        raise CannotOpen(f"{safe(str(file))}: there is no database", path=str(file))
    was_store = is_store(file)
    with closing(open_file(file, adopt=True)):
        pass
    shown = (
        f"{safe(str(file))} is a store already"
        if was_store
        else f"{safe(str(file))} is a store now, and its own tables are as they were; any program "
        "may use them at the same time"
    )
    return Printed({"path": str(file), "adopted": not was_store}, shown)
