"""What could not be read again is not written: a rule that made a mistake harms nobody."""

from __future__ import annotations

from pathlib import Path

import pytest

import millstream
from millstream.embedded.session import EmbeddedSession
from millstream.errors import MillstreamError, WriteFailed
from millstream.format import keys
from millstream.log.model.head import LogTruncated
from millstream.store.commit.transaction import WriteTransaction


def test_a_change_that_could_not_be_read_again_is_refused(tmp_path: Path) -> None:
    with millstream.open(tmp_path / "store.db") as ms:
        ms.log("a").append(b"kept")
        session = ms.session
        assert isinstance(session, EmbeddedSession)

        def mistaken(tx: WriteTransaction) -> None:
            tx.change(keys.head(1), LogTruncated(0.5))  # type: ignore[arg-type]

        with pytest.raises(WriteFailed):
            session.store.run(mistaken)
        assert ms.log("a").append(b"goes on") == 1
    with millstream.open(tmp_path / "store.db") as ms:
        assert [record.value for record in ms.log("a").read()] == [b"kept", b"goes on"]


def test_a_row_that_could_not_be_read_again_is_refused(tmp_path: Path) -> None:
    with millstream.open(tmp_path / "store.db") as ms:
        log = ms.log("a")
        log.append(b"kept")
        session = ms.session
        assert isinstance(session, EmbeddedSession)

        def mistaken(tx: WriteTransaction) -> None:
            tx.put(keys.payload(7), "text")  # type: ignore[arg-type]

        with pytest.raises(MillstreamError):
            session.store.run(mistaken)
        assert log.append(b"goes on") == 1
    with millstream.open(tmp_path / "store.db") as ms:
        assert [record.value for record in ms.log("a").read()] == [b"kept", b"goes on"]
