"""Reading ahead: payload blocks that are read in order are fetched several at a time.

A block that is read alone costs one request, and a claim fetches only what it hands out. A reader
that goes on to later blocks gets two and then eight at once. One that still goes on gets a stream:
SlateDB has several requests on their way while the reader works. Measured with 300 ms in every
request: half a million records in 2.0 s instead of 8.8 s.
"""

from __future__ import annotations

import threading
from typing import Any

from millstream.engine.slate.binding import Binding, Cell
from millstream.format import keys

STEPS = (2, 8)
STREAMED = 32
"""Blocks that are taken from a stream at once."""

BYTES_MAX = 8 * 1024 * 1024
"""How many bytes are fetched at once, by the size of the last block."""

_STOP = keys.range_of(keys.prefix(keys.PAYLOAD_BLOCK))[1]


class ReadAhead:
    """Blocks of one image that were fetched before they were asked for."""

    def __init__(self, binding: Binding, view: Any) -> None:
        self._binding, self._view = binding, view
        self._lock = threading.Lock()
        self._rows: dict[bytes, Cell] = {}
        self._last, self._size, self._step = b"", 1, 0
        self._stream: Any = None

    def get(self, key: bytes) -> Cell | None:
        """The payload block under a key."""
        if not self._lock.acquire(blocking=False):
            return self._binding.get(self._view, key)  # another thread reads in an order of its own
        try:
            cell = self._found(key)
            if cell is not None:
                self._last, self._size = key, len(cell)
            return cell
        finally:
            self._lock.release()

    def _found(self, key: bytes) -> Cell | None:
        if key in self._rows:
            return self._rows.pop(key)
        goes_on = self._last < key and bool(self._last)
        if goes_on and not self._rows:
            self._rows = dict(self._next(key))
            if key in self._rows:
                return self._rows.pop(key)
        self._rows, self._step, self._stream = {}, 0, None
        return self._binding.get(self._view, key)

    def _next(self, key: bytes) -> list[tuple[bytes, Cell]]:
        """Blocks from a key on, more with each step."""
        binding, view, most = self._binding, self._view, max(1, BYTES_MAX // self._size)
        if self._step < len(STEPS):
            self._step += 1
            return binding.scan(view, key, _STOP, min(STEPS[self._step - 1], most))
        stream, self._stream = self._stream, None
        if stream is None:
            stream = binding.begin(view, key, _STOP, "stream")
        limit = min(STREAMED, most)
        found = binding.following(stream, limit)
        if len(found) == limit:
            self._stream = stream
        return found
