"""`millstream compact`: what it prints, what it changes, and what it refuses."""

from __future__ import annotations

import shutil
from pathlib import Path

from millstream.engine.sqlite.header import NONE
from tests.unit.cli.conftest import Cli
from tests.unit.store.test_compaction import check_kept, filled


def test_a_dry_run_says_how_much_and_a_run_returns_it(cli: Cli) -> None:
    path = filled(Path("a.db"))
    size = path.stat().st_size
    planned = cli.json("compact", "a.db", "--dry-run")
    assert "would be returned in short steps" in cli("compact", "a.db", "--dry-run")
    assert (planned["dry_run"], planned["bytes_before"], path.stat().st_size) == (True, size, size)
    returned = cli.json("compact", "--store", "a.db")
    assert returned["returned_bytes"] >= planned["free_bytes"] > 0
    assert path.stat().st_size == returned["bytes_after"] <= planned["bytes_after"]
    assert "0 B were returned" in cli("compact", "a.db")
    check_kept(path)


def test_an_earlier_file_is_rewritten_on_request_only(cli: Cli) -> None:
    path = filled(Path("a.db"), mode=NONE)
    assert "(--rewrite)" in cli("compact", "a.db", "--dry-run")
    assert "`millstream compact" in cli.error("compact", "a.db")
    assert cli.json("compact", "a.db", "--rewrite")["rewritten"]
    check_kept(path)


def test_a_damaged_store_is_refused_and_left_alone(cli: Cli) -> None:
    data = bytearray(filled(Path("a.db")).read_bytes())
    data[16] ^= 1
    Path("a.db").write_bytes(data)
    shutil.copy("a.db", "copy.db")
    assert "is damaged" in cli.error("compact", "a.db")
    assert Path("a.db").read_bytes() == Path("copy.db").read_bytes()


def test_what_is_no_store_in_a_file_is_refused(cli: Cli) -> None:
    assert "there is no store" in cli.error("compact", "b.db", code=2)
    assert "compacts it by itself" in cli.error("compact", f"file://{cli.directory}/bucket")
    assert "not a server" in cli.error("compact", "http://localhost:1", code=2)
    Path("text.db").write_text("Dear diary")
    assert "is no SQLite file" in cli.error("compact", "text.db", code=2)
