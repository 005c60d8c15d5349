"""After a failed sync the write-ahead log is written once more, and synced before commits go on."""

from __future__ import annotations

import os
from pathlib import Path

import apsw
import pytest

import millstream
from millstream.engine.sqlite.wal import repair_log


def test_the_log_is_synced_after_it_was_written_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Pages that a failed sync marked as clean reach the disk only by a sync behind a new write."""
    path = tmp_path / "a.db"
    synced: list[int] = []
    real_fsync = os.fsync

    def fsync(descriptor: int) -> None:
        synced.append(os.fstat(descriptor).st_ino)
        real_fsync(descriptor)

    with millstream.open(path) as ms:
        ms.log("events").append(b"kept")
        log = Path(f"{path}-wal")
        before = log.read_bytes()
        turn, other = apsw.Connection(str(path)), apsw.Connection(str(path))
        monkeypatch.setattr(os, "fsync", fsync)
        repair_log(path, turn=turn, observer=other)
        monkeypatch.undo()
        turn.execute("ROLLBACK")
        turn.close()
        other.close()
        assert synced == [log.stat().st_ino]
        assert before.startswith(log.read_bytes()), "only what no commit needs may be cut off"
        ms.log("events").append(b"later")
        assert [record.value for record in ms.log("events").read()] == [b"kept", b"later"]
