"""Promise: a task that fails on the console shows one sentence of ours, and where all the rest is."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from millstream.format import keys
from tests.spark.test_damage import damaged


@pytest.mark.usefixtures("no_spark")
def test_a_failed_task_shows_one_sentence(tmp_path: Path) -> None:
    path = str(tmp_path / "store.db")
    damaged(path, keys.PAYLOAD_BLOCK)
    command = [sys.executable, "-m", "millstream", "spark", "run", "compact", "b"]
    command += ["--to", "last", "--store", path, "--master", "local[1]"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    told = [line for line in done.stderr.splitlines() if "incubator modules" not in line]
    assert len(told) <= 4, done.stderr
    assert "the records at offsets 80 to 119 are damaged" in told[-1]
    found = re.search(r"the full text is in ([^)]+)[)]", told[-1])
    assert found is not None
    full = Path(found[1])
    assert "Traceback" in full.read_text()
    full.unlink()
