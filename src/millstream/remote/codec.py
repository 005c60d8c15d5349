"""Codecs: how frames travel to a server and back, as machines without I/O.

Frames of our own on a bare connection are asked for first. A WebSocket carries the same through
whatever in between does not know that upgrade. Both take the bytes that came and give frames.
"""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from typing import Any

from millstream.errors import InvalidInput
from millstream.remote.address import Address
from millstream.wire import commands as wire
from millstream.wire import framing
from millstream.wire.framing import BadFrame, Unframer

ANSWER_BYTES_MAX = 256 * 1024 * 1024
"""Of a frame of answers: four batches of the largest permitted size."""

HEAD_BYTES_MAX = 64 * 1024
"""Of the answer to a request for an upgrade, up to its end."""


class Refused(Exception):
    """The request for an upgrade was answered by another status."""

    def __init__(self, status: int) -> None:
        super().__init__(f"status {status}")
        self.status = status


class LineLost(Exception):
    """The connection was cut, by the other side or on the way."""


class Goodbye(Exception):
    """The server has said that this is the end, or what it sends cannot be read."""


class Codec(ABC):
    """One connection's way of speaking: first the upgrade, then frames."""

    is_open = False
    """Whether the upgrade was granted."""

    @abstractmethod
    def request(self) -> bytes:
        """The request for the upgrade, as it is sent."""

    @abstractmethod
    def feed(self, data: bytes) -> list[bytes]:
        """Take bytes that came; the frames that are whole by now.

        Raises `Refused` before it is open, `Goodbye` when the server ends it, `InvalidInput` if what
        comes is neither an answer nor a frame.
        """

    @abstractmethod
    def frame(self, data: bytes) -> bytes:
        """A frame, as it is sent."""

    @abstractmethod
    def ping(self) -> bytes:
        """A question whether the server is there, as it is sent."""

    @abstractmethod
    def goodbye(self) -> bytes:
        """The last frame, as it is sent."""

    @abstractmethod
    def replies(self) -> bytes:
        """What the server has to be told by itself, such as a pong; empty if nothing."""


class FrameCodec(Codec):
    """Frames of our own (`framing`)."""

    def __init__(self, address: Address) -> None:
        self._address = address
        self._head = b""
        self._unframer = Unframer(ANSWER_BYTES_MAX)
        self._replies = b""

    def request(self) -> bytes:
        """Ask for the upgrade to `millstream`."""
        address = self._address
        lines = [
            f"GET {address.target} HTTP/1.1",
            f"Host: {address.host_header}",
            "Connection: Upgrade",
            f"Upgrade: {framing.UPGRADE}",
            *(f"{name}: {value}" for name, value in address.headers().items()),
        ]
        return "\r\n".join([*lines, "", ""]).encode()

    def feed(self, data: bytes) -> list[bytes]:
        """Frames; before them the answer to the request."""
        if not self.is_open:
            data = self._past_answer(data)
        found: list[bytes] = []
        try:
            came = self._unframer.feed(data)
        except BadFrame as error:
            raise InvalidInput(error.reason) from error
        for kind, some in came:
            if kind == framing.DATA:
                found.append(some)
            elif kind == framing.PING:
                self._replies += framing.frame(some, framing.PONG)
            elif kind == framing.CLOSE and not found:
                code, reason = framing.read_close(some)
                raise Goodbye(f"the server ended it: {reason or code}")
        return found

    def frame(self, data: bytes) -> bytes:
        """A frame of data."""
        return framing.frame(data)

    def ping(self) -> bytes:
        """A ping."""
        return framing.frame(b"", framing.PING)

    def goodbye(self) -> bytes:
        """A close frame."""
        return framing.close_frame(1000, "")

    def replies(self) -> bytes:
        """Pongs."""
        found, self._replies = self._replies, b""
        return found

    def _past_answer(self, data: bytes) -> bytes:
        """What came behind the answer's head; empty if that is not whole yet."""
        self._head += data
        head, end, rest = self._head.partition(b"\r\n\r\n")
        if not end:
            if len(head) > HEAD_BYTES_MAX:
                raise InvalidInput("an answer without an end")
            return b""
        first, *lines = head.decode("latin-1").split("\r\n")
        version, _, status = first.partition(" ")
        if not version.startswith("HTTP/1.") or not status[:3].isdecimal():
            raise InvalidInput("it does not speak HTTP")
        names = {
            name.strip().lower(): value for name, _, value in (x.partition(":") for x in lines)
        }
        if status[:3] != "101":
            raise Refused(int(status[:3]))
        if names.get("upgrade", "").strip().lower() != framing.UPGRADE:
            raise InvalidInput("it answers with another upgrade than was asked for")
        self.is_open, self._head = True, b""
        return rest


class WebSocketCodec(Codec):
    """The frames of RFC 6455, by the machine of `websockets`."""

    def __init__(self, address: Address) -> None:
        from websockets.client import ClientProtocol
        from websockets.typing import Subprotocol
        from websockets.uri import parse_uri

        self._address = address
        self._machine = ClientProtocol(
            parse_uri(address.socket_url),
            subprotocols=[Subprotocol(wire.SUBPROTOCOL)],
            max_size=ANSWER_BYTES_MAX,
            logger=_silent(),
        )
        self._parts: list[bytes] = []

    def request(self) -> bytes:
        """Ask for the upgrade to WebSocket."""
        request = self._machine.connect()
        request.headers.update(self._address.headers())
        self._machine.send_request(request)
        return self.replies()

    def feed(self, data: bytes) -> list[bytes]:
        """Frames; before them the answer to the request."""
        from websockets.exceptions import InvalidStatus

        machine = self._machine
        machine.receive_data(data) if data else machine.receive_eof()
        if (failed := machine.handshake_exc) is not None:
            if isinstance(failed, InvalidStatus):
                raise Refused(failed.response.status_code)
            raise InvalidInput(str(failed)) from failed
        found = self._frames(machine.events_received())
        if not found and machine.parser_exc is not None:
            raise InvalidInput(str(machine.parser_exc))
        if not found and machine.close_rcvd is not None:
            raise Goodbye(f"the server ended it: {machine.close_rcvd.reason}")
        return found

    def frame(self, data: bytes) -> bytes:
        """A binary message."""
        self._machine.send_binary(data)
        return self.replies()

    def ping(self) -> bytes:
        """A ping."""
        self._machine.send_ping(b"")
        return self.replies()

    def goodbye(self) -> bytes:
        """A close frame."""
        self._machine.send_close(1000)
        return self.replies()

    def replies(self) -> bytes:
        """Whatever the machine has to send."""
        return b"".join(self._machine.data_to_send())

    def _frames(self, events: list[Any]) -> list[bytes]:
        from websockets.frames import Frame, Opcode

        found: list[bytes] = []
        for event in events:
            if not isinstance(event, Frame):
                self._opened()
            elif event.opcode in (Opcode.BINARY, Opcode.TEXT, Opcode.CONT):
                self._parts.append(bytes(event.data))
                if event.fin:
                    found.append(b"".join(self._parts))
                    self._parts.clear()
        return found

    def _opened(self) -> None:
        if self._machine.subprotocol != wire.SUBPROTOCOL:
            raise InvalidInput(f"it does not speak {wire.SUBPROTOCOL}")
        self.is_open = True


def _silent() -> logging.Logger:
    """A logger for the machine, which would log headers, and with them the token."""
    logger = logging.Logger("millstream.remote.transport")
    logger.disabled = True
    return logger
