"""The rules of the browser's client, run by Node's own test runner."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

NODE = shutil.which("node")
FILES = sorted(Path(__file__).parent.glob("*.test.mjs"))


@pytest.mark.skipif(NODE is None, reason="there is no node here")
@pytest.mark.parametrize("file", FILES, ids=[file.name for file in FILES])
def test_the_client_keeps_its_rules(file: Path) -> None:
    assert NODE is not None
    ran = subprocess.run([NODE, "--test", str(file)], capture_output=True, text=True, timeout=120)
    assert ran.returncode == 0, ran.stdout + ran.stderr
