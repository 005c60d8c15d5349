"""`millstream backup` and `millstream restore`: what they print, and what they refuse."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from urllib.request import urlopen

import apsw
import pytest
from typer.testing import CliRunner

import millstream
from millstream.cli import app
from millstream.server.serving import running
from millstream.server.settings import Settings
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


def test_a_check_says_how_many_points_can_be_restored(cli: Cli, store: None) -> None:
    made = cli.json("backup", "a.db", "kept")
    assert cli("backup", "verify", "kept").startswith(
        f"sound: 1 point can be restored; {made['chunks']} chunks ("
    )
    with millstream.open("a.db") as ms:
        ms.log("x").append(b"2")
    again = cli.json("backup", "a.db", "kept")
    chunks = made["chunks"] + again["stored_chunks"]
    text = cli("backup", "verify", "kept")
    assert text.startswith(f"sound: 2 points can be restored; {chunks} chunks (")
    assert text.endswith(", each once, were read and fit their hashes\n")
    assert cli.json("backup", "verify", "kept")["chunks"] == chunks
    first, _ = sorted((cli.directory / "kept" / "points").iterdir())
    first.write_bytes(b"")
    assert "damaged: 1 of 2 points cannot be restored" in cli("backup", "verify", "kept", code=1)


def test_a_damaged_chunk_is_named_and_stored_again_once_deleted(cli: Cli, store: None) -> None:
    made = cli.json("backup", "a.db", "kept")
    chunk = max((cli.directory / "kept").rglob("chunks/*/*"), key=lambda path: path.stat().st_size)
    chunk.write_bytes(chunk.read_bytes()[:-1] + b"?")
    text = cli("backup", "verify", "kept", code=1)
    name = f"chunks/{chunk.parent.name}/{chunk.name}"
    assert f"restored: the chunk {name} is not as it was written\n" in text
    assert (
        f"damaged: 1 of 1 point cannot be restored completely; 1 chunk damaged or missing; "
        f"{made['chunks'] - 1} chunk"
    ) in text
    assert text.endswith(f"that the store still has\n  kept/{name}\n")
    chunk.unlink()
    assert f"{name} is missing" in cli("backup", "verify", "kept", code=1)
    assert cli.json("backup", "a.db", "kept")["stored_chunks"] == 1
    assert cli.json("backup", "verify", "kept")["sound"]


def test_a_check_of_unreadable_points_alone_speaks_of_no_chunks(cli: Cli, store: None) -> None:
    cli("backup", "a.db", "kept")
    (point,) = (cli.directory / "kept" / "points").iterdir()
    point.write_bytes(b"")
    text = cli("backup", "verify", "kept", code=1)
    assert text.endswith("damaged: 1 of 1 point cannot be restored completely\n")


def test_a_store_behind_a_server_is_backed_up(cli: Cli, store: None) -> None:
    with running(Path("a.db"), Settings(port=0, stop_s=1.0)) as server:
        made = cli.json("backup", server.url, "kept", "--keep", "7d")
        assert made["stored_chunks"] == made["chunks"] > 0
        assert "0 chunks of" in cli("backup", server.url, "kept")
        streamed = CliRunner().invoke(app, ["backup", server.url, "-"]).stdout_bytes
        cli("restore", "-", "streamed.db", input=streamed)
        assert "only a file can be followed" in cli.error("backup", server.url, "kept", "--follow")
        facts = cli.json("stats", "--store", server.url)
        assert facts["backup_age_s"] >= 0
        assert re.search(r"backup age\t\d+ s", cli("stats", "--store", server.url))
        with urlopen(f"{server.url}/metrics") as answer:
            assert b"millstream_backup_age_seconds" in answer.read()
    text = cli.error("backup", server.url, "kept", code=2)
    assert f"cannot reach {server.url}" in text
    assert "there is no new point" in text
    cli("backup", "a.db", "kept", "--token", "x", code=2)
    assert "--token and --ca are for a server" in cli.stderr
    cli("restore", "kept", "b.db")
    assert cli("read", "x", "--values", "--store", "b.db") == "1\n"


def test_a_damaged_store_is_repaired_from_its_backup(cli: Cli, store: None) -> None:
    with millstream.open("a.db") as ms:
        ms.log("large").append_many([b"x" * 2_000] * 20)
        ms.fold()
    cli("backup", "a.db", "kept")
    assert "no damaged row or page" in cli("doctor", "a.db", "--repair", "--from", "kept")
    with closing(apsw.Connection("a.db")) as file:
        file.execute("UPDATE millstream_block SET value = zeroblob(length(value))")
        assert file.changes() == 1
    text = cli("doctor", "a.db", "--repair", "--from", "kept", code=1)
    assert "can replace: the block of payloads" in text
    assert "1 damaged part can be replaced from kept: --apply does it" in text
    assert cli.json("doctor", "a.db", code=1)["healthy"] is False
    text = cli("doctor", "a.db", "--repair", "--from", "kept", "--apply")
    assert "1 damaged part replaced; the store is healthy. The damaged file is" in text
    assert cli.json("doctor", "a.db")["healthy"]
    assert cli.json("doctor", "a.db", "--repair", "--from", "kept")["replaced"] == []
    cli("doctor", "a.db", "--repair", code=2)
    assert "--repair and --from belong together" in cli.stderr
    bucket = f"file://{cli.directory}/bucket"
    assert "is a bucket" in cli.error("doctor", bucket, "--repair", "--from", "kept")


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
