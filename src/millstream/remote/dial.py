"""Dialing: an attempt to connect, up to the server's greeting, for coroutines and threads.

The client asks first for Millstream's own frames; if a proxy does not let them through, it asks for
a WebSocket. Every failure is a `CannotOpen`; its `again` says whether another attempt may succeed.
"""

from __future__ import annotations

import asyncio
import itertools
import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from millstream.clock import SystemClock
from millstream.errors import CannotOpen, InvalidInput
from millstream.remote.address import TOKEN_VARIABLE, Address
from millstream.remote.codec import (
    Codec,
    ConnectionLost,
    FrameCodec,
    Goodbye,
    Refused,
    WebSocketCodec,
)
from millstream.remote.loop_connection import LoopConnection
from millstream.remote.nodes import Nodes
from millstream.remote.thread_connection import ThreadConnection, reach
from millstream.wire import commands as wire

PASSING = {408, 425, 429, 500, 502, 503, 504}
"""Statuses after which a later attempt may succeed."""

FINAL = {401, 403, 429, 503}
"""Statuses that a WebSocket would get as well."""


@dataclass(frozen=True, slots=True)
class OpenLoopConnection:
    """An open connection of coroutines, with the server's greeting."""

    connection: LoopConnection
    hello: wire.Hello
    is_websocket: bool


@dataclass(frozen=True, slots=True)
class OpenThreadConnection:
    """An open connection of threads, with the server's greeting."""

    connection: ThreadConnection
    hello: wire.Hello
    is_websocket: bool


async def dial(
    address: Address, *, timeout_s: float, by_websocket: bool = False
) -> OpenLoopConnection:
    """Connect, and return after the greeting. Raises `CannotOpen` without a greeting in time."""
    with _explained(address, timeout_s):
        async with asyncio.timeout(timeout_s):
            if not by_websocket:
                try:
                    return await _greeted(address, FrameCodec(address))
                except (Refused, ConnectionLost, Goodbye) as error:
                    _check_passable(error)
            return await _greeted(address, WebSocketCodec(address))


def dial_thread(
    address: Address, *, timeout_s: float, by_websocket: bool = False
) -> OpenThreadConnection:
    """As `dial`, on the calling thread."""
    until_s = SystemClock().seconds() + timeout_s
    with _explained(address, timeout_s):
        if not by_websocket:
            try:
                return _thread_greeted(address, FrameCodec(address), until_s)
            except (Refused, ConnectionLost, Goodbye) as error:
                _check_passable(error)
        return _thread_greeted(address, WebSocketCodec(address), until_s)


async def dial_leading(
    nodes: Nodes, *, timeout_s: float, attempt: int, by_websocket: bool = False
) -> OpenLoopConnection:
    """Connect to the current node, or to the leading node if the current node names it.

    `timeout_s` covers a round over all nodes; `attempt` counts the earlier attempts.
    """
    nodes.choose()
    timeout_s = nodes.timeout_s(timeout_s, attempt)
    opened = await dial(nodes.current, timeout_s=timeout_s, by_websocket=by_websocket)
    leading = nodes.leading(opened.hello.leader)
    if leading is None:
        return opened
    try:
        direct = await dial(leading, timeout_s=timeout_s, by_websocket=by_websocket)
    except CannotOpen:
        return opened  # the opened node hands requests on
    except BaseException:
        opened.connection.abort()
        raise
    opened.connection.abort()
    nodes.go_to(leading)
    return direct


def dial_thread_leading(
    nodes: Nodes, *, timeout_s: float, attempt: int, by_websocket: bool = False
) -> OpenThreadConnection:
    """As `dial_leading`, on the calling thread."""
    nodes.choose()
    timeout_s = nodes.timeout_s(timeout_s, attempt)
    opened = dial_thread(nodes.current, timeout_s=timeout_s, by_websocket=by_websocket)
    leading = nodes.leading(opened.hello.leader)
    if leading is None:
        return opened
    try:
        direct = dial_thread(leading, timeout_s=timeout_s, by_websocket=by_websocket)
    except CannotOpen:
        return opened
    except BaseException:
        opened.connection.close()
        raise
    opened.connection.close()
    nodes.go_to(leading)
    return direct


