"""Three NATS servers on this machine, as child processes of the tests."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from millstream.clock import SystemClock

if TYPE_CHECKING:
    from millstream.cluster.nats.access import ClusterTls
    from millstream.cluster.nats.connection import NatsConnection
    from millstream.cluster.nats.server import NatsServer

SECRET = "of the tests"
PATIENCE_S = 150.0


def until(condition: Callable[[], object], what: str, *, within_s: float = PATIENCE_S) -> None:
    """Wait until something holds that another process or thread brings about."""
    deadline, pause = SystemClock().seconds() + within_s, threading.Event()
    while not condition():
        assert SystemClock().seconds() < deadline, f"in vain: {what}"
        pause.wait(0.02)


class Servers:
    """Three servers that form one NATS."""

    def __init__(self, servers: list[NatsServer], tls: ClusterTls | None = None) -> None:
        self.all, self.tls = servers, tls

    def line(self, first: int = 0) -> NatsConnection:
        """A connection, to one of them before the others."""
        from millstream.cluster.nats.access import NatsAccess
        from millstream.cluster.nats.connection import NatsConnection
        from millstream.cluster.peers import NATS_USER, derive

        places = [one.me.nats_url for one in self.all]
        access = NatsAccess(
            (*places[first:], *places[:first]),
            user=NATS_USER,
            password=derive(SECRET, "nats"),
            tls=self.tls,
            is_tls_first=True,
        )
        return NatsConnection(access, name="test")


@contextmanager
def three_servers(folder: Path, *, tls: ClusterTls | None = None) -> Iterator[Servers]:
    """Start them, and end them when the block is left."""
    from millstream.cluster.nats.server import NatsServer
    from millstream.cluster.peers import Peer
    from millstream.cluster.trial import HOST, free_ports

    peers = [Peer(name, HOST, port) for name, port in zip("abc", free_ports(3), strict=True)]
    with ExitStack() as stack:
        servers = [
            NatsServer(one, peers, folder / one.name, secret=SECRET, tls=tls) for one in peers
        ]
        for server in servers:
            stack.callback(server.stop)
            server.start()
        yield Servers(servers, tls)
