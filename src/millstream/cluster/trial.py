"""A trial cluster: several nodes as processes of one machine, with a common folder.

| in the folder | contents |
|---|---|
| `cluster.json` | the nodes, their ports and their processes |
| `secret` | the nodes' shared secret |
| `NAME/store.db`, `NAME/store.db.nats/` | a node's rows, and the files of its NATS server |
| `NAME/log` | a node's log output |
"""

from __future__ import annotations

import os
import secrets
import signal
import socket
import string
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path

import msgspec

from millstream.clock import Clock, SystemClock
from millstream.cluster.peers import Peer, parse_peers
from millstream.errors import CannotOpen, NotFound

NODES_MAX = 9
HOST = "127.0.0.1"
PORT_MIN, PORT_MAX = 20_000, 32_000
"""Below the ports that the system assigns by itself, which may be taken at any moment."""
PORTS_IN_A_ROW = 3
PORT_TRIES = 1_000
STOP_S = 15.0
PAUSE_S = 0.05


class TrialRecord(msgspec.Struct):
    """The stored description of a trial cluster."""

    peers: str
    processes: dict[str, int] = msgspec.field(default_factory=dict)


class TrialCluster:
    """The cluster of a folder."""

    def __init__(self, folder: Path, *, clock: Clock | None = None) -> None:
        """Prepare; nothing is read or created yet."""
        self.folder = folder
        self._clock = clock or SystemClock()
        self._children: dict[int, subprocess.Popen[bytes]] = {}
        """Child processes of this object: the system forgets them only after a `wait`."""

    @property
    def exists(self) -> bool:
        """Whether the folder holds a cluster."""
        return self._file.exists()

    @property
    def peers(self) -> tuple[Peer, ...]:
        """Return the nodes."""
        return parse_peers(self._read().peers)

    @property
    def peers_text(self) -> str:
        """Return the nodes in the form of --peers."""
        return self._read().peers

    @property
    def secret_file(self) -> Path:
        """Return the path of the secret."""
        return self.folder / "secret"

    def make(self, nodes: int) -> None:
        """Choose ports and a secret."""
        if not 1 <= nodes <= NODES_MAX or nodes == 2:
            raise CannotOpen(
                f"a trial cluster has 1 or 3 to {NODES_MAX} nodes, not {nodes}",
                path=str(self.folder),
            )
        self.folder.mkdir(parents=True, exist_ok=True)
        self.secret_file.touch(mode=0o600)
        self.secret_file.write_text(f"{secrets.token_hex(32)}\n", encoding="ascii")
        names = string.ascii_lowercase[:nodes]
        places = zip(names, free_ports(nodes), strict=True)
        self._write(TrialRecord(",".join(f"{name}={HOST}:{port}" for name, port in places)))

    def start(self, name: str) -> int:
        """Start a node unless it runs, and return its process id."""
        record = self._read()
        if (running := self.process(name)) is not None:
            return running
        folder = self.folder / name
        folder.mkdir(exist_ok=True)
        command = [
            sys.executable,
            "-m",
            "millstream",
            "serve",
            str(self._store(name)),
            "--node",
            name,
        ]
        command += ["--peers", record.peers, "--cluster-secret-file", str(self.secret_file)]
        with open(folder / "log", "ab") as log:
            started = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
            )
        self._children[started.pid] = started
        record.processes[name] = started.pid
        self._write(record)
        return started.pid

    def process(self, name: str) -> int | None:
        """Return the process of a node, if it runs."""
        process_id = self._read().processes.get(name)
        if process_id is not None and _runs(process_id, str(self._store(name))):
            return process_id
        if (child := self._children.pop(process_id or 0, None)) is not None:
            child.wait()
        return None

    def stop(self) -> list[str]:
        """End all nodes, by a signal first, and return the names of the nodes that ran."""
        running = {
            peer.name: process_id for peer in self.peers if (process_id := self.process(peer.name))
        }
        for process_id in running.values():
            with suppress(ProcessLookupError):
                os.kill(process_id, signal.SIGTERM)
        deadline = self._clock.seconds() + STOP_S
        pause = threading.Event()
        for name, process_id in running.items():
            while self.process(name) is not None:
                if self._clock.seconds() > deadline:
                    with suppress(ProcessLookupError):
                        os.kill(process_id, signal.SIGKILL)
                pause.wait(PAUSE_S)
        return list(running)

    @property
    def _file(self) -> Path:
        return self.folder / "cluster.json"

    def _store(self, name: str) -> Path:
        return (self.folder / name / "store.db").absolute()

    def _read(self) -> TrialRecord:
        try:
            return msgspec.json.decode(self._file.read_bytes(), type=TrialRecord)
        except FileNotFoundError:
            raise NotFound(
                f"there is no trial cluster in {self.folder}; `millstream cluster up` makes one",
                name=str(self.folder),
            ) from None

    def _write(self, record: TrialRecord) -> None:
        """Replace the file atomically: a reader sees the old or the new contents."""
        beside = self._file.with_suffix(".new")
        beside.write_bytes(msgspec.json.encode(record))
        beside.replace(self._file)


def _runs(process_id: int, word: str) -> bool:
    """Whether a process runs whose command line has a word: the system reuses process ids."""
    try:
        line = Path(f"/proc/{process_id}/cmdline").read_bytes()
    except FileNotFoundError:
        if Path("/proc/self").exists():
            return False
        try:
            os.kill(process_id, 0)
        except OSError:
            return False
        return True
    return os.fsencode(word) in line.split(b"\0")


def free_ports(count: int) -> list[int]:
    """Return the first ports of free runs of three ports."""
    with ExitStack() as held:
        runs = _free_runs(held)
        return [next(runs) for _ in range(count)]


def _free_runs(held: ExitStack) -> Iterator[int]:
    for _ in range(PORT_TRIES):
        first = PORT_MIN + secrets.randbelow(PORT_MAX - PORT_MIN)
        with ExitStack() as listeners:
            try:
                for port in range(first, first + PORTS_IN_A_ROW):
                    listeners.enter_context(_listener(port))
            except OSError:
                continue
            held.push(listeners.pop_all())
        yield first
    raise CannotOpen(f"no three free ports in a row on {HOST}", path=HOST)


def _listener(port: int) -> socket.socket:
    listener = socket.socket()
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((HOST, port))
        listener.listen()  # a port that is only bound could be bound again
    except OSError:
        listener.close()
        raise
    return listener
