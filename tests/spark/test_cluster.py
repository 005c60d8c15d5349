"""Promise: executors that are processes of their own, elsewhere, read and write through a server.

`local-cluster` starts two of them. They are told that they are on another machine, so the store's path
is of no use to them; what they ask of the server is counted there.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from urllib.request import urlopen

import pytest

import millstream
from millstream.server.serving import Serving, running
from millstream.server.settings import Settings

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

DRIVER = Path(__file__).with_name("cluster_driver.py")
ROWS = 20_000


def asked(server: Serving, command: str) -> int:
    """How often a command was answered, as the server's metrics say."""
    with urlopen(f"http://127.0.0.1:{server.port}/metrics") as answer:
        text = answer.read().decode()
    found = re.search(rf'millstream_command_seconds_count{{[^}}]*"{command}"[^}}]*}} (\d+)', text)
    return int(found[1]) if found else 0


def test_executors_elsewhere_go_through_the_server(no_spark: None, tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    with millstream.open(path) as store:
        for first in range(0, ROWS, 1_000):
            store.log("from").append_many([b"%d" % i for i in range(first, first + 1_000)])
    with running(path, Settings(port=0, stop_s=1.0)) as server:
        assert asked(server, "ReadBlocks") == 0
        done = subprocess.run(
            [sys.executable, DRIVER, tmp_path / "spark", path, f"http://127.0.0.1:{server.port}"],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=540,
            check=False,
        )
        assert done.returncode == 0, done.stderr[-3_000:]
        # Four tasks read twice, each its own range.
        assert asked(server, "ReadBlocks") >= 8
        with millstream.open(f"http://127.0.0.1:{server.port}") as store:
            copied = sorted(int(record.value) for record in store.log("to").read())
    assert copied == list(range(ROWS))
    (line,) = [line for line in done.stdout.splitlines() if line.startswith("FOUND ")]
    found = json.loads(line.removeprefix("FOUND "))
    assert found["executors"] == ROWS
    assert "this task runs on executor.example: serve the store there" in found["path"]
