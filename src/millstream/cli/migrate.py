"""`millstream migrate`: convert a store's file of an earlier version, and keep a copy of it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from millstream.cli.display import Printed, plural, progress, safe, size
from millstream.cli.place import StorePlace
from millstream.engine.place import is_bucket
from millstream.errors import CannotOpen, InvalidInput

COPY_ENDING = ".before-migration"


def migrate(
    place: StorePlace,
    path: Annotated[
        str | None, typer.Argument(metavar="PATH", help="The store's file; default: --store.")
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only say what would be done.")
    ] = False,
    no_copy: Annotated[
        bool, typer.Option("--no-copy", help="Do not keep a copy of the old file.")
    ] = False,
) -> Printed:
    """Convert a file of an earlier version. All rows are checked before.

    The old file stays beside it, with the ending .before-migration. The new file has no checksums in
    its pages: every SQLite tool may write to it. No other process may have the store open. A damaged
    store is left unchanged, and a kill leaves the old or the new file. The exit code is also 0 if there
    was nothing to do.
    """
    from millstream.engine.sqlite.convert import convert_file, plan_conversion

    file = place.home("migrate", path)
    if isinstance(file, str) or is_bucket(file):
        raise InvalidInput(f"{safe(str(file))} is a bucket: `millstream migrate` is for files")
    if not file.exists():
        raise CannotOpen(f"{safe(str(file))}: there is no store", path=str(file))
    copy = None if no_copy else Path(f"{file.absolute()}{COPY_ENDING}")
    if dry_run:
        done = plan_conversion(file.absolute())
    else:
        with progress("checking") as show:
            done = convert_file(file.absolute(), show, copy=copy)
    changed = done.is_needed
    name = safe(str(file))
    if not changed:
        shown = f"{name}: nothing to do; every SQLite tool may write to it"
    elif dry_run:
        copy_text = "without a copy" if copy is None else f"after a copy to {safe(copy.name)}"
        shown = (
            f"{name}: {size(done.bytes_before)} would be checked, and the file converted {copy_text}; "
            "nothing was changed"
        )
    else:
        shown = (
            f"{name}: {plural(done.rows, 'row')} checked, and the file was rewritten: "
            f"{size(done.bytes_before)} before, {size(done.bytes_after)} now; every SQLite tool may "
            "write to it"
        )
        if copy is not None:
            shown += f"; the old file is {safe(copy.name)}"
    facts = {"path": str(file), "converted": changed and not dry_run, "needed": changed}
    facts |= {"dry_run": dry_run, "rows": done.rows}
    facts["copy"] = str(copy) if changed and copy is not None else None
    sizes = {"bytes_before": done.bytes_before, "bytes_after": done.bytes_after}
    return Printed({**facts, **sizes, "had_page_checksums": done.had_page_checksums}, shown)
