"""Who waited for the write lock in vain is told which process holds it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import millstream
from millstream import SqliteOptions
from millstream.engine.sqlite.lock import LOCKS, find_holder
from millstream.errors import Overloaded

HOLDER = """
import sys
from millstream.engine.open import open_engine
engine = open_engine(sys.argv[1])
with engine.write() as writer:
    print("locked", flush=True)
    sys.stdin.readline()
"""

pytestmark = pytest.mark.skipif(not LOCKS.exists(), reason="only Linux lists its locks")


def test_the_error_names_a_process_that_was_stopped_with_the_lock(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    with (
        millstream.open(path, options=SqliteOptions(busy_timeout_ms=50)) as ms,
        subprocess.Popen(
            [sys.executable, "-c", HOLDER, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        ) as holder,
    ):
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"locked\n"
        with pytest.raises(Overloaded, match=rf"process {holder.pid} \(.*\) holds it$"):
            ms.log("x").append(b"1")
        holder.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, holder.pid, os.WSTOPPED)
        with pytest.raises(Overloaded, match=f"kill -CONT {holder.pid}") as refused:
            ms.log("x").append(b"1")
        assert refused.value.holder == holder.pid
        assert ms.log("x").is_empty()  # reads go on
        holder.send_signal(signal.SIGCONT)
        holder.communicate(b"\n")
        ms.log("x").append(b"2")
        assert find_holder(path) is None


def test_our_own_locks_are_kept_while_we_look(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    with millstream.open(path) as ms, ms.transaction() as tx:
        tx.append("x", b"1")
        find_holder(path)
    assert find_holder(tmp_path / "none.db") is None
