"""What a shell is offered: commands, options, and names from the store."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import millstream
from millstream.server.serving import running
from millstream.server.settings import Settings


@pytest.fixture(autouse=True)
def _store(cli: Any) -> None:
    with millstream.open("millstream.db") as ms:
        for name in ("orders", "other", "payments"):
            ms.log(name).append("x")
        ms.create_queue("mail")


def offered(directory: Path, line: str) -> list[str]:
    """What bash is told for the last word of a line."""
    words = line.split(" ")
    variables = {
        "COMP_WORDS": line,
        "COMP_CWORD": str(len(words) - 1),
        "_MILLSTREAM_COMPLETE": "complete_bash",
    }
    done = subprocess.run(
        [sys.executable, "-m", "millstream"],
        cwd=directory,
        env={**os.environ, **variables},
        capture_output=True,
        check=True,
        text=True,
    )
    assert done.stderr == ""
    return done.stdout.split()


def test_names_come_from_the_store(cli: Any) -> None:
    assert offered(cli.directory, "millstream read o") == ["orders", "other"]
    assert offered(cli.directory, "millstream queue info ") == ["mail"]
    assert "--lease-max" in offered(cli.directory, "millstream queue create --lease")
    assert offered(cli.directory, "millstream -s none.db read o") == []
    assert not Path("none.db").exists()


def test_names_come_from_the_store_that_the_file_of_settings_names(cli: Any) -> None:
    with millstream.open("second.db") as ms:
        ms.log("only").append("x")
    Path("millstream.toml").write_text('store = "second.db"\n', encoding="utf-8")
    assert offered(cli.directory, "millstream log info o") == ["only"]


def test_names_come_from_a_server(cli: Any) -> None:
    with running("millstream.db", Settings(port=0)) as server:
        line = f"millstream --store {server.url} log info p"
        assert offered(cli.directory, line) == ["payments"]
