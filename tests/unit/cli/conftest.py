"""The command line in this process, in an empty directory; and as a real program."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from typer.testing import CliRunner

from millstream.cli import app


class Cli:
    """Runs commands as a user would, without a terminal."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    def __call__(self, *arguments: str, input: bytes | str = b"", code: int = 0) -> str:
        """Run a command, expect its exit code, and answer what it printed."""
        result = CliRunner().invoke(app, list(arguments), input=input)
        told = f"{result.stdout}\n{result.stderr}\n{result.exception!r}"
        assert result.exit_code == code, told
        assert "Traceback" not in result.stderr, told
        self.stderr = result.stderr
        return result.stdout

    def json(self, *arguments: str, input: bytes | str = b"", code: int = 0) -> Any:
        """The same with --json, decoded."""
        return msgspec.json.decode(self(*arguments, "--json", input=input, code=code))

    def error(self, *arguments: str, input: bytes | str = b"", code: int = 1) -> str:
        """Run a command that must fail with one line of error, and answer that line."""
        self(*arguments, input=input, code=code)
        lines = self.stderr.splitlines()
        assert len(lines) == 1, self.stderr
        assert lines[0].startswith("error: "), self.stderr
        return lines[0]


@pytest.fixture
def cli(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Cli:
    monkeypatch.chdir(tmp_path)
    for name in [n for n in os.environ if n.startswith("MILLSTREAM_")]:
        monkeypatch.delenv(name)
    return Cli(tmp_path)


@pytest.fixture
def program(tmp_path: Path) -> Callable[..., subprocess.Popen[bytes]]:
    """Starts `python -m millstream` in the same empty directory."""

    def start(*arguments: str, **settings: Any) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "millstream", *arguments]
        return subprocess.Popen(
            command,
            cwd=tmp_path,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            **settings,
        )

    return start
