"""Linux reports writes of any connection to the write-ahead log of a store."""

from __future__ import annotations

import sqlite3
import sys
import threading
from contextlib import closing
from pathlib import Path

import pytest

import millstream
from millstream.engine.sqlite.wal_events import WalEvents

PATIENCE_S = 60

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="only Linux has inotify")


def test_a_write_of_another_connection_is_reported(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    with millstream.open(path) as ms, closing(sqlite3.connect(path)) as app:
        ms.log("x").append(b"0")
        events = WalEvents(f"{path}-wal")
        app.execute("CREATE TABLE own (n)")
        app.commit()
        assert events.wait(PATIENCE_S)


def test_a_wake_up_ends_the_wait_and_is_no_write(tmp_path: Path) -> None:
    path = tmp_path / "wal"
    path.touch()
    events = WalEvents(str(path))
    answers: list[bool] = []
    waiting = threading.Thread(target=lambda: answers.append(events.wait(PATIENCE_S)))
    waiting.start()
    events.wake()
    waiting.join(PATIENCE_S)
    assert answers == [False]
    assert not events.wait(0)


def test_writes_are_counted_together_and_only_once(tmp_path: Path) -> None:
    path = tmp_path / "wal"
    path.touch()
    events = WalEvents(str(path))
    with path.open("wb", buffering=0) as file:
        for _ in range(100):
            file.write(b"frame")
    assert events.wait(PATIENCE_S)
    assert not events.wait(0)


def test_a_file_that_took_the_name_is_watched_after_a_quiet_wait(tmp_path: Path) -> None:
    path = tmp_path / "wal"
    path.touch()
    events = WalEvents(str(path))
    path.rename(tmp_path / "aside")
    path.touch()
    assert not events.wait(0.001)
    path.write_bytes(b"frame")
    assert events.wait(PATIENCE_S)


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="No such file"):
        WalEvents(str(tmp_path / "missing"))
