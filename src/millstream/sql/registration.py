"""Registers the relations of a store on a connection of apsw."""

from __future__ import annotations

import os

import apsw

from millstream.errors import InvalidInput
from millstream.sql.log_relations import LOGS, RECORDS
from millstream.sql.queue_relations import MESSAGES, QUEUES
from millstream.sql.virtual_table import RelationModule
from millstream.threads.database import Millstream
from millstream.threads.database import open as open_store

RELATIONS = QUEUES, MESSAGES, LOGS, RECORDS
"""The relations, in the order in which they are listed."""


def register(connection: apsw.Connection, store: Millstream | str | os.PathLike[str]) -> Millstream:
    """Add the relations of a store to a connection, beside the tables that the connection has.

    The store is an open store, or a place: a file, a bucket or a server, which is opened to be read.
    Returns the open store. Close it after the connection.
    """
    if not isinstance(connection, apsw.Connection):
        raise InvalidInput(
            f"a connection of apsw is needed, not {type(connection).__name__}: virtual tables are "
            "out of reach of Python's sqlite3; use `apsw.Connection(path)`, or `millstream sql`"
        )
    ms = store if isinstance(store, Millstream) else open_store(store, mode="r")
    for relation in RELATIONS:
        connection.create_module(
            relation.name,
            RelationModule(relation, ms),
            use_bestindex_object=True,
            eponymous=True,
            eponymous_only=True,
            read_only=True,
        )
    return ms
