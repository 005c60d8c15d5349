"""The file of a node takes no posts of other programs: the nodes would differ afterwards."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from millstream.cluster.node.snapshots import open_member


def test_a_post_into_the_file_of_a_node_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "node.db"
    for _ in range(2):
        open_member(path).close()
        with closing(sqlite3.connect(path)) as connection:
            with pytest.raises(sqlite3.IntegrityError, match="belongs to a node of a Millstream"):
                connection.execute("INSERT INTO millstream_inbox (queue, value) VALUES ('a', '1')")
            assert connection.execute("SELECT count(*) FROM millstream_inbox").fetchone() == (0,)
