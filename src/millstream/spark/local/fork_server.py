"""Starts the fork server of Spark's workers (`spark/local/starter/forking.py`), once in a process.

It imports while Java starts, so that it is ready when Spark asks for its first worker. It is used on
Linux only, and only where workers are started by our script.
"""

from __future__ import annotations

import atexit
import os
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Mapping, MutableMapping

from millstream.spark.local.interpreter import STARTER
from millstream.spark.local.starter.asking import SERVER_VARIABLE

MODULE = "millstream.spark.local.starter.forking"
_NO_THREADS = {"JE_ARROW_MALLOC_CONF": "background_thread:false", "OMP_NUM_THREADS": "1"}
"""Libraries that would start threads as they are imported; Spark sets the second for workers too."""


class ForkServerProcess:
    """A running fork server; it ends with `end`, or with this process."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        self._owner = os.getpid()
        self._directory = tempfile.mkdtemp(prefix="millstream-")
        self.address = os.path.join(self._directory, "fork.sock")
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
            listener.bind(self.address)
            listener.listen(128)
            self.process = _start(listener, environ)
        atexit.register(self.end)

    def is_running(self) -> bool:
        """Whether this process has started it, and it has not ended."""
        return self._owner == os.getpid() and self.process.poll() is None

    def end(self) -> None:
        """End it; workers that it has forked go on."""
        if self._owner != os.getpid():  # a fork of the driver
            return
        atexit.unregister(self.end)
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.terminate()
        self.process.wait()
        shutil.rmtree(self._directory, ignore_errors=True)


_running: ForkServerProcess | None = None


def fork_workers(environ: MutableMapping[str, str]) -> None:
    """Let workers of the Spark that is started next with this environment be forked."""
    global _running
    if sys.platform != "linux" or environ.get("PYSPARK_PYTHON") != str(STARTER):
        return
    if _running is None or not _running.is_running():
        _running = ForkServerProcess(environ)
    environ[SERVER_VARIABLE] = _running.address


def _start(listener: socket.socket, environ: Mapping[str, str]) -> subprocess.Popen[bytes]:
    seed = environ.get("PYTHONHASHSEED", "0")  # as Spark sets it for workers
    return subprocess.Popen(
        [sys.executable, "-u", "-m", MODULE, str(listener.fileno())],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        env=_NO_THREADS | dict(environ) | {"PYTHONHASHSEED": seed},
        pass_fds=[listener.fileno()],
        start_new_session=True,
    )
