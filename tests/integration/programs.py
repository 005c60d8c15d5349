"""Servers as processes of their own."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def program(folder: Path, *options: str) -> Iterator[tuple[subprocess.Popen[bytes], str]]:
    """A server of the store in a folder, and where it is."""
    command = [sys.executable, "-m", "millstream", "serve", "store.db", "--port", "0", "--json"]
    with subprocess.Popen(
        [*command, *options], cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    ) as process:
        assert process.stdout is not None
        try:
            yield process, json.loads(process.stdout.readline())["rest"]
        finally:
            if process.poll() is None:
                process.terminate()
                process.wait(30)
