"""Promise: a store of another format is refused with the thing to do, and stays as it is."""

from __future__ import annotations

from pathlib import Path

import apsw
import msgspec
import pytest

import millstream
from millstream.engine.checksum import row_checksum
from millstream.errors import CannotOpen
from millstream.format.version import FORMAT, FORMAT_SINCE, format_refusal


def test_a_newer_format_names_the_version_to_install() -> None:
    refusal = format_refusal("a.db", 3, "2.1.0", known=2)
    assert refusal is not None
    assert "pip install 'millstream>=2.1.0'" in refusal
    assert "--upgrade" in str(format_refusal("a.db", 3, "", known=2))


def test_an_older_format_names_the_command_that_converts_it() -> None:
    refusal = format_refusal("a.db", 1, "0.1.0", known=2)
    assert "`millstream migrate a.db`" in str(refusal)
    assert format_refusal("a.db", 2, "", known=2) is None


def test_a_version_that_is_released_knows_the_format_it_writes() -> None:
    numbers = [tuple(map(int, text.split("."))) for text in (FORMAT_SINCE, millstream.__version__)]
    assert numbers[0] <= numbers[1]


def test_a_file_of_a_newer_format_is_refused_and_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "s.db"
    millstream.open(path).close()
    file = apsw.Connection(str(path))
    row = msgspec.json.decode(file.execute("SELECT value FROM millstream_file").get)
    assert (row["format"], row["since"]) == (FORMAT, FORMAT_SINCE)
    value = msgspec.json.encode(row | {"format": FORMAT + 1, "since": "9.0.0", "new": [1]})
    crc = row_checksum(b"millstream_file", value)
    file.execute("UPDATE millstream_file SET value = ?, crc = ?", (value, crc))
    file.close()
    before = path.read_bytes()
    for mode in ("r", "rw"):
        with pytest.raises(CannotOpen, match=r"millstream>=9\.0\.0.*nothing was changed"):
            millstream.open(path, mode=mode)  # type: ignore[arg-type]
    assert path.read_bytes() == before
