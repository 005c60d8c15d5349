"""Framing: frames on a bare connection, after an upgrade to `millstream`. Pure.

    frame     kind (u8) | length (u32, little-endian) | so many bytes

    0 data    a frame of requests, of answers, or the greeting (see `wire`)
    1 close   code (u16, little-endian), and a reason in UTF-8: the last frame of its sender
    2 ping    is answered by a pong with the same bytes, at most 125
    3 pong

A WebSocket carries the same frames with more work: each frame is masked, and the parser has many
states. So Millstream's clients ask for these frames first, and for a WebSocket only if a proxy does
not let them through.
"""

from __future__ import annotations

from struct import Struct

UPGRADE = "millstream"
"""The name of the protocol in an upgrade request."""

DATA, CLOSE, PING, PONG = range(4)

CONTROL_BYTES_MAX = 125
"""The limit of a control frame's bytes."""

COPIED_BYTES_MAX = 16 * 1024

HEAD = Struct("<BI")
_CODE = Struct("<H")


class BadFrame(Exception):
    """Bytes that are no frame, or a frame that is too large: the connection cannot continue."""

    def __init__(self, reason: str, *, is_too_large: bool = False) -> None:
        super().__init__(reason)
        self.reason = reason
        self.is_too_large = is_too_large


def frame(data: bytes, kind: int = DATA) -> bytes:
    """Encode a frame."""
    return HEAD.pack(kind, len(data)) + data


def pieces(data: bytes) -> tuple[bytes, ...]:
    """Encode a data frame in pieces, so that a large frame is not copied."""
    if len(data) <= COPIED_BYTES_MAX:
        return (HEAD.pack(DATA, len(data)) + data,)
    return HEAD.pack(DATA, len(data)), data


def close_frame(code: int, reason: str) -> bytes:
    """Encode a close frame with its reason."""
    cut = reason.encode()[: CONTROL_BYTES_MAX - _CODE.size].decode(errors="ignore")
    return frame(_CODE.pack(code) + cut.encode(), CLOSE)


def read_close(data: bytes) -> tuple[int, str]:
    """Decode the code and the reason of a close frame."""
    if len(data) < _CODE.size:
        return 1005, ""
    return _CODE.unpack_from(data)[0], data[_CODE.size :].decode(errors="replace")


class Unframer:
    """Decodes frames from received bytes, in pieces of any size."""

    __slots__ = ("_buffer", "_bytes_max", "_needed")

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._buffer = bytearray()
        self._needed = HEAD.size
        """Bytes that the buffer needs before decoding can go on."""

    @property
    def is_between(self) -> bool:
        """Whether the buffer holds no incomplete frame."""
        return not self._buffer

    def feed(self, data: bytes) -> list[tuple[int, bytes]]:
        """Return the complete frames, each with its kind. Raises `BadFrame`."""
        if not self._buffer and len(data) >= HEAD.size:
            kind, length = HEAD.unpack_from(data)
            if kind != DATA or length > self._bytes_max:
                self._check(kind, length)
            if len(data) == HEAD.size + length:  # the common case: a piece is exactly a frame
                return [(kind, data[HEAD.size :])]
        self._buffer += data
        return self._take() if len(self._buffer) >= self._needed else []

    def _take(self) -> list[tuple[int, bytes]]:
        frames: list[tuple[int, bytes]] = []
        buffer, at = self._buffer, 0
        self._needed = HEAD.size
        while len(buffer) - at >= HEAD.size:
            kind, length = HEAD.unpack_from(buffer, at)
            self._check(kind, length)
            end = at + HEAD.size + length
            if end > len(buffer):
                self._needed = end - at
                break
            frames.append((kind, bytes(memoryview(buffer)[at + HEAD.size : end])))
            at = end
        del buffer[:at]
        return frames

    def _check(self, kind: int, length: int) -> None:
        if kind > PONG:
            raise BadFrame(f"a frame of kind {kind}; there are 0 to {PONG}")
        if length > (CONTROL_BYTES_MAX if kind else self._bytes_max):
            raise BadFrame(f"a frame of {length:,} bytes is too large", is_too_large=True)
