"""A client that speaks the socket's protocol frame by frame, also wrongly."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import msgspec
import pytest
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import ClientConnection, connect

from millstream.command import Command
from millstream.errors import MillstreamError
from millstream.format.packing import Batch, Single, pack_batch, pack_single
from millstream.limits import Limits
from millstream.server.serving import Serving
from millstream.wire import commands as wire
from tests.unit.server.frames import SOON_S, framed

by_frames = False
"""Whether `talking` speaks frames on a bare connection; a module's fixture sets it for all its tests."""


def each_transport(request: pytest.FixtureRequest) -> Iterator[str]:
    """For a fixture that has all tests of a module run over WebSockets, and over frames."""
    global by_frames
    by_frames = request.param == "frames"
    yield request.param
    by_frames = False


EACH_TRANSPORT = pytest.fixture(
    params=["websocket", "frames"], autouse=True, scope="module", name="transport"
)


class Talk:
    """One connection, past its greeting."""

    def __init__(self, socket: ClientConnection) -> None:
        self.socket = socket
        self.hello = wire.decode_hello(socket.recv())

    def send(self, *requests: tuple[int, Command[Any]]) -> None:
        """One frame of requests."""
        self.socket.send(wire.encode_requests(list(requests)))

    def frame(self) -> list[tuple[int, Any]]:
        """The answers of the next frame, in their order."""
        return wire.decode_answers(self.socket.recv())

    def answers(self, count: int) -> dict[int, Any]:
        """So many answers, by number; results are decoded without their types."""
        found: dict[int, Any] = {}
        while len(found) < count:
            for number, raw in self.frame():
                assert number not in found
                found[number] = raw if isinstance(raw, MillstreamError) else plain(raw)
        return found

    def ask(self, command: Command[Any]) -> Any:
        """One request and its answer, with its type; an error is raised."""
        self.send((0, command))
        ((number, found),) = self.frame()
        assert number == 0
        if isinstance(found, MillstreamError):
            raise found
        return wire.decode_result(command, found)

    def ending(self) -> tuple[int, str]:
        """The code and reason with which the server closes."""
        try:
            while True:
                self.socket.recv()
        except ConnectionClosed as closed:
            return _told(closed)

    def one_answer(self) -> Any:
        """The only answer, or the code with which the server closes instead."""
        try:
            (found,) = self.answers(1).values()
        except ConnectionClosed as closed:
            return _told(closed)[0]
        return found


def _told(closed: ConnectionClosed) -> tuple[int, str]:
    if closed.rcvd is None:
        raise closed
    return closed.rcvd.code, closed.rcvd.reason


@contextmanager
def talking(server: Serving, **options: Any) -> Iterator[Talk]:
    """A connection to a server: a WebSocket, or with `by_frames` our own frames."""
    if by_frames:
        assert not options, "frames have no options"
        with framed(server) as bare:
            yield Talk(bare)  # type: ignore[arg-type]
        return
    settings: dict[str, Any] = {
        "subprotocols": [wire.SUBPROTOCOL],
        "compression": None,
        "open_timeout": SOON_S,
    }
    with connect(server.socket_url, max_size=None, **(settings | options)) as socket:
        yield Talk(socket)


def plain(raw: Any) -> Any:
    """An answer without its type."""
    return msgspec.msgpack.decode(raw)


def single(value: Any, **columns: Any) -> Single:
    """One packed record."""
    given = {"key": None, "headers": None, "timestamp": None} | columns
    return pack_single(value, limits=Limits(), **given)


def batch(values: list[Any], **columns: Any) -> Batch:
    """Several packed records."""
    given = {"keys": None, "headers": None, "timestamps": None} | columns
    return pack_batch(values, limits=Limits(), **given)
