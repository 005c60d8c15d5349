"""Every page of a store's file is looked at, and one flipped bit is found wherever it is."""

from __future__ import annotations

from pathlib import Path

import pytest

import millstream
from millstream import SqliteOptions
from millstream.engine.sqlite.engine import SqliteEngine
from millstream.errors import CorruptionError

PAGE_BYTES = 4096


CHECKED = SqliteOptions(page_checksums=True)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    found = tmp_path / "s.db"
    with millstream.open(found, options=CHECKED) as ms:
        ms.log("orders").append_many([b"x" * 3000] * 50)
        ms.log("large").append(b"y" * 100_000)  # pages that only follow others
        with ms.transaction() as tx:
            tx.sql("CREATE TABLE own (id INTEGER PRIMARY KEY, text TEXT)")
            tx.sql("INSERT INTO own VALUES (1, ?)", ("z" * 20_000,))
    return found


def verify(path: Path) -> bool:
    engine = SqliteEngine(path, options=CHECKED)
    try:
        return engine.verify(lambda: False)
    finally:
        engine.close()


def test_a_sound_file_is_whole(path: Path) -> None:
    assert verify(path)


def test_a_flipped_bit_is_found_on_every_page(path: Path) -> None:
    data = path.read_bytes()
    pages = len(data) // PAGE_BYTES
    assert pages > 40
    for page in range(2, pages):  # without the first one no store can be opened
        place = page * PAGE_BYTES + 1000
        path.write_bytes(data[:place] + bytes((data[place] ^ 4,)) + data[place + 1 :])
        with pytest.raises(CorruptionError):
            verify(path)
    path.write_bytes(data)
    assert verify(path)


def test_a_flipped_bit_of_a_row_is_found_without_checksums_of_pages(tmp_path: Path) -> None:
    path = tmp_path / "plain.db"
    with millstream.open(path) as ms:
        ms.log("orders").append_many([b"x" * 3000] * 50)
    data = path.read_bytes()
    place = data.rindex(b"x" * 100)
    path.write_bytes(data[:place] + b"y" + data[place + 1 :])
    with pytest.raises(CorruptionError):
        verify(path)
