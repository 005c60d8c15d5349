"""Millstream: durable logs, work queues and live rooms in one system.

import millstream

with millstream.open("orders.db") as ms:
    orders = ms.log("orders")
    orders.append({"id": 1, "total": 42})
    for order in orders.read():
        print(order.offset, order.json())
"""

from __future__ import annotations

import os

from millstream.clock import Clock
from millstream.database import Later, Millstream, Transaction, peers_opened_by
from millstream.errors import MillstreamError
from millstream.limits import Limits
from millstream.log.block import Block
from millstream.log.cursor import Cursor
from millstream.log.log import Log
from millstream.log.stage import Stage
from millstream.queue.model.backoff import Backoff
from millstream.queue.model.message import Message, QueueInfo, Reject, Retry
from millstream.queue.model.spec import QueueSpec
from millstream.queue.queue import Queue
from millstream.record import CursorInfo, Item, LogInfo, Producer, Record, Retention
from millstream.remote.address import is_address
from millstream.remote.opening import (
    CONNECT_TIMEOUT_S,
    RETRY_FOR_S,
    check_no_address_options,
    open_remote,
)
from millstream.store.engine import Durability
from millstream.store.sqlite_options import SqliteOptions

__version__ = "0.1.0"

__all__ = [
    "Backoff",
    "Block",
    "Cursor",
    "CursorInfo",
    "Durability",
    "Item",
    "Later",
    "Limits",
    "Log",
    "LogInfo",
    "Message",
    "Millstream",
    "MillstreamError",
    "Producer",
    "Queue",
    "QueueInfo",
    "QueueSpec",
    "Record",
    "Reject",
    "Retention",
    "Retry",
    "SqliteOptions",
    "Stage",
    "Transaction",
    "open",
]


def open(
    path: str | os.PathLike[str],
    *,
    durability: Durability = "full",
    limits: Limits | None = None,
    options: SqliteOptions | None = None,
    clock: Clock | None = None,
    file_mode: int | None = None,
    accept_loss: bool = False,
    token: str | None = None,
    ca: str | None = None,
    connect_timeout: float = CONNECT_TIMEOUT_S,
    retry_for: float = RETRY_FOR_S,
) -> Millstream:
    """Open the store in a file, or make one; everything is durable when a call returns.

    With `durability="relaxed"` a commit survives the death of the process but not of the machine.
    A new file is for its owner alone unless `file_mode` (such as `0o640`) says otherwise. A store
    whose write-ahead log was damaged is refused if commits would be lost by that; `accept_loss` opens
    it without them. `options` sets what is the engine's own affair (`SqliteOptions`). The path
    `:memory:` makes a store in memory, which ends with its handle.

    The address of a server (`http://`, `https://`) opens the store behind it. The server is shown
    `token`, or the one in MILLSTREAM_TOKEN; `ca` names a file with the certificates to trust. One
    attempt to connect may take `connect_timeout` seconds. A lost connection is made anew for up to
    `retry_for` seconds: reads, and appends under a `Producer`, are then asked again; of other
    changes that were not answered the caller learns by `OutcomeUnknown`.
    """
    if is_address(path):
        return Millstream(
            open_remote(
                str(path),
                durability=durability,
                limits=limits,
                options=options,
                clock=clock,
                file_mode=file_mode,
                accept_loss=accept_loss or None,
                token=token,
                ca=ca,
                connect_timeout=connect_timeout,
                retry_for=retry_for,
            )
        )
    check_no_address_options(token=token, ca=ca)
    from millstream.embedded import EmbeddedSession, open_file

    store = open_file(
        path,
        durability=durability,
        limits=limits,
        options=options,
        clock=clock,
        file_mode=file_mode,
        accept_loss=accept_loss,
    )
    return Millstream(EmbeddedSession(store))


peers_opened_by.append(open)
