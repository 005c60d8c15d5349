"""A crowd of clients in a separate process, started and read by a workload."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import msgspec

from millstream.bench.crowd import CrowdTask


class CrowdProcess:
    """A process with clients, ready when the constructor returns."""

    def __init__(self, **task: Any) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "millstream.bench.crowd"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self._say(msgspec.json.encode(CrowdTask(**task)).decode())
        self._hear()

    def go(self) -> None:
        """Let it begin."""
        self._say("go")

    def found(self) -> Any:
        """Wait for the end of the process, and return its outcome."""
        outcome = self._hear()
        self._process.communicate(timeout=60)
        return outcome

    def _say(self, line: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(line + "\n")
        self._process.stdin.flush()

    def _hear(self) -> Any:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"a crowd has ended with code {self._process.wait()}")
        return msgspec.json.decode(line)
