"""Free ports on this machine, three in a row for each node of a trial cluster."""

from __future__ import annotations

import secrets
import socket
from collections.abc import Iterator
from contextlib import ExitStack

from millstream.errors import CannotOpen

HOST = "127.0.0.1"
LOWEST, HIGHEST = 20_000, 32_000
"""Below the ports that the system assigns by itself, which may be taken at any moment."""
IN_A_ROW = 3
TRIES = 1_000


def free_ports(count: int) -> list[int]:
    """Return the first ports of free runs of three ports."""
    with ExitStack() as held:
        runs = _runs(held)
        return [next(runs) for _ in range(count)]


def _runs(held: ExitStack) -> Iterator[int]:
    for _ in range(TRIES):
        first = LOWEST + secrets.randbelow(HIGHEST - LOWEST)
        with ExitStack() as listeners:
            try:
                for port in range(first, first + IN_A_ROW):
                    listeners.enter_context(_listener(port))
            except OSError:
                continue
            held.push(listeners.pop_all())
        yield first
    raise CannotOpen(f"no three free ports in a row on {HOST}", path=HOST)


def _listener(port: int) -> socket.socket:
    listener = socket.socket()
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((HOST, port))
        listener.listen()  # a port that is only bound could be bound again
    except OSError:
        listener.close()
        raise
    return listener
