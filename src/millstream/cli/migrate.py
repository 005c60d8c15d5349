"""`millstream migrate`: convert a store's file, so that every SQLite tool may write to it."""

from __future__ import annotations

from typing import Annotated

import typer

from millstream.cli.display import Printed, plural, progress, safe, size
from millstream.cli.place import StorePlace
from millstream.engine.place import is_bucket
from millstream.errors import CannotOpen, InvalidInput


def migrate(
    place: StorePlace,
    path: Annotated[
        str | None, typer.Argument(metavar="PATH", help="The store's file; default: --store.")
    ] = None,
) -> Printed:
    """Check all rows of a store's file, and rewrite the file without checksums in its pages.

    For files of an earlier version: afterwards every SQLite tool may write to the file. No other
    process may have the store open. A damaged store is left unchanged. The exit code is also 0 if
    there was nothing to do.
    """
    from millstream.engine.sqlite.convert import convert_file

    file = place.home("migrate", path)
    if isinstance(file, str) or is_bucket(file):
        raise InvalidInput(f"{safe(str(file))} is a bucket: `millstream migrate` is for files")
    if not file.exists():
        raise CannotOpen(f"{safe(str(file))}: there is no store", path=str(file))
    with progress("checking") as show:
        done = convert_file(file.absolute(), show)
    changed = done.had_page_checksums or not done.was_complete
    if changed:
        shown = (
            f"{safe(str(file))}: {plural(done.rows, 'row')} checked, and the file was rewritten: "
            f"{size(done.bytes_before)} before, {size(done.bytes_after)} now; every SQLite tool may "
            "write to it"
        )
    else:
        shown = f"{safe(str(file))}: nothing to do; every SQLite tool may write to it"
    facts = {"path": str(file), "converted": changed, "rows": done.rows}
    sizes = {"bytes_before": done.bytes_before, "bytes_after": done.bytes_after}
    return Printed({**facts, **sizes, "had_page_checksums": done.had_page_checksums}, shown)
