"""Reading while the fold, of this or another process, moves what is read."""

from __future__ import annotations

from pathlib import Path

import pytest

import millstream
from millstream.engine.commit import Row
from millstream.testing import Probe


def fold(ms: millstream.Millstream) -> None:
    """Fold what all handles have committed."""
    Probe(ms).store.refresh()
    assert ms.fold()


@pytest.mark.embedded
@pytest.mark.parametrize("seen_apart", range(12))
def test_entries_that_are_joined_meanwhile_are_read_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seen_apart: int
) -> None:
    path = tmp_path / "a.db"
    with millstream.open(path) as ms, millstream.open(path) as other:
        log = ms.log("events")
        for number in range(10):
            log.append(b"%d" % number)
        fold(other)  # what this handle holds apart lies joined in the file now
        store = Probe(ms).store
        overlay = store.state.overlay
        after, looked = overlay.after, 0

        def look(key: bytes) -> Row | None:
            nonlocal looked
            looked += 1
            if looked == seen_apart:
                other.log("events").append(b"more")
                assert store.refresh()  # and with it, that all before is folded
            found: Row | None = after(key)
            return found

        monkeypatch.setattr(overlay, "after", look)
        records = list(log.read(0, 10))
        assert [record.offset for record in records] == list(range(10))
        assert [record.value for record in records] == [b"%d" % n for n in range(10)]
