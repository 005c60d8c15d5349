"""The nodes of a client: the addresses that it was given, and which of them it dials next: no I/O.

A client of one address stays with it. A client of several dials them in turn until one answers, and
goes over to the leading node as soon as a node names it. It goes only to addresses that it was given:
a token is never shown to a server of which only another server told.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from millstream.errors import InvalidInput
from millstream.remote.address import PING_S, Address, parse_address

NODES_MAX = 16

PING_SEVERAL_S = 1.75
"""As `PING_S`, of a client that has another node to go to: one that stands still is left after 3.5 s."""

FIRST_ROUND_S = 2.0
"""For each of several nodes in the first round: one that is gone does not keep the client for long. One
that is only slow is given its whole time in the rounds that follow."""


class Nodes:
    """The servers of one store. All calls are made by the one that dials."""

    def __init__(self, addresses: Sequence[Address]) -> None:
        self._addresses = [*addresses]
        self._turn = 0
        self.is_left = False
        """Whether the connection to the current node was lost: the next one is dialed first."""

    def __len__(self) -> int:
        return len(self._addresses)

    @property
    def current(self) -> Address:
        """The one to dial, or that is connected."""
        return self._addresses[self._turn]

    @property
    def shown(self) -> str:
        """What messages call it."""
        return self.current.shown

    @property
    def every_shown(self) -> str:
        """All of them, for messages."""
        return ", ".join(one.shown for one in self._addresses)

    def round_of(self, attempt: int) -> int:
        """How often all of them were tried before an attempt."""
        return attempt // len(self._addresses)

    def timeout_s(self, round_s: float, attempt: int) -> float:
        """For one attempt at one of them, if one round of all may take so long."""
        share_s = round_s / len(self._addresses)
        if len(self._addresses) == 1 or self.round_of(attempt):
            return share_s
        return min(share_s, FIRST_ROUND_S)

    def pass_on(self) -> None:
        """It did not do: the next one's turn."""
        self._turn = (self._turn + 1) % len(self._addresses)
        self.is_left = False

    def choose(self) -> None:
        """Before a dial: pass over a node whose connection was just lost."""
        if self.is_left:
            self.pass_on()

    def leading(self, told: str | None) -> Address | None:
        """The address of the leading node, as a server told it, if a client should go there."""
        if not told or self.current.stays or told.rstrip("/") == self.current.shown:
            return None
        return next((one for one in self._addresses if one.shown == told.rstrip("/")), None)

    def go_to(self, address: Address) -> None:
        """Make one of them the current."""
        self._turn = self._addresses.index(address)
        self.is_left = False


def parse_nodes(
    url: str, *, token: str | None = None, ca: str | None = None, read_level: str = "strong"
) -> Nodes:
    """Read one URL, or several with commas between; those after the first need no scheme."""
    first, *others = [part.strip() for part in url.split(",")]
    scheme = first.partition("://")[0]
    urls = [first, *(one if "://" in one else f"{scheme}://{one}" for one in others)]
    if len(urls) > NODES_MAX:
        raise InvalidInput(f"a client is given up to {NODES_MAX} addresses, not {len(urls)}")
    found = [parse_address(one, token=token, ca=ca, read_level=read_level) for one in urls]
    if len({one.tls is None for one in found}) > 1:
        raise InvalidInput(
            "the addresses of one store are all https://, or all http://: a token that one of "
            "them is shown in secret must not be shown to another in the open"
        )
    if len({one.shown for one in found}) < len(found):
        raise InvalidInput("an address is named twice; name each node once")
    ping_s = PING_S if len(found) == 1 else PING_SEVERAL_S
    return Nodes([replace(one, ping_s=ping_s) for one in found])
