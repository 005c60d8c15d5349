"""`millstream copy`: a store from one place to another, such as from a file to a bucket."""

from __future__ import annotations

from typing import Annotated

import typer

from millstream.cli.display import Printed, plural, progress, safe, size
from millstream.errors import InvalidInput
from millstream.store.place import is_address


def copy(
    source: Annotated[str, typer.Argument(metavar="FROM", help="A file or a bucket.")],
    target: Annotated[str, typer.Argument(metavar="TO", help="Where there is no store yet.")],
) -> Printed:
    """Copy a store row by row, also between a file and a bucket, and compare both.

    What is committed while it runs stays behind. If it is broken off, the same command goes on. The
    application's own tables (`tx.sql`) are not copied.
    """
    from millstream.store.copying import copy_rows
    from millstream.store.engines import open_engine

    for place in (source, target):
        if is_address(place):
            raise InvalidInput(
                f"{safe(place)} is a server: `millstream copy` works on files and buckets; "
                "`millstream sync` copies logs over a server"
            )
    origin = open_engine(source, mode="r", create=False)
    try:
        made = open_engine(target)
        try:
            with progress("copying") as tell:
                report = copy_rows(origin, made, tell)
        finally:
            made.close()
    finally:
        origin.close()
    shown = (
        f"{plural(report.rows, 'row')} ({size(report.bytes)}) are the same in {safe(source)} and "
        f"{safe(target)}; {report.written} were written now"
    )
    facts = {"rows": report.rows, "bytes": report.bytes, "written": report.written}
    return Printed({"from": source, "to": target, **facts}, shown)
