"""`millstream worker` as a program of its own, whose log lines a test reads."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from types import TracebackType
from typing import Any, Self

SHOP = '''
import os
import time
from pathlib import Path

from millstream import Jobs

HERE = Path(__file__).parent
VERSION = 1
jobs = Jobs(HERE / "shop.db")
kept = []

with open(HERE / "imports", "a") as imports:
    imports.write(f"{os.getpid()}\\n")


def note(name: str, text: object) -> None:
    """Append a line to a file, in one write."""
    with open(HERE / name, "ab", buffering=0) as file:
        file.write(f"{text}\\n".encode())


def wait_for(name: str) -> None:
    """Wait until a writer opens the pipe of this name."""
    with open(HERE / name, "rb") as pipe:
        pipe.read()


@jobs.task
def pid() -> None:
    note("pids", os.getpid())


@jobs.task
def version() -> None:
    note("versions", VERSION)


@jobs.task(max_attempts=100, backoff=0)
def count(n: int) -> None:
    note("runs", f"{n} {os.getpid()}")
    time.sleep(0.02)


@jobs.task(max_attempts=3, backoff=0)
def hold(name: str) -> None:
    note("held", os.getpid())
    wait_for(name)
    note("released", os.getpid())


@jobs.task(max_attempts=3, backoff=0)
def hang_once() -> None:
    if not (HERE / "hung").exists():
        (HERE / "hung").touch()
        wait_for("never")


@jobs.task(max_attempts=2, backoff=0)
def leave(code: int) -> None:
    os._exit(code)


@jobs.task(timeout=0.2, max_attempts=1)
def overdue() -> None:
    wait_for("never")


@jobs.task
def grow(megabytes: int) -> None:
    kept.append(bytearray(b"x") * (megabytes * 1_000_000))
    note("pids", os.getpid())


@jobs.task
async def greet(name: str) -> None:
    note("greetings", f"hello {name}")
'''


class WorkerProgram:
    """A running `millstream worker`; its log lines are JSON."""

    def __init__(self, folder: Path, *options: str, **variables: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "millstream", "worker", *options],
            cwd=folder,
            env={**os.environ, **variables},
            stderr=subprocess.PIPE,
            text=True,
        )
        self.lines: list[dict[str, Any]] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.process.kill()  # its children see the end of their pipes, and end
        self.process.wait()
        assert self.process.stderr is not None
        self.process.stderr.close()

    def until(self, event: str, **facts: Any) -> dict[str, Any]:
        """Read log lines up to an event with some facts, and return its line."""
        assert self.process.stderr is not None
        for text in self.process.stderr:
            line = self._read(text)
            if line["event"] == event and facts.items() <= line.items():
                return line
        raise AssertionError(f"the worker ended without {event}: {self.lines}")

    def ended(self) -> int:
        """Read all further lines; return the exit code."""
        assert self.process.stderr is not None
        for text in self.process.stderr:
            self._read(text)
        return self.process.wait()

    def events(self, name: str) -> list[dict[str, Any]]:
        """Return the lines of an event so far."""
        return [line for line in self.lines if line["event"] == name]

    def _read(self, text: str) -> dict[str, Any]:
        line: dict[str, Any] = (
            json.loads(text) if text.startswith("{") else {"event": "text", "text": text}
        )
        self.lines.append(line)
        return line
