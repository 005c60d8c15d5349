"""The fork server: imports what Spark's workers need once, and forks each of them.

`python -u -m millstream.spark.local.starter.forking DESCRIPTOR`, where the descriptor is that of a listening
socket. It ends when its standard input does, which the driver holds. Spark starts eight processes
for the first row that it reads; each would import all of it, and compile it too where no compiled
modules are kept.

A worker gets the files, the environment and the directory of the process that asks (`asking.py`). One
that would have found other modules, or whose variables are read while modules are imported, is
refused and starts plainly. So is every one if an import has started a thread: only a process with one
thread can be forked safely.
"""

from __future__ import annotations

import gc
import os
import runpy
import selectors
import shutil
import signal
import socket
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from importlib import import_module
from typing import Any

from millstream.spark.local.starter.asking import FORKED, PYTHON_VARIABLE, READY, REFUSED

AHEAD = (
    "pyspark.worker",
    "pyspark.sql.worker.lookup_data_sources",
    "pyspark.sql.worker.create_data_source",
    "pyspark.sql.worker.plan_data_source_read",
    "pyspark.sql.worker.data_source_pushdown_filters",
    "pyspark.sql.worker.write_into_data_source",
    "pyspark.sql.worker.commit_data_source_write",
    "pyspark.sql.datasource_internal",
    "millstream.spark.source.source",
    "millstream.spark.source.reader",
    "millstream.spark.source.queue_reader",
    "millstream.spark.source.stream",
    "millstream.spark.sink.writer",
    "millstream.spark.sink.assignment",
)
"""What workers import. Modules that Spark runs as programs are not among them."""

REQUEST_S = 10.0
"""How long a process that asks may take to send what it asks for."""
_ENDED_BY_SIGNAL = 128
_READ_AT_START = ("LANG", "LC_", "LD_", "ARROW_", "OPENBLAS_", "MKL_")


@dataclass(frozen=True, slots=True)
class Request:
    """A worker that is asked for: `python -m given[1] …` in a directory and an environment."""

    directory: str
    given: list[str]
    environ: dict[str, str]


def decode(asked: bytes) -> Request:
    """What `asking.encode` has made."""
    directory, count, *rest = map(os.fsdecode, asked.split(b"\0"))
    pairs = (pair.partition("=") for pair in rest[int(count) :])
    environ = {name: value for name, _, value in pairs}
    return Request(directory, rest[: int(count)], environ)


def fits(asked: Request, own: Mapping[str, str]) -> bool:
    """Whether a process that is started plainly would have imported the same."""
    environ = asked.environ
    names = {name for name in (*environ, *own) if _is_read_at_start(name)}
    return (
        asked.given[:1] == ["-m"]
        and _search_path(environ) == _search_path(own)
        and environ.get("OMP_NUM_THREADS", "1") == own.get("OMP_NUM_THREADS", "1")
        and environ.get("PYTHONHASHSEED") in (None, own.get("PYTHONHASHSEED"))
        and all(environ.get(name) == own.get(name) for name in names)
    )


def _is_read_at_start(name: str) -> bool:
    """Of the variables PYTHON…, Spark's own have an underscore."""
    if name in ("PYTHONPATH", "PYTHONHASHSEED", "PYTHONUNBUFFERED"):
        return False
    is_python = name.startswith("PYTHON") and not name.startswith("PYTHON_")
    return is_python or name == PYTHON_VARIABLE or name.startswith(_READ_AT_START)


def _search_path(environ: Mapping[str, str]) -> list[str]:
    """Where modules are looked for, each place once; an archive of Java has none."""
    found = dict.fromkeys(environ.get("PYTHONPATH", "").split(os.pathsep))
    return [entry for entry in found if entry and not entry.endswith(".jar")]


