"""Codecs: how frames travel to a server and back, as state machines without I/O.

A client asks first for Millstream's own frames on a bare connection. A WebSocket carries the same
frames through proxies that do not know that upgrade. Both codecs take received bytes and return
frames.
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
"""The largest frame of answers: four batches of the largest permitted size."""

HEAD_BYTES_MAX = 64 * 1024
"""The largest head of an answer to an upgrade request."""


class Refused(Exception):
    """The server answered the upgrade request with another status."""

    def __init__(self, status: int) -> None:
        super().__init__(f"status {status}")
        self.status = status


class ConnectionLost(Exception):
    """The connection was cut, by the server or on the way."""


class Goodbye(Exception):
    """The server has ended the connection, or its bytes cannot be read."""


class Codec(ABC):
    """The protocol of a connection: first the upgrade, then frames."""

    is_open = False
    """Whether the upgrade was granted."""

    @abstractmethod
    def request(self) -> bytes:
        """Return the bytes of the upgrade request."""

    @abstractmethod
    def feed(self, data: bytes) -> list[bytes]:
        """Take received bytes, and return the complete frames.

        Raises `Refused` before the upgrade, `Goodbye` when the server ends the connection,
        `InvalidInput` for bytes that are neither an answer nor a frame.
        """

    @abstractmethod
    def frame(self, data: bytes) -> bytes:
        """Return the bytes of a frame."""

    @abstractmethod
    def ping(self) -> bytes:
        """Return the bytes of a ping."""

    @abstractmethod
    def goodbye(self) -> bytes:
        """Return the bytes of the last frame."""

    @abstractmethod
    def replies(self) -> bytes:
        """Return the bytes that the codec itself must send, such as a pong, or b""."""


class FrameCodec(Codec):
    """Millstream's own frames (`framing`)."""

    def __init__(self, address: Address) -> None:
        self._address = address
        self._head = b""
        self._unframer = Unframer(ANSWER_BYTES_MAX)
        self._replies = b""

    def request(self) -> bytes:
        """Return the request for the upgrade to `millstream`."""
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
        """Take bytes of the answer, then of frames."""
        if not self.is_open:
            data = self._past_answer(data)
        frames: list[bytes] = []
        try:
            received = self._unframer.feed(data)
        except BadFrame as error:
            raise InvalidInput(error.reason) from error
        for kind, body in received:
            if kind == framing.DATA:
                frames.append(body)
            elif kind == framing.PING:
                self._replies += framing.frame(body, framing.PONG)
            elif kind == framing.CLOSE and not frames:
                code, reason = framing.read_close(body)
                raise Goodbye(f"the server ended it: {reason or code}")
        return frames

    def frame(self, data: bytes) -> bytes:
        """Return a data frame."""
        return framing.frame(data)

    def ping(self) -> bytes:
        """Return a ping frame."""
        return framing.frame(b"", framing.PING)

    def goodbye(self) -> bytes:
        """Return a close frame."""
        return framing.close_frame(1000, "")

    def replies(self) -> bytes:
        """Return pongs."""
        replies, self._replies = self._replies, b""
        return replies

    def _past_answer(self, data: bytes) -> bytes:
        """Return the bytes behind the answer's head; empty until the head is complete."""
        self._head += data
        head, end, remainder = self._head.partition(b"\r\n\r\n")
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
        return remainder


class WebSocketCodec(Codec):
    """The frames of RFC 6455, by the state machine of `websockets`."""

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
        self._fragments: list[bytes] = []

    def request(self) -> bytes:
        """Return the request for the upgrade to WebSocket."""
        request = self._machine.connect()
        request.headers.update(self._address.headers())
        self._machine.send_request(request)
        return self.replies()

    def feed(self, data: bytes) -> list[bytes]:
        """Take bytes of the answer, then of frames."""
        from websockets.exceptions import InvalidStatus

        machine = self._machine
        machine.receive_data(data) if data else machine.receive_eof()
        if (failed := machine.handshake_exc) is not None:
            if isinstance(failed, InvalidStatus):
                raise Refused(failed.response.status_code)
            raise InvalidInput(str(failed)) from failed
        frames = self._frames(machine.events_received())
        if not frames and machine.parser_exc is not None:
            raise InvalidInput(str(machine.parser_exc))
        if not frames and machine.close_rcvd is not None:
            raise Goodbye(f"the server ended it: {machine.close_rcvd.reason}")
        return frames

    def frame(self, data: bytes) -> bytes:
        """Return a binary message."""
        self._machine.send_binary(data)
        return self.replies()

    def ping(self) -> bytes:
        """Return a ping frame."""
        self._machine.send_ping(b"")
        return self.replies()

    def goodbye(self) -> bytes:
        """Return a close frame."""
        self._machine.send_close(1000)
        return self.replies()

    def replies(self) -> bytes:
        """Return the bytes that the state machine must send."""
        return b"".join(self._machine.data_to_send())

    def _frames(self, events: list[Any]) -> list[bytes]:
        from websockets.frames import Frame, Opcode

        frames: list[bytes] = []
        for event in events:
            if not isinstance(event, Frame):
                self._opened()
            elif event.opcode in (Opcode.BINARY, Opcode.TEXT, Opcode.CONT):
                self._fragments.append(bytes(event.data))
                if event.fin:
                    frames.append(b"".join(self._fragments))
                    self._fragments.clear()
        return frames

    def _opened(self) -> None:
        if self._machine.subprotocol != wire.SUBPROTOCOL:
            raise InvalidInput(f"it does not speak {wire.SUBPROTOCOL}")
        self.is_open = True


def _silent() -> logging.Logger:
    """Return a disabled logger for the state machine, which would log the token."""
    logger = logging.Logger("millstream.remote.transport")
    logger.disabled = True
    return logger
