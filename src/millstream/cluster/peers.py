"""The nodes of a cluster as a command line names them: a=host1,b=host2:9000,c=host3.

A node has three ports in a row: for its server, for its NATS server, and for the routes between
NATS servers. The credentials of nodes are derived from the cluster's secret.
"""

from __future__ import annotations

import hmac
import re
from collections.abc import Sequence
from typing import NamedTuple

from millstream.errors import InvalidInput

PORT = 8080
"""A node's default port."""
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,31}")
"""The names of nodes and clusters: NATS uses them in files and subjects."""
LOOPBACK = ("127.0.0.1", "localhost", "::1", "[::1]")
NATS_USER = "millstream"


class Peer(NamedTuple):
    """A node: a name, a host, and the first of three ports."""

    name: str
    host: str
    port: int = PORT

    @property
    def address(self) -> str:
        """Return the address for clients and other nodes."""
        return f"http://{self.host}:{self.port}"

    @property
    def nats_port(self) -> int:
        """Return the port of its NATS server for nodes."""
        return self.port + 1

    @property
    def route_port(self) -> int:
        """Return the port of its NATS server for other NATS servers."""
        return self.port + 2

    @property
    def nats_url(self) -> str:
        """Return the address of its NATS server."""
        return f"nats://{self.host}:{self.nats_port}"

    @property
    def is_here_only(self) -> bool:
        """Whether no other machine can reach the node."""
        return self.host in LOOPBACK


def parse_peers(text: str) -> tuple[Peer, ...]:
    """Parse `NAME=HOST[:PORT],…`; names and ports must be unique."""
    peers = tuple(_parse(item.strip()) for item in text.split(","))
    if len({peer.name for peer in peers}) < len(peers):
        raise InvalidInput(f"each node is named once in --peers, and {text!r} names one twice")
    places = {(peer.host, port) for peer in peers for port in range(peer.port, peer.port + 3)}
    if len(places) < 3 * len(peers):
        raise InvalidInput(
            f"a node has three ports in a row, and two nodes of --peers {text!r} share one: "
            "on one host, leave at least three between their ports"
        )
    return peers


def own(peers: Sequence[Peer], name: str) -> Peer:
    """Return the node of a name."""
    for peer in peers:
        if peer.name == name:
            return peer
    names = ", ".join(peer.name for peer in peers)
    raise InvalidInput(f"--node is one of the names in --peers ({names}), not {name!r}")


def check_name(name: str) -> str:
    """Refuse a name that NATS cannot use."""
    if not NAME.fullmatch(name):
        raise InvalidInput(
            f"the name of a node or a cluster has up to 32 letters, digits, - and _, not {name!r}"
        )
    return name


def derive(secret: str, purpose: str) -> str:
    """Derive a credential of nodes for a purpose; it does not reveal the secret."""
    return hmac.digest(secret.encode(), purpose.encode(), "sha256").hex()


def _parse(text: str) -> Peer:
    name, equals, place = text.partition("=")
    host, colon, port = place.rpartition(":") if not place.endswith("]") else (place, "", "")
    if not colon:
        host, port = place, str(PORT)
    if not equals or not host or not port.isdigit() or not 0 < int(port) <= 65_533:
        raise InvalidInput(f"a node of --peers is NAME=HOST or NAME=HOST:PORT, not {text!r}")
    return Peer(check_name(name), host, int(port))
