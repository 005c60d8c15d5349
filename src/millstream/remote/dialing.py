"""Dialing: one attempt at a connection, up to the server's greeting, for coroutines and threads.

Frames of our own are asked for first; if something in between does not let them through, a WebSocket
is. Whatever goes wrong is `CannotOpen`; its `again` says whether another attempt may do better.
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
    FrameCodec,
    Goodbye,
    LineLost,
    Refused,
    WebSocketCodec,
)
from millstream.remote.loop_connection import LoopLine
from millstream.remote.nodes import Nodes
from millstream.remote.thread_connection import Plug, reach
from millstream.wire import commands as wire

PASSING = {408, 425, 429, 500, 502, 503, 504}
"""Answers after which another attempt may do better."""

FINAL = {401, 403, 429, 503}
"""Answers that a WebSocket would get as well."""


@dataclass(frozen=True, slots=True)
class OpenConnection:
    """An open connection of coroutines, and how the server greeted us."""

    line: LoopLine
    hello: wire.Hello
    is_websocket: bool


@dataclass(frozen=True, slots=True)
class OpenPlug:
    """An open connection of threads, and how the server greeted us."""

    plug: Plug
    hello: wire.Hello
    is_websocket: bool


async def dial(address: Address, *, timeout_s: float, by_websocket: bool = False) -> OpenConnection:
    """Connect, and hear the greeting; `CannotOpen` if there is none within the time."""
    with _explained(address, timeout_s):
        async with asyncio.timeout(timeout_s):
            if not by_websocket:
                try:
                    return await _greeted(address, FrameCodec(address))
                except (Refused, LineLost, Goodbye) as error:
                    _check_passable(error)
            return await _greeted(address, WebSocketCodec(address))


def dial_plug(address: Address, *, timeout_s: float, by_websocket: bool = False) -> OpenPlug:
    """The same, on the calling thread."""
    until_s = SystemClock().seconds() + timeout_s
    with _explained(address, timeout_s):
        if not by_websocket:
            try:
                return _plugged(address, FrameCodec(address), until_s)
            except (Refused, LineLost, Goodbye) as error:
                _check_passable(error)
        return _plugged(address, WebSocketCodec(address), until_s)


async def dial_leading(
    nodes: Nodes, *, timeout_s: float, attempt: int, by_websocket: bool = False
) -> OpenConnection:
    """Connect to the current node; if it names the leading one, rather to that.

    `timeout_s` is for as many attempts as there are nodes; `attempt` says how many there were.
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
        return opened  # which hands everything on
    except BaseException:
        opened.line.abort()
        raise
    opened.line.abort()
    nodes.go_to(leading)
    return direct


def dial_plug_leading(
    nodes: Nodes, *, timeout_s: float, attempt: int, by_websocket: bool = False
) -> OpenPlug:
    """The same, on the calling thread."""
    nodes.choose()
    timeout_s = nodes.timeout_s(timeout_s, attempt)
    opened = dial_plug(nodes.current, timeout_s=timeout_s, by_websocket=by_websocket)
    leading = nodes.leading(opened.hello.leader)
    if leading is None:
        return opened
    try:
        direct = dial_plug(leading, timeout_s=timeout_s, by_websocket=by_websocket)
    except CannotOpen:
        return opened
    except BaseException:
        opened.plug.close()
        raise
    opened.plug.close()
    nodes.go_to(leading)
    return direct


async def dial_any(nodes: Nodes, *, timeout_s: float) -> OpenConnection:
    """Connect to the first node that answers; `CannotOpen`, of the last, if none does."""
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


def dial_plug_any(nodes: Nodes, *, timeout_s: float) -> OpenPlug:
    """The same, on the calling thread."""
    late = False
    for attempt in itertools.count():
        try:
            return dial_plug_leading(nodes, timeout_s=timeout_s, attempt=attempt)
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
    """After a failed attempt: the second round is for several nodes, if one may be only slow."""
    rounds = 2 if late and len(nodes) > 1 else 1
    return attempt + 1 >= rounds * len(nodes)


def _none_answers(nodes: Nodes, error: CannotOpen) -> CannotOpen:
    """The last node's error; of several nodes it says that none of them answers."""
    if len(nodes) == 1:
        return error
    shown = nodes.every_shown
    return CannotOpen(
        f"none of {shown} lets us in; the last one: {error.message}", path=shown, again=error.again
    )


async def _greeted(address: Address, codec: Codec) -> OpenConnection:
    line = await LoopLine.open(address, codec)
    try:
        hello = wire.decode_hello(await line.first())
    except BaseException:
        line.abort()
        raise
    return OpenConnection(line, hello, isinstance(codec, WebSocketCodec))


def _plugged(address: Address, codec: Codec, until_s: float) -> OpenPlug:
    plug = Plug(reach(address, until_s), codec, ping_s=address.ping_s)
    try:
        hello = wire.decode_hello(plug.first(until_s))
    except BaseException:
        plug.close()
        raise
    return OpenPlug(plug, hello, isinstance(codec, WebSocketCodec))


def _check_passable(error: Exception) -> None:
    """Raise what a WebSocket would meet as well."""
    if isinstance(error, Refused) and error.status in FINAL:
        raise error


@contextmanager
def _explained(address: Address, timeout_s: float) -> Iterator[None]:
    """Whatever goes wrong, as `CannotOpen`."""
    try:
        yield
    except TimeoutError as error:
        raise _failed(address, f"no answer within {timeout_s:g} s", again=True) from error
    except Refused as error:
        raise _refused(address, error.status) from error
    except (LineLost, Goodbye) as error:
        raise _failed(address, f"the connection was closed: {error}", again=True) from error
    except ssl.SSLError as error:
        raise _failed(address, _tls_advice(error), again=False) from error
    except OSError as error:
        raise _failed(address, error.strerror or str(error), again=True) from error
    except InvalidInput as error:
        raise _failed(address, f"this is no Millstream server: {error}", again=False) from error


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