async def dial_any(nodes: Nodes, *, timeout_s: float) -> OpenLoopConnection:
    """Connect to the first node that answers. Raises the `CannotOpen` of the last node."""
    late = False
    for attempt in itertools.count():
        try:
            return await dial_leading(nodes, timeout_s=timeout_s, attempt=attempt)
        except CannotOpen as error:
            nodes.pass_on()
            late = late or _is_late(error)
            if _is_enough(nodes, attempt, late=late):
                raise _none_answers(nodes, error) from error
    raise AssertionError("a client has at least one address")


def dial_thread_any(nodes: Nodes, *, timeout_s: float) -> OpenThreadConnection:
    """As `dial_any`, on the calling thread."""
    late = False
    for attempt in itertools.count():
        try:
            return dial_thread_leading(nodes, timeout_s=timeout_s, attempt=attempt)
        except CannotOpen as error:
            nodes.pass_on()
            late = late or _is_late(error)
            if _is_enough(nodes, attempt, late=late):
                raise _none_answers(nodes, error) from error
    raise AssertionError("a client has at least one address")


def _is_late(error: CannotOpen) -> bool:
    """Whether a node did not answer in time, rather than refuse."""
    return isinstance(error.__cause__, TimeoutError)


def _is_enough(nodes: Nodes, attempt: int, *, late: bool) -> bool:
    """Whether to stop after a failed attempt; several nodes get a second round if one is slow."""
    rounds = 2 if late and len(nodes) > 1 else 1
    return attempt + 1 >= rounds * len(nodes)


def _none_answers(nodes: Nodes, error: CannotOpen) -> CannotOpen:
    """Return the last node's error; for several nodes, say that no node answers."""
    if len(nodes) == 1:
        return error
    shown = nodes.every_shown
    return CannotOpen(
        f"none of {shown} lets us in; the last one: {error.message}", path=shown, again=error.again
    )


async def _greeted(address: Address, codec: Codec) -> OpenLoopConnection:
    connection = await LoopConnection.open(address, codec)
    try:
        hello = wire.decode_hello(await connection.first())
    except BaseException:
        connection.abort()
        raise
    return OpenLoopConnection(connection, hello, isinstance(codec, WebSocketCodec))


def _thread_greeted(address: Address, codec: Codec, until_s: float) -> OpenThreadConnection:
    connection = ThreadConnection(reach(address, until_s), codec, ping_s=address.ping_s)
    try:
        hello = wire.decode_hello(connection.first(until_s))
    except BaseException:
        connection.close()
        raise
    return OpenThreadConnection(connection, hello, isinstance(codec, WebSocketCodec))


def _check_passable(error: Exception) -> None:
    """Raise an error that a WebSocket would meet as well."""
    if isinstance(error, Refused) and error.status in FINAL:
        raise error


@contextmanager
def _explained(address: Address, timeout_s: float) -> Iterator[None]:
    """Turn every failure into `CannotOpen`."""
    try:
        yield
    except TimeoutError as error:
        raise _failed(address, f"no answer within {timeout_s:g} s", again=True) from error
    except Refused as error:
        raise _refused(address, error.status) from error
    except (ConnectionLost, Goodbye) as error:
        raise _failed(address, f"the connection was closed: {error}", again=True) from error
    except ssl.SSLError as error:
        raise _failed(address, _tls_advice(error), again=False) from error
    except OSError as error:
        raise _failed(address, error.strerror or str(error), again=True) from error
    except InvalidInput as error:
        raise _failed(address, f"this is no Millstream server: {error}", again=False) from error


def _refused(address: Address, status: int) -> CannotOpen:
    if status in (401, 403):
        action = "refuses the token" if address.token else "wants a token"
        return _failed(
            address, f"the server {action} ({status}): pass token=, or set {TOKEN_VARIABLE}"
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
