"""`millstream migrate`: a store's file in the form that every SQLite tool may write to."""

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
        str | None, typer.Argument(metavar="PATH", help="The store's file; or --store.")
    ] = None,
) -> Printed:
    """Rewrite a store's file without checksums in its pages, once every row was checked.

    For files that an earlier version has made: any SQLite tool may then write to them. Nobody else
    may have the store open. A damaged store is left as it is. Ends with 0 also if there was nothing to
    do.
    """
    from millstream.engine.sqlite.convert import convert_file

    file = place.home("migrate", path)
    if isinstance(file, str) or is_bucket(file):
        raise InvalidInput(f"{safe(str(file))} is a bucket: `millstream migrate` is for files")
    if not file.exists():
        raise CannotOpen(f"{safe(str(file))}: there is no store", path=str(file))
    with progress("checking") as tell:
        done = convert_file(file.absolute(), tell)
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
