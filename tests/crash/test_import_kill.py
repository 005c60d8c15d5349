"""An import that is killed after any chunk: the next run stores the remaining records, each once."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

import millstream
from millstream.doctor import examine

pytestmark = [pytest.mark.crash, pytest.mark.slow]

RECORDS = 30_000

PROGRAM = """
import os, signal, sys
import millstream
from millstream.exchange.formats import Format, reader_of
from millstream.exchange.importing import ImportSummary, checked_file, import_file

chunks = int(sys.argv[1])

def kill(stage, done, total):
    global chunks
    if stage == "storing":
        chunks -= 1
        if chunks == 0:
            os.kill(os.getpid(), signal.SIGKILL)

with millstream.open("store.db") as ms, open("orders.jsonl", "rb") as stream:
    read = reader_of(Format.JSONL)
    file = checked_file(stream, read, needs_log=True, skip_bad=False)
    import_file(ms, file, ImportSummary(), heard=kill)
"""


def test_each_record_is_stored_once(tmp_path: Path) -> None:
    lines = (f'{{"log":"log-{n % 3}","value":"{n}","key":"{n:0100}"}}\n' for n in range(RECORDS))
    (tmp_path / "orders.jsonl").write_text("".join(lines))
    killed = 0
    for chunks in range(1, 100):
        command = [sys.executable, "-c", PROGRAM, str(chunks)]
        code = subprocess.run(command, cwd=tmp_path, timeout=120).returncode
        if code == 0:
            break
        assert code == -signal.SIGKILL
        killed += 1
        with millstream.open(tmp_path / "store.db") as ms:
            for number in range(3):
                stored = [int(record.text) for record in ms.log(f"log-{number}")]
                assert stored == list(range(number, RECORDS, 3))[: len(stored)]
    assert killed >= 3
    with millstream.open(tmp_path / "store.db") as ms:
        for number in range(3):
            stored = [int(record.text) for record in ms.log(f"log-{number}")]
            assert stored == list(range(number, RECORDS, 3))
    assert examine(tmp_path / "store.db").problems == []
