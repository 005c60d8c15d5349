"""A bucket that is opened for reading first, and for writing with the first command that writes.

Opening a bucket for writing fences its writer, such as a running server. A command that only reads
must not do that. The session decides by the store commands it gets, not by the name of the command.
"""

from __future__ import annotations

import threading
from typing import TypeVar

from millstream.clock import SystemClock
from millstream.command import Command, Session
from millstream.embedded.session import EmbeddedSession, open_file
from millstream.engine.protocol import Mode
from millstream.errors import CannotOpen
from millstream.limits import Limits

T = TypeVar("T")


class ReadFirst:
    """A session that opens its bucket on first use, and for writing with the first write.

    From then on the writer answers reads, too, so that reads see the writes.
    """

    def __init__(self, place: str, *, create: bool) -> None:
        self._place, self._create = place, create
        self._lock = threading.Lock()
        self._opened: dict[Mode, EmbeddedSession] = {}
        self.limits = Limits()
        self.clock = SystemClock()

    def execute(self, command: Command[T]) -> T:
        """Answer a command; the first command that writes fences the previous writer."""
        return self._session("rw" if command.writes else "r").execute(command)

    def close(self) -> None:
        """Close all opened stores."""
        with self._lock:
            for session in self._opened.values():
                session.close()

    def _session(self, mode: Mode) -> Session:
        with self._lock:
            if (writer := self._opened.get("rw")) is not None:
                return writer
            if mode not in self._opened:
                mode = self._open(mode)
            return self._opened[mode]

    def _open(self, mode: Mode) -> Mode:
        """Open the bucket; create a missing bucket if that is allowed."""
        try:
            store = open_file(self._place, mode=mode, create=self._create)
        except CannotOpen:
            if mode == "rw" or not self._create:
                raise
            return self._open("rw")  # fails again if the bucket was refused for another reason
        self._opened[mode] = EmbeddedSession(store)
        return mode
