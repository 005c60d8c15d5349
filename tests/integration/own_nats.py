"""A NATS that a user runs: servers with a configuration of the user's, and nodes of a cluster on it."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import millstream
from millstream.cli.cluster_options import ClusterPlace
from millstream.cluster.reports import NodeReport
from millstream.cluster.trial import HOST, free_ports
from millstream.errors import MillstreamError
from tests.conformance.nats_kit import until

DISK = "sync_interval: always"


class OwnNats:
    """Servers, each in a folder of its own, that form one NATS."""

    def __init__(self, folder: Path, *, servers: int = 3, more: str = "") -> None:
        """`more` is added to the configuration of each server."""
        self.ports = free_ports(servers)
        self._folder, self._more = folder, more
        self._processes: list[subprocess.Popen[bytes]] = []

    def address(self, *, shown: str = "", scheme: str = "nats") -> str:
        """As --cluster names it."""
        return ",".join(f"{scheme}://{shown}{HOST}:{port}" for port in self.ports)

    def start(self, *, jetstream: str = DISK) -> None:
        """Start all; without `jetstream` they have none."""
        from millstream.cluster.nats.server import find_program

        program = find_program()
        for number, port in enumerate(self.ports):
            folder = self._folder / f"nats-{number}"
            folder.mkdir(parents=True, exist_ok=True)
            (folder / "log").unlink(missing_ok=True)
            file = folder / "nats.conf"
            file.write_text(self._configuration(number, port, folder, jetstream))
            self._processes.append(subprocess.Popen([program, "-c", str(file)]))
        for folder in self._folder.glob("nats-*"):
            until(lambda at=folder: _is_ready(at / "log"), f"{folder.name} is ready")

    def lose(self, number: int) -> None:
        """Kill one server."""
        self._processes[number].kill()

    def stop(self) -> None:
        """End all."""
        for process in self._processes:
            process.terminate()
        for process in self._processes:
            process.wait()
        self._processes = []

    def files(self, number: int) -> Path:
        """Where one server keeps its streams."""
        return self._folder / f"nats-{number}" / "jetstream"

    def _configuration(self, number: int, port: int, folder: Path, jetstream: str) -> str:
        routes = ", ".join(f'"nats-route://{HOST}:{one + 1}"' for one in self.ports)
        lines = [
            f"server_name: own-{number}",
            f'listen: "{HOST}:{port}"',
            f"logfile: {json.dumps(str(folder / 'log'))}",
            self._more,
        ]
        if jetstream:
            lines.append(f"jetstream {{ store_dir: {json.dumps(str(folder))}, {jetstream} }}")
        if len(self.ports) > 1:
            lines.append(
                f'cluster {{ name: own, listen: "{HOST}:{port + 1}", routes: [{routes}] }}'
            )
        return "\n".join(lines) + "\n"


def _is_ready(log: Path) -> bool:
    return log.exists() and "Server is ready" in log.read_text()


class Nodes:
    """Processes of `millstream serve --cluster`, and commands about their cluster."""

    def __init__(self, folder: Path, names: str = "abc", **place: Any) -> None:
        """`place` names the cluster, by the fields of `ClusterPlace`."""
        self._folder = folder
        self.ports = dict(zip(names, free_ports(len(names)), strict=True))
        self.serving: list[str] = []
        """Options of servers that name no place."""
        self.place(**place)
        self._running: dict[str, subprocess.Popen[str]] = {}

    def place(self, **place: Any) -> None:
        """Another place, for nodes that are started from now on."""
        secret = place.get("cluster_secret_file")
        named = {**place, "cluster_secret_file": Path(secret) if secret else None}
        self.plan = ClusterPlace(**named, members=len(self.ports)).plan()
        self.options = ["--members", str(len(self.ports))]
        for name, value in place.items():
            self.options += [f"--{name.replace('_', '-')}", str(value)]

    @property
    def addresses(self) -> str:
        """Of all nodes."""
        return ",".join(self.address(name) for name in self.ports)

    def address(self, name: str) -> str:
        """Of one node."""
        scheme = "https" if "--certificate" in self.serving else "http"
        return f"{scheme}://{HOST}:{self.ports[name]}"

    def file(self, name: str) -> Path:
        """A node's store."""
        return self._folder / f"{name}.db"

    def start(self, *names: str) -> None:
        """Start nodes; all of them if none is named."""
        for name in names or self.ports:
            command = [sys.executable, "-m", "millstream", "serve", str(self.file(name))]
            command += [
                "--node",
                name,
                "--port",
                str(self.ports[name]),
                *self.options,
                *self.serving,
            ]
            with open(self._folder / f"{name}.log", "a") as log:
                self._running[name] = subprocess.Popen(command, stdout=log, stderr=log, text=True)

    def stop(self, *names: str) -> None:
        """End nodes, and wait for them."""
        for name in names or list(self._running):
            self._running[name].terminate()
        for name in names or list(self._running):
            self._running.pop(name).wait()

    def ask(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """A command of `millstream cluster`."""
        command = [sys.executable, "-m", "millstream", "cluster", *arguments, *self.options]
        return subprocess.run([*command, "--json"], capture_output=True, text=True, check=False)

    def reports(self) -> dict[str, NodeReport]:
        """What every node says of itself now; those that say nothing are missing."""
        from millstream.cluster.admin import ClusterAdmin

        with ClusterAdmin(self.plan) as visit:
            found = visit.listen(lambda heard: len(heard) == len(self.ports), timeout_s=3.0)
        return {name: report for name, (report, _) in found.items()}

    def append(self, value: bytes, *, log: str = "orders") -> None:
        """Append once, also while the nodes or their NATS are only beginning."""

        def is_appended() -> bool:
            try:
                with millstream.open(self.addresses, retry_for=5.0) as ms:
                    if value not in [one.value for one in ms.log(log).read()]:
                        ms.log(log).append(value)
            except MillstreamError:  # they have just started, or gone on
                return False
            return True

        until(is_appended, f"{value!r} is appended")

    def values(self, name: str, *, log: str = "orders") -> list[bytes]:
        """What one node's store holds of a log."""
        with millstream.open(self.file(name), mode="r") as ms:
            return [one.value for one in ms.log(log).read()]

    def until_everywhere(self, *values: bytes) -> None:
        """Wait until the store of every node holds just these values."""
        until(
            lambda: all(self.values(name) == list(values) for name in self.ports),
            f"{values} everywhere",
        )

    def until(self, *roles: str) -> None:
        """Wait until the nodes have these roles, in some order; a leader and followers if none."""
        wanted = sorted(roles or ["leader"] + ["follower"] * (len(self.ports) - 1))
        until(
            lambda: sorted(one.role for one in self.reports().values()) == wanted,
            f"nodes are {', '.join(wanted)}",
        )


@contextmanager
def own_nats(folder: Path, *, jetstream: str = DISK, **options: Any) -> Iterator[OwnNats]:
    """Servers that run, and are ended with the block."""
    made = OwnNats(folder, **options)
    try:
        made.start(jetstream=jetstream)
        yield made
    finally:
        made.stop()


@contextmanager
def nodes_on(folder: Path, **place: Any) -> Iterator[Nodes]:
    """Three nodes that are well, and are ended with the block."""
    made = Nodes(folder, **place)
    try:
        made.start()
        made.until()
        yield made
    finally:
        made.stop()
