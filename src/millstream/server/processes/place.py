"""The place of a server process in its group: its number, and what the group hands to the process.

A process finds its place in an environment variable. The listening socket, the pipe to the group and
the file of shared figures are inherited.
"""

from __future__ import annotations

import os
import socket
from collections.abc import MutableMapping

import msgspec
from msgspec import Struct

VARIABLE = "MILLSTREAM_SERVER_PROCESS"

READY = b"ready"
"""What a process sends to its group when it serves."""


class ProcessPlace(Struct, frozen=True, kw_only=True):
    """The place of one process in a group of server processes."""

    number: int
    """From 1 to `count`."""
    count: int
    listening_fd: int
    """The listening socket, which all processes share."""
    group_fd: int
    """A socket to the group: the process sends `READY`, and stops when the group has gone."""
    figures_fd: int
    """The file of `SharedFigures`."""

    def encoded(self) -> str:
        """Return the value of the environment variable."""
        return msgspec.json.encode(self).decode()

    def listening(self) -> socket.socket:
        """Return the shared listening socket."""
        listening = socket.socket(fileno=self.listening_fd)
        listening.setblocking(False)
        return listening

    def tell_ready(self) -> None:
        """Tell the group that this process serves."""
        try:
            os.write(self.group_fd, READY)
        except OSError:
            pass  # the group has gone: the end of the socket stops this process

    @property
    def descriptors(self) -> tuple[int, int, int]:
        """The descriptors that the process inherits."""
        return self.listening_fd, self.group_fd, self.figures_fd


def take_place(variables: MutableMapping[str, str] = os.environ) -> ProcessPlace | None:
    """Return the place of this process; None for a server that is alone.

    The variable is removed: a child of this process has no place in the group.
    """
    text = variables.pop(VARIABLE, "")
    return msgspec.json.decode(text, type=ProcessPlace) if text else None