class ForkServer:
    """Answers one process after the other; each connection stays until its child has ended."""

    def __init__(self, listener: socket.socket) -> None:
        self._listener = listener
        self._own = dict(os.environ)
        self._children: dict[socket.socket, int] = {}
        self._selector = selectors.DefaultSelector()
        self._woken, self._wake = socket.socketpair()
        self._wake.setblocking(False)
        self._woken.setblocking(False)

    def serve(self) -> Request | None:
        """Fork for each that asks: in the child what it is to do, in the server nothing at its end."""
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(self._wake.fileno(), warn_on_full_buffer=False)
        for one in (0, self._listener, self._woken):
            self._selector.register(one, selectors.EVENT_READ)
        while True:
            for key, _ in self._selector.select():
                if key.fileobj == 0:
                    return None
                if key.fileobj is self._listener:
                    self._greet()
                elif key.fileobj is self._woken:
                    self._reap()
                elif isinstance(key.fileobj, socket.socket) and (made := self._hear(key.fileobj)):
                    return made

    def _greet(self) -> None:
        connection, _ = self._listener.accept()
        connection.settimeout(REQUEST_S)
        try:
            connection.sendall(READY)
        except OSError:
            connection.close()
        else:
            self._selector.register(connection, selectors.EVENT_READ)

    def _reap(self) -> None:
        """Tell each process that waits how its child has ended."""
        with suppress(BlockingIOError):
            self._woken.recv(4096)
        by_child = {child: connection for connection, child in self._children.items()}
        with suppress(ChildProcessError):
            while (found := os.waitpid(-1, os.WNOHANG))[0]:
                if connection := by_child.get(found[0]):
                    code = os.waitstatus_to_exitcode(found[1])
                    with suppress(OSError):
                        connection.sendall(bytes([code if code >= 0 else _ENDED_BY_SIGNAL - code]))
                    self._forget(connection)

    def _forget(self, connection: socket.socket) -> None:
        self._children.pop(connection, None)
        self._selector.unregister(connection)
        connection.close()

    def _hear(self, connection: socket.socket) -> Request | None:
        """A request; or the end of a process that asked, with which its child ends."""
        if child := self._children.get(connection):
            self._forget(connection)
            os.kill(child, signal.SIGTERM)
            return None
        files: list[int] = []
        try:
            asked, files = _receive(connection)
            if not fits(asked, self._own):
                connection.sendall(REFUSED)
                raise ConnectionError
            child = os.fork()
        except (OSError, ValueError):  # it is gone, or asks for nothing: it starts plainly
            self._forget(connection)
            _close(files)
            return None
        if not child:
            self._leave()
            for number, file in enumerate(files):
                os.dup2(file, number)
            _close(files)
            return asked
        _close(files)
        self._children[connection] = child
        with suppress(OSError):
            connection.sendall(FORKED + child.to_bytes(8, "little"))
        return None

    def _leave(self) -> None:
        """Let go of all that is the server's."""
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        for connection in [one.fileobj for one in self._selector.get_map().values()]:
            if isinstance(connection, socket.socket):
                connection.close()
        self._selector.close()
        self._wake.close()


def _receive(connection: socket.socket) -> tuple[Request, list[int]]:
    size, files, _, _ = socket.recv_fds(connection, 8, 3)
    if len(size) < 8 or len(files) < 3:
        _close(files)
        raise ConnectionError
    asked = b""
    while missing := int.from_bytes(size, "little") - len(asked):
        if not (more := connection.recv(missing)):
            _close(files)
            raise ConnectionError
        asked += more
    return decode(asked), files


def _close(files: list[int]) -> None:
    for file in files:
        os.close(file)


def run(asked: Request) -> None:
    """Do what `python -m MODULE …` does."""
    os.chdir(asked.directory)
    os.environ.clear()
    os.environ.update(asked.environ)
    time.tzset()
    sys.path[0] = os.getcwd()
    sys.argv = asked.given[1:]
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)


def import_ahead() -> None:
    """Import all that there is, and make it fit to be shared by forked processes."""
    for name in AHEAD:
        with suppress(ImportError):  # another version of Spark
            import_module(name)
    os.register_at_fork(after_in_child=_reseed)
    gc.collect()
    gc.freeze()


def _reseed() -> None:
    """Give each process random numbers of its own; Python sees to those of `random` itself."""
    random: Any = sys.modules.get("numpy.random")
    if random is not None:
        random.seed()


def main() -> None:
    """Import, then serve, if this process may be forked."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    listener = socket.socket(fileno=int(sys.argv[1]))
    import_ahead()
    address = listener.getsockname()
    asked = None
    if len(os.listdir("/proc/self/task")) == 1:
        asked = ForkServer(listener).serve()
    if asked is not None:
        run(asked)
    else:  # the driver may have been killed
        shutil.rmtree(os.path.dirname(address), ignore_errors=True)


if __name__ == "__main__":
    main()
