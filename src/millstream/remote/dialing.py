"""Dialing: one attempt at a connection, up to the server's greeting.

Whatever goes wrong is `CannotOpen`; its `again` says whether another attempt may do better.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
from dataclasses import dataclass
from typing import Any

from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import (
    ConnectionClosed,
    InvalidHandshake,
    InvalidMessage,
    InvalidStatus,
    WebSocketException,
)
from websockets.typing import Subprotocol

from millstream import wire
from millstream.errors import CannotOpen, InvalidInput
from millstream.remote.address import TOKEN_VARIABLE, Address

ANSWER_BYTES_MAX = 256 * 1024 * 1024
"""Of a frame of answers: four batches of the largest permitted size."""

CLOSE_S = 2.0
"""How long a server is given to say goodbye."""

PASSING = {408, 425, 429, 500, 502, 503, 504}
"""Answers after which another attempt may do better."""


class _Connect(connect):
    """A connection to this server and no other: it is not followed elsewhere, nor is its token."""

    def process_redirect(self, exc: Exception) -> Exception | str:
        """A redirect is a wrong address."""
        return exc


def _silent() -> logging.Logger:
    """A logger for the transport, which would log headers, and with them the token."""
    logger = logging.Logger("millstream.remote.transport")
    logger.disabled = True
    return logger


@dataclass(frozen=True, slots=True)
class OpenConnection:
    """An open connection, and how the server greeted us."""

    socket: ClientConnection
    hello: wire.Hello


async def dial(address: Address, *, timeout_s: float) -> OpenConnection:
    """Connect, and hear the greeting; `CannotOpen` if there is none within the time."""
    try:
        async with asyncio.timeout(timeout_s):
            return await _greeted(await _connected(address), address)
    except TimeoutError as error:
        raise _failed(address, f"no answer within {timeout_s:g} s", again=True) from error
    except InvalidStatus as error:
        raise _refused(address, error.response.status_code) from error
    except (ConnectionClosed, InvalidMessage) as error:
        raise _failed(address, f"the connection was closed: {error}", again=True) from error
    except ssl.SSLError as error:
        raise _failed(address, _tls_advice(error), again=False) from error
    except OSError as error:
        raise _failed(address, error.strerror or str(error), again=True) from error
    except (InvalidHandshake, WebSocketException, InvalidInput) as error:
        raise _failed(address, f"this is no Millstream server: {error}", again=False) from error


async def _connected(address: Address) -> ClientConnection:
    options: dict[str, Any] = {} if address.tls is None else {"ssl": address.tls}
    return await _Connect(
        address.socket_url,
        subprotocols=[Subprotocol(wire.SUBPROTOCOL)],
        additional_headers=address.headers(),
        compression=None,
        max_size=ANSWER_BYTES_MAX,
        open_timeout=None,
        close_timeout=CLOSE_S,
        logger=_silent(),
        **options,
    )


async def _greeted(socket: ClientConnection, address: Address) -> OpenConnection:
    try:
        if socket.subprotocol != wire.SUBPROTOCOL:
            raise InvalidInput(f"it does not speak {wire.SUBPROTOCOL}")
        return OpenConnection(socket, wire.decode_hello(await socket.recv(decode=False)))
    except BaseException:
        socket.transport.abort()
        raise


def _refused(address: Address, status: int) -> CannotOpen:
    if status in (401, 403):
        what = "refuses the token" if address.token else "wants a token"
        return _failed(
            address, f"the server {what} ({status}): pass token=, or set {TOKEN_VARIABLE}"
        )
    if status in PASSING:
        return _failed(address, f"the server answers {status}; try again later", again=True)
    return _failed(address, f"this is no Millstream server: it answers {status}")


def _tls_advice(error: ssl.SSLError) -> str:
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"its certificate is not trusted ({error.verify_message}): name its authority by ca="
    return f"no TLS connection ({error.reason or error}): is it an https:// address?"


def _failed(address: Address, why: str, *, again: bool = False) -> CannotOpen:
    return CannotOpen(f"cannot reach {address.shown}: {why}", path=address.shown, again=again)
