"""`millstream backup` and `millstream restore`: what they print, and what they refuse."""

from __future__ import annotations

import subprocess
from collections.abc import Callable

import pytest

import millstream
from tests.unit.cli.conftest import Cli

Program = Callable[..., subprocess.Popen[bytes]]


@pytest.fixture
def store(cli: Cli) -> None:
    with millstream.open("a.db") as ms:
        ms.log("x").append(b"1")


def test_a_backup_is_made_listed_verified_and_restored(cli: Cli, store: None) -> None:
    made = cli.json("backup", "a.db", "kept", "--keep", "7d")
    assert made["stored_chunks"] == made["chunks"] > 0
    assert "0 chunks of" in cli("backup", "a.db", "kept")
    points = cli.json("backup", "list", "kept")["points"]
    assert [point["seq"] for point in points] == [made["seq"]] * 2
    assert cli("backup", "list", "kept").count("\n") == 3
    assert cli.json("backup", "verify", "kept", "--deep")["sound"]
    assert "sound" in cli("backup", "verify", "kept", "--at", str(made["seq"]))
    cli("restore", "kept", "b.db")
    assert cli("read", "x", "--values", "--store", "b.db") == "1\n"
    assert "b.db is there already" in cli.error("restore", "kept", "b.db", code=2)
    assert cli.json("restore", "kept", "b.db", "--replace")["aside"].endswith("b.db.aside-1")
    assert cli.json("restore", "kept", "c.db", "--at", "2099-01-01T00:00")["seq"] == made["seq"]


def test_a_damaged_backup_is_told_by_the_exit_code(cli: Cli, store: None) -> None:
    cli("backup", "a.db", "kept")
    (point,) = (cli.directory / "kept" / "points").iterdir()
    point.write_bytes(b"")
    assert "damage" in cli("backup", "list", "kept", code=1)
    assert "damaged" in cli("backup", "verify", "kept", code=1)


def test_mistakes_are_one_sentence(cli: Cli, store: None) -> None:
    (cli.directory / "full").mkdir()
    (cli.directory / "full" / "file").touch()
    assert "no backup: name an empty folder" in cli.error("backup", "a.db", "full", code=2)
    assert "lie in each other" in cli.error("backup", "a.db", ".")
    assert "there is no store" in cli.error("backup", "none.db", "kept", code=2)
    assert "there is no backup" in cli.error("restore", "kept", "b.db", code=2)
    assert "keep is a number" in cli.error("backup", "a.db", "kept", "--keep", "often")
    cli("backup", "a.db", "kept")
    assert "cannot restore commit 99" in cli.error("restore", "kept", "b.db", "--at", "99")
    assert not (cli.directory / "b.db").exists()


def test_a_stream_is_one_backup(cli: Cli, store: None, program: Program) -> None:
    with program("backup", "a.db", "-") as process:
        data, _ = process.communicate()
    assert process.returncode == 0
    assert data.startswith(b"millstream-backup-stream"), data[:80]
    cli("restore", "-", "b.db", input=data)
    assert cli("read", "x", "--values", "--store", "b.db") == "1\n"
    damaged = bytearray(data)
    damaged[len(data) // 2] ^= 1
    for wrong in (data[:-1], data[: len(data) // 2], bytes(damaged)):
        assert "is cut or not as it was written" in cli.error("restore", "-", "c.db", input=wrong)
    assert "is no backup" in cli.error("restore", "-", "c.db", input=b"letter", code=2)
    assert not (cli.directory / "c.db").exists()
