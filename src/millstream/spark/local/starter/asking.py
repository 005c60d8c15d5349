"""Asks the fork server for a process that has imported everything: `python -I -S asking.py -m MODULE …`

Run in the place of a worker. It stays until the forked process has ended, and ends as that did; Java
knows no other. Where there is no server, or it refuses, the worker is started plainly.
"""

from __future__ import annotations

import os
import socket
import sys
import time

SERVER_VARIABLE = "MILLSTREAM_FORK_SERVER"
"""Where the fork server listens."""
PYTHON_VARIABLE = "MILLSTREAM_PYTHON"
JAVA_WAITS_VARIABLE = "PYTHON_WORKER_FACTORY_SOCK_PATH"
"""Set where Java gives the process ten seconds to connect."""
READY, REFUSED, FORKED = b"r", b"n", b"y"
READY_S, READY_WHILE_JAVA_WAITS_S = 60.0, 3.0
"""How long a server may still be importing."""
LOOK_S = 0.5


def main() -> None:
    """Let the server fork, and wait; or start plainly."""
    given = sys.argv[1:]
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as server:
        child = ask(server, given)
        if child:
            sys.exit(wait(server, child))
    python = os.environ[PYTHON_VARIABLE]
    if os.environ.get(JAVA_WAITS_VARIABLE):
        given.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "answering.py"))
    os.execv(python, [python, *given])


def ask(server: socket.socket, given: list[str]) -> int:
    """The id of a process that has our files, environment and directory; 0 if there is none.

    Nothing is asked of a server that does not say in time that it is ready: an answer that comes
    too late would be a second worker.
    """
    waits = os.environ.get(JAVA_WAITS_VARIABLE)
    server.settimeout(READY_WHILE_JAVA_WAITS_S if waits else READY_S)
    try:
        server.connect(os.environ[SERVER_VARIABLE])
        if server.recv(1) != READY:
            return 0
        server.settimeout(None)
        asked = encode(os.getcwd(), given, dict(os.environ))
        socket.send_fds(server, [len(asked).to_bytes(8, "little")], [0, 1, 2])
        server.sendall(asked)
        if server.recv(1) != FORKED:
            return 0
        return int.from_bytes(server.recv(8, socket.MSG_WAITALL), "little")
    except OSError:
        return 0


def encode(directory: str, given: list[str], environ: dict[str, str]) -> bytes:
    """What is asked for, as bytes: nothing of it can contain a zero."""
    pairs = [f"{name}={value}" for name, value in environ.items()]
    return b"\0".join(map(os.fsencode, [directory, str(len(given)), *given, *pairs]))


def wait(server: socket.socket, child: int) -> int:
    """The code that the child ends with; it is waited for also without the server."""
    try:
        if code := server.recv(1):
            return code[0]
    except OSError:
        pass
    while True:
        try:
            os.kill(child, 0)
        except ProcessLookupError:
            return 0
        time.sleep(LOOK_S)


if __name__ == "__main__":
    main()
