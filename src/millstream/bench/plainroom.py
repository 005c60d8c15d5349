"""The reference for rooms: a plain loop over `websockets` that stores nothing.

`python -m millstream.bench.plainroom` prints its free port and sends messages of a given size to all
connections, a frame per message.
"""

from __future__ import annotations

import asyncio
import sys
from contextlib import suppress

import uvloop
from websockets.asyncio.server import ServerConnection, serve
from websockets.exceptions import ConnectionClosed


async def push(size: int) -> None:
    """Send to every connection, in turn, for as long as there are any."""
    connections: set[ServerConnection] = set()
    news = asyncio.Event()

    async def take(connection: ServerConnection) -> None:
        connections.add(connection)
        news.set()
        try:
            await connection.wait_closed()
        finally:
            connections.discard(connection)

    async with serve(take, "127.0.0.1", 0, compression=None, ping_interval=None) as server:
        port = next(iter(server.sockets)).getsockname()[1]
        sys.stdout.write(f"{port}\n")
        sys.stdout.flush()
        await news.wait()
        text = "x" * size
        while True:
            for connection in [*connections]:
                with suppress(ConnectionClosed):
                    await connection.send(text)
            await asyncio.sleep(0)


if __name__ == "__main__":
    uvloop.run(push(int(sys.argv[1])))
