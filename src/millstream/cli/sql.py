"""`millstream sql`: statements over the application's tables and the relations of a store."""

from __future__ import annotations

import os
from dataclasses import replace
from typing import Annotated

import typer

from millstream.cli.command import AsJson
from millstream.cli.place import StorePlace


def sql(
    place: StorePlace,
    target: Annotated[
        str | None,
        typer.Argument(
            metavar="[PLACE]", help="A file, a bucket or a server.", show_default="--store"
        ),
    ] = None,
    statement: Annotated[
        str | None,
        typer.Argument(metavar="[STATEMENT]", help="The statement.", show_default="standard input"),
    ] = None,
    write: Annotated[
        bool, typer.Option("--write", help="Allow changes of the application's own tables.")
    ] = False,
    json: AsJson = False,
) -> None:
    """Query a file and Millstream's relations by SQL. Opens a prompt on a terminal.

    The relations are millstream_queues, millstream_messages, millstream_logs and
    millstream_records. They only read. A single argument with a space in it is the statement.
    """
    if target is not None and statement is None and _is_statement(target):
        target, statement = None, target
    if target is not None:
        place = replace(place, store=target)
    from millstream.cli.sql_shell import run_shell  # it loads SQLite

    run_shell(place, statement, write=write, as_json=json)


def _is_statement(text: str) -> bool:
    return " " in text.strip() and "://" not in text.partition(" ")[0] and not os.path.exists(text)
