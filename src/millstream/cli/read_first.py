"""A bucket as commands use it: opened to read, and to write only once something is written.

Opening a bucket to write fences its writer, such as a server that runs. So a command that only reads
must not, and which commands write is known here by what they ask, not by their names.
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
    """A session that opens its bucket when it is first asked, and to write when it first must.

    From then on the writer answers reads, too: it sees at once what it has written.
    """

    def __init__(self, place: str, *, create: bool) -> None:
        self._place, self._create = place, create
        self._lock = threading.Lock()
        self._opened: dict[Mode, EmbeddedSession] = {}
        self.limits = Limits()
        self.clock = SystemClock()

    def execute(self, command: Command[T]) -> T:
        """Answer a command; the first one that writes fences the writer before."""
        return self._session("rw" if command.writes else "r").execute(command)

    def close(self) -> None:
        """Close what was opened."""
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
        """Open the bucket; one that is to be read and may be missing is made."""
        try:
            store = open_file(self._place, mode=mode, create=self._create)
        except CannotOpen:
            if mode == "rw" or not self._create:
                raise
            return self._open("rw")  # if it was refused for another reason, it is again
        self._opened[mode] = EmbeddedSession(store)
        return mode
