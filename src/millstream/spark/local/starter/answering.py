"""Runs a module as a worker of Spark, and connects to Java before it is imported.

Java gives the process that plans a stream ten seconds to connect. Its imports take more than a second
of a processor, and on a busy machine ten. `python answering.py -m MODULE`
"""

from __future__ import annotations

import os
import runpy
import socket
import sys
from contextlib import suppress
from typing import Any

VARIABLE = "PYTHON_WORKER_FACTORY_SOCK_PATH"
"""Spark says here where Java listens."""


def connect_ahead(path: str) -> None:
    """Connect now; the module's own call of `connect` gets this connection."""
    ahead = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    ahead.connect(path)
    connect = socket.socket.connect

    def take(own: socket.socket, address: Any) -> None:
        if address != path:
            connect(own, address)
            return
        os.dup2(ahead.fileno(), own.fileno(), inheritable=False)
        ahead.close()
        socket.socket.connect = connect  # type: ignore[method-assign]

    socket.socket.connect = take  # type: ignore[assignment,method-assign]


def main() -> None:
    """Connect, then do what `python -m MODULE` does."""
    with suppress(OSError):  # then the module tries, and says what is wrong
        connect_ahead(os.environ[VARIABLE])
    sys.path[0] = os.getcwd()
    sys.argv = sys.argv[2:]
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
