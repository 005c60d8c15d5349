"""Socket activation: the port that a service manager (systemd) has opened for this process.

The service manager passes listening sockets as file descriptors from 3 on, and says so in LISTEN_FDS
and LISTEN_PID. Connections that arrive while the server restarts wait in the socket.
"""

from __future__ import annotations

import os
import socket
from collections.abc import MutableMapping

from millstream.errors import InvalidInput

FIRST_FD = 3


def inherited_socket(
    variables: MutableMapping[str, str] = os.environ, *, first_fd: int = FIRST_FD
) -> socket.socket | None:
    """Return the socket that the service manager passed to this process; None without one.

    The variables are removed, so that child processes do not take the socket for theirs. Raises
    `InvalidInput` unless there is exactly one listening TCP socket.
    """
    pid, count = variables.pop("LISTEN_PID", ""), variables.pop("LISTEN_FDS", "")
    variables.pop("LISTEN_FDNAMES", None)
    if pid != str(os.getpid()) or not count.isdecimal() or count == "0":
        return None
    if count != "1":
        raise InvalidInput(
            f"the service manager passed {count} sockets, and the server listens on one port: use one "
            "ListenStream= in the .socket unit"
        )
    listening = socket.socket(fileno=first_fd)
    listening.set_inheritable(False)
    is_tcp = listening.family in (socket.AF_INET, socket.AF_INET6)
    if not is_tcp or not listening.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
        listening.close()
        raise InvalidInput(
            "the service manager passed a socket that is no listening TCP socket: use ListenStream= "
            "with a port, such as 127.0.0.1:8080, and Accept=no"
        )
    listening.setblocking(False)
    return listening
