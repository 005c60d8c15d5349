"""The nodes of a client: its addresses, and which address to dial next; no I/O.

A client of one address stays with it. A client of several addresses dials them in turn until a node
answers, and moves to the leading node as soon as a node names it. It moves only to addresses of its
own list: a token is never shown to a server that only another server named.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from millstream.errors import InvalidInput
from millstream.remote.address import PING_S, Address, parse_address

NODES_MAX = 16

PING_SEVERAL_S = 1.75
"""As `PING_S`, for a client of several nodes: a node that hangs is left after 3.5 s."""

FIRST_ROUND_S = 2.0
"""The timeout of each of several nodes in the first round: a dead node does not delay the client
for long. A slow node gets its full time in the following rounds."""


class Nodes:
    """The servers of a store. Only the thread or task that dials calls the methods."""

    def __init__(self, addresses: Sequence[Address]) -> None:
        self._addresses = [*addresses]
        self._turn = 0
        self.is_left = False
        """Whether the connection to the current node was lost: the next node is dialed first."""

    def __len__(self) -> int:
        return len(self._addresses)

    @property
    def current(self) -> Address:
        """Return the address to dial, or of the connected node."""
        return self._addresses[self._turn]

    @property
    def shown(self) -> str:
        """Return the current address, for messages."""
        return self.current.shown

    @property
    def every_shown(self) -> str:
        """Return all addresses, for messages."""
        return ", ".join(address.shown for address in self._addresses)

    def round_of(self, attempt: int) -> int:
        """Return how many rounds over all nodes come before an attempt."""
        return attempt // len(self._addresses)

    def timeout_s(self, round_s: float, attempt: int) -> float:
        """Return the timeout of an attempt, as a share of the time of a round over all nodes."""
        share_s = round_s / len(self._addresses)
        if len(self._addresses) == 1 or self.round_of(attempt):
            return share_s
        return min(share_s, FIRST_ROUND_S)

    def pass_on(self) -> None:
        """Move to the next node."""
        self._turn = (self._turn + 1) % len(self._addresses)
        self.is_left = False

    def choose(self) -> None:
        """Skip a node whose connection was just lost, before dialing."""
        if self.is_left:
            self.pass_on()

    def leading(self, named: str | None) -> Address | None:
        """Return the leading node that a server named, if the client should move there."""
        if not named or self.current.stays or named.rstrip("/") == self.current.shown:
            return None
        return next(
            (address for address in self._addresses if address.shown == named.rstrip("/")), None
        )

    def go_to(self, address: Address) -> None:
        """Make an address the current one."""
        self._turn = self._addresses.index(address)
        self.is_left = False


def parse_nodes(
    url: str, *, token: str | None = None, ca: str | None = None, read_level: str = "strong"
) -> Nodes:
    """Parse a URL, or several with commas between; later URLs need no scheme."""
    first, *more_urls = [item.strip() for item in url.split(",")]
    scheme = first.partition("://")[0]
    urls = [
        first,
        *(address if "://" in address else f"{scheme}://{address}" for address in more_urls),
    ]
    if len(urls) > NODES_MAX:
        raise InvalidInput(f"a client is given up to {NODES_MAX} addresses, not {len(urls)}")
    addresses = [
        parse_address(address, token=token, ca=ca, read_level=read_level) for address in urls
    ]
    if len({address.tls is None for address in addresses}) > 1:
        raise InvalidInput(
            "the addresses of one store are all https://, or all http://: a token that one of "
            "them is shown in secret must not be shown to another in the open"
        )
    if len({address.shown for address in addresses}) < len(addresses):
        raise InvalidInput("an address is named twice; name each node once")
    ping_s = PING_S if len(addresses) == 1 else PING_SEVERAL_S
    return Nodes([replace(address, ping_s=ping_s) for address in addresses])
