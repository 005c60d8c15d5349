"""Opening: from an address and its options to a session."""

from __future__ import annotations

from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from millstream.errors import CannotOpen, InvalidInput
from millstream.remote.nodes import Nodes, parse_nodes

if TYPE_CHECKING:
    from millstream.remote.loop_client import Patience
    from millstream.remote.loop_session import AsyncRemoteSession
    from millstream.remote.thread_session import RemoteSession

CONNECT_TIMEOUT_S = 10.0
"""The timeout of an attempt to connect, including the server's greeting."""

RETRY_FOR_S = 30.0
"""How long a lost server may take to come back."""


def open_remote(url: str, **options: Any) -> RemoteSession:
    """Open a session for threads. Options for files are refused."""
    nodes, patience = _checked(url, **options)
    from millstream.remote.thread_session import RemoteSession

    return RemoteSession(nodes, patience)


async def open_async_remote(url: str, **options: Any) -> AsyncRemoteSession:
    """Open a session for coroutines of the running event loop; options as for `open_remote`."""
    nodes, patience = _checked(url, **options)
    from millstream.remote.loop_client import LoopClient
    from millstream.remote.loop_session import AsyncRemoteSession

    return AsyncRemoteSession(await LoopClient.open(nodes, patience))


def check_no_address_options(*, token: str | None, ca: str | None, read_level: str) -> None:
    """Refuse options of addresses for a file: it knows no tokens, and its reads are always strong."""
    if read_level != "strong":
        raise InvalidInput("read_level= is for the addresses of a cluster, not for a file")
    for name, value in (("token", token), ("ca", ca)):
        if value is not None:
            raise InvalidInput(f"{name}= is for the address of a server, not for a file")


def _checked(
    url: str,
    *,
    token: str | None,
    ca: str | None,
    connect_timeout: float,
    retry_for: float,
    read_level: str = "strong",
    **of_files: Any,
) -> tuple[Nodes, Patience]:
    """Check the options of an address, and return its nodes and timeouts."""
    for name, value in of_files.items():
        if value not in (None, "full") and value is not False:
            raise InvalidInput(f"{name}= is for a file; a server was given its own when it started")
    if find_spec("websockets") is None:
        raise CannotOpen(
            "a server is reached with the package `websockets`: pip install 'millstream[client]'",
            path=url.rpartition("@")[2],
        )
    from millstream.remote.loop_client import Patience

    patience = Patience(connect_timeout_s=connect_timeout, retry_for_s=retry_for)
    return parse_nodes(url, token=token, ca=ca, read_level=read_level), patience
