"""The nodes of a cluster as they are named on a command line: a=host1,b=host2:9000,c=host3.

A node has three ports in a row: that of its server, that of its NATS server, and that by which NATS
servers reach each other. What nodes show each other is derived from the cluster's one secret.
"""

from __future__ import annotations

import hmac
import re
from collections.abc import Sequence
from typing import NamedTuple

from millstream.errors import InvalidInput

PORT = 8080
"""A node's port if none is named."""
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,31}")
"""What a node, or a cluster, may be called: NATS makes files and subjects of it."""
LOOPBACK = ("127.0.0.1", "localhost", "::1", "[::1]")
NATS_USER = "millstream"


class Peer(NamedTuple):
    """A node: its name, the host where it is reached, and the first of its three ports."""

    name: str
    host: str
    port: int = PORT

    @property
    def address(self) -> str:
        """Where clients and other nodes reach it."""
        return f"http://{self.host}:{self.port}"

    @property
    def nats_port(self) -> int:
        """Where its NATS server is reached by nodes."""
        return self.port + 1

    @property
    def route_port(self) -> int:
        """Where its NATS server is reached by other NATS servers."""
        return self.port + 2

    @property
    def nats_url(self) -> str:
        """The address of its NATS server."""
        return f"nats://{self.host}:{self.nats_port}"

    @property
    def is_here_only(self) -> bool:
        """Whether no other machine can reach it."""
        return self.host in LOOPBACK


def parse_peers(text: str) -> tuple[Peer, ...]:
    """The nodes of `NAME=HOST[:PORT],…`; names and places are there once."""
    peers = tuple(_parse(one.strip()) for one in text.split(","))
    if len({one.name for one in peers}) < len(peers):
        raise InvalidInput(f"each node is named once in --peers, and {text!r} names one twice")
    places = {(one.host, port) for one in peers for port in range(one.port, one.port + 3)}
    if len(places) < 3 * len(peers):
        raise InvalidInput(
            f"a node has three ports in a row, and two nodes of --peers {text!r} share one: "
            "on one host, leave at least three between their ports"
        )
    return peers


def own(peers: Sequence[Peer], name: str) -> Peer:
    """The node of a name."""
    for one in peers:
        if one.name == name:
            return one
    names = ", ".join(one.name for one in peers)
    raise InvalidInput(f"--node is one of the names in --peers ({names}), not {name!r}")


def check_name(name: str) -> str:
    """A name that NATS can use."""
    if not NAME.fullmatch(name):
        raise InvalidInput(
            f"the name of a node or a cluster has up to 32 letters, digits, - and _, not {name!r}"
        )
    return name


def derive(secret: str, purpose: str) -> str:
    """What nodes show each other for one purpose; the secret cannot be told from it."""
    return hmac.digest(secret.encode(), purpose.encode(), "sha256").hex()


def _parse(text: str) -> Peer:
    name, equals, place = text.partition("=")
    host, colon, port = place.rpartition(":") if not place.endswith("]") else (place, "", "")
    if not colon:
        host, port = place, str(PORT)
    if not equals or not host or not port.isdigit() or not 0 < int(port) <= 65_533:
        raise InvalidInput(f"a node of --peers is NAME=HOST or NAME=HOST:PORT, not {text!r}")
    return Peer(check_name(name), host, int(port))
