"""The same nouns for coroutines: every name of `millstream`, awaited.

    import millstream.aio

    async with await millstream.aio.open("orders.db") as ms:
        orders = ms.log("orders")
        await orders.append({"id": 1, "total": 42})
        async for order in orders.read():
            print(order.offset, order.json())

What coroutines ask for in one turn of the event loop is committed together, with one sync.
Every method is awaited, or iterated with `async for`, except those that ask nothing of the store:
`ms.log`, `ms.transaction`, and the steps of a transaction.
"""

from __future__ import annotations

import asyncio
import os
from functools import partial

from millstream.aio.cursor import Cursor
from millstream.aio.database import Millstream, Transaction
from millstream.aio.log import Log, Metadata
from millstream.aio.queue import Queue
from millstream.aio.stage import Stage
from millstream.clock import Clock
from millstream.limits import Limits
from millstream.remote.address import is_address
from millstream.remote.opening import (
    CONNECT_TIMEOUT_S,
    RETRY_FOR_S,
    check_no_address_options,
    open_async_remote,
)
from millstream.store.engine import Durability
from millstream.store.sqlite_options import SqliteOptions
from millstream.store.store import Store

__all__ = ["Cursor", "Log", "Metadata", "Millstream", "Queue", "Stage", "Transaction", "open"]


async def open(
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
    """Open a store in a file or behind a server, as `millstream.open`; for the running event loop."""
    if is_address(path):
        return Millstream(
            await open_async_remote(
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
    from millstream.aio.session import AsyncEmbeddedSession
    from millstream.embedded import open_file

    open_it = partial(
        open_file,
        path,
        durability=durability,
        limits=limits,
        options=options,
        clock=clock,
        file_mode=file_mode,
        accept_loss=accept_loss,
    )
    opening = asyncio.get_running_loop().run_in_executor(None, open_it)
    try:
        store = await asyncio.shield(opening)
    except asyncio.CancelledError:
        opening.add_done_callback(_close_unwanted)
        raise
    return Millstream(AsyncEmbeddedSession(store))


def _close_unwanted(opened: asyncio.Future[Store]) -> None:
    if not opened.cancelled() and opened.exception() is None:
        opened.result().close()
