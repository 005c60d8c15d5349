"""Promise: the doctor of a user who may not write a store leaves nothing behind in its folder.

What SQLite makes beside a file has the mode of the file, and belongs to the user who made it: the
owner of the store could not write it any more.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

import millstream

AS_NOBODY = """
import os, sys, tempfile
import millstream
from millstream.doctor import examine
with tempfile.TemporaryDirectory() as warm:  # imports everything while it can still be read
    millstream.open(warm + "/warm.db").close()
    examine(warm + "/warm.db")
if os.getuid() == 0:
    os.setgid(65534)
    os.setuid(65534)
try:
    print("healthy" if examine(sys.argv[1]).healthy else "damaged")
except millstream.MillstreamError as error:
    print(type(error).__name__, error)
"""


def examined(path: Path) -> str:
    """What the doctor says to a user who may read the store, and not write it."""
    done = subprocess.run(
        [sys.executable, "-c", AS_NOBODY, str(path)],
        env={**os.environ, "PYTHONPATH": str(Path(millstream.__file__).parents[1])},
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    return done.stdout


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder in which everybody may make files; pytest's own are for their owner alone."""
    with tempfile.TemporaryDirectory() as name:
        Path(name).chmod(0o777)
        yield Path(name)


def names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


def test_a_closed_store_is_examined_and_nothing_is_left(folder: Path) -> None:
    path = folder / "s.db"
    with millstream.open(path) as ms:
        ms.log("a").append(b"one")
    path.chmod(0o444)
    assert examined(path) == "healthy\n"
    assert names(folder) == {"s.db"}
    path.chmod(0o644)
    with millstream.open(path) as ms:
        assert ms.log("a").append(b"two") == 1


def test_a_log_that_was_left_is_refused_with_what_to_do_and_nothing_is_left(folder: Path) -> None:
    path = folder / "s.db"
    with millstream.open(folder / "running.db") as ms:
        ms.log("a").append(b"one")
        for ending in ("", "-wal"):
            shutil.copy(folder / f"running.db{ending}", f"{path}{ending}")
    path.chmod(0o444)
    Path(f"{path}-wal").chmod(0o444)
    told = examined(path)
    assert told.startswith("CannotOpen")
    assert "examine it as its owner, or copy the store with its -wal file" in told
    assert names(folder) == {"running.db", "s.db", "s.db-wal"}


def test_a_store_that_is_open_elsewhere_is_examined(folder: Path) -> None:
    path = folder / "s.db"
    with millstream.open(path, file_mode=0o644) as ms:
        ms.log("a").append(b"one")
        for ending in ("", "-wal", "-shm"):
            Path(f"{path}{ending}").chmod(0o444)
        before = names(folder)
        assert examined(path) == "healthy\n"
        assert names(folder) == before
        for ending in ("", "-wal", "-shm"):
            Path(f"{path}{ending}").chmod(0o644)
        assert ms.log("a").append(b"two") == 1
