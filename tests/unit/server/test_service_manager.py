"""A server under a service manager: an inherited port, and reports of readiness and life."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest

from millstream.errors import InvalidInput
from millstream.server.listen.activation import inherited_socket

START = """
import os, sys
os.dup2(int(sys.argv[1]), 3)
os.environ["LISTEN_PID"], os.environ["LISTEN_FDS"] = str(os.getpid()), "1"
os.execv(sys.executable, [sys.executable, "-m", "millstream", "serve", "store.db", *sys.argv[2:]])
"""
"""Starts a server as systemd does: with a listening socket as descriptor 3."""


def variables(count: str = "1", pid: int | None = None) -> dict[str, str]:
    return {"LISTEN_PID": str(pid or os.getpid()), "LISTEN_FDS": count, "LISTEN_FDNAMES": "http"}


def test_the_socket_of_another_process_is_not_taken() -> None:
    assert inherited_socket({}) is None
    left = variables(pid=1)
    assert inherited_socket(left) is None
    assert left == {}


def test_one_listening_socket_is_taken() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        taken = inherited_socket(variables(), first_fd=os.dup(server.fileno()))
        assert taken is not None
        with taken:
            assert taken.getsockname() == server.getsockname()
            assert not taken.get_inheritable()


def test_other_sockets_are_refused() -> None:
    with pytest.raises(InvalidInput, match="passed 2 sockets"):
        inherited_socket(variables("2"))
    with socket.socket() as silent, pytest.raises(InvalidInput, match="no listening TCP socket"):
        inherited_socket(variables(), first_fd=os.dup(silent.fileno()))


@pytest.mark.parametrize("options", [[], ["--processes", "2"]])
def test_a_server_takes_the_port_and_reports(tmp_path: Path, options: list[str]) -> None:
    with (
        socket.create_server(("127.0.0.1", 0)) as server,
        socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager,
    ):
        manager.bind(str(tmp_path / "notify"))
        command = [sys.executable, "-c", START, str(server.fileno()), *options]
        reports = {"NOTIFY_SOCKET": str(tmp_path / "notify"), "WATCHDOG_USEC": "400000"}
        with subprocess.Popen(
            command, cwd=tmp_path, env={**os.environ, **reports}, pass_fds=[server.fileno()]
        ) as process:
            try:
                heard: set[str] = set()
                while not {"READY=1", "WATCHDOG=1"} <= heard:
                    heard.add(manager.recv(100).decode())
                port = server.getsockname()[1]
                with urllib.request.urlopen(f"http://127.0.0.1:{port}/health") as answer:
                    assert answer.status == 200
                process.terminate()
                assert process.wait(60) == 0
            finally:
                process.kill()


@pytest.mark.parametrize("options", [[], ["--processes", "2"]])
def test_a_port_that_others_reach_needs_tokens(tmp_path: Path, options: list[str]) -> None:
    with socket.create_server(("0.0.0.0", 0)) as server:
        command = [sys.executable, "-c", START, str(server.fileno()), *options]
        process = subprocess.run(
            command, cwd=tmp_path, pass_fds=[server.fileno()], capture_output=True, timeout=120
        )
    assert process.returncode == 1
    assert b"lets no client in without a token" in process.stderr
