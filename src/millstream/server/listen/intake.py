"""Intake: the bytes of one connection on their way to its parser, a few frames per turn of the loop.

The loop hands over up to 256 KiB at once. In tiny frames that is tens of thousands of them, and all
other connections would wait until the last one is handled. So the bytes are parsed in slices. Once a
turn has had its frames, the connection is not read, and the next turn goes on.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Protocol

FRAMES_PER_TURN = 64
"""The most frames of a connection that one turn of the event loop handles."""


class PausableTransport(Protocol):
    """The part of a transport that an intake needs."""

    def pause_reading(self) -> None:
        """Read nothing more for now."""

    def resume_reading(self) -> None:
        """Read on."""

    def is_closing(self) -> bool:
        """Whether the connection ends."""


class Intake:
    """The bytes of one connection that are not parsed yet; lives in one event loop."""

    __slots__ = ("_held", "_loop", "_may_read", "_parse", "_slice_bytes", "_transport")

    def __init__(
        self,
        transport: PausableTransport,
        parse: Callable[[bytes], int],
        *,
        slice_bytes: int,
        may_read: Callable[[], bool],
    ) -> None:
        """Connect a transport with a parser.

        `parse` takes bytes and returns the number of frames; `may_read` says whether the protocol
        wants to read on.
        """
        self._transport = transport
        self._parse = parse
        self._slice_bytes = slice_bytes
        self._may_read = may_read
        self._loop = asyncio.get_running_loop()
        self._held = b""

    def resume_reading(self) -> None:
        """Read on; if bytes wait for the parser, reading goes on after them."""
        if not (self._held or self._transport.is_closing()):
            self._transport.resume_reading()

    def feed(self, data: bytes) -> None:
        """Parse bytes, up to the frames of one turn."""
        if self._held:
            self._held += data
            self._transport.pause_reading()
            return
        if len(data) <= self._slice_bytes and self._parse(data) < FRAMES_PER_TURN:
            return
        if len(data) > self._slice_bytes:
            self._held = data
            self._go_on(is_first=True)

    def _go_on(self, *, is_first: bool = False) -> None:
        """Parse slices until the turn has had its frames."""
        data, at, frames = self._held, 0, 0
        while at < len(data) and frames < FRAMES_PER_TURN:
            if self._transport.is_closing():
                self._held = b""
                return
            frames += self._parse(data[at : at + self._slice_bytes])
            at += self._slice_bytes
        self._held = data[at:]
        if self._held:
            self._transport.pause_reading()
            self._loop.call_soon(self._go_on)
        elif not is_first and self._may_read():
            self.resume_reading()
