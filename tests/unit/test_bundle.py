"""Promise: a bundle has what a maintainer needs, and nothing that a user wrote."""

from __future__ import annotations

import sqlite3
import zipfile
from contextlib import closing
from pathlib import Path

import msgspec
import pytest

import millstream
from millstream.doctor import Finding, examine
from millstream.doctor.bundle import write_bundle
from millstream.errors import CannotOpen

PRIVATE = "do-not-tell"


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """A store with a private text in every place where a user can write one."""
    path = tmp_path / f"{PRIVATE}.db"
    with millstream.open(path) as ms:
        log = ms.log(f"{PRIVATE}-log")
        log.append(PRIVATE.encode(), key=PRIVATE, headers={PRIVATE: PRIVATE})
        log.cursor(f"{PRIVATE}-cursor").ack([0])
        log.metadata[PRIVATE] = PRIVATE
        ms.create_queue(f"{PRIVATE}-queue").put({PRIVATE: PRIVATE})
        ms.room(f"{PRIVATE}-room").send(PRIVATE, {PRIVATE: PRIVATE})
        with ms.transaction() as tx:
            tx.sql(f'CREATE TABLE "{PRIVATE}" ("{PRIVATE}" TEXT DEFAULT \'{PRIVATE}\')')
            tx.sql(f'CREATE INDEX "{PRIVATE}-index" ON "{PRIVATE}" ("{PRIVATE}")')
        ms.fold()
    with closing(sqlite3.connect(path)) as application:
        application.execute(
            f'CREATE TRIGGER "{PRIVATE}-trigger" AFTER INSERT ON millstream_inbox '
            f"BEGIN INSERT INTO \"{PRIVATE}\" VALUES ('{PRIVATE}'); END"
        )
    return path


def parts_of(bundle: Path) -> dict[str, bytes]:
    with zipfile.ZipFile(bundle) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def test_it_has_versions_sizes_and_settings_without_any_text_of_users(
    store: Path, tmp_path: Path
) -> None:
    environ = {
        "MILLSTREAM_TOKEN": PRIVATE,
        "MILLSTREAM_STORE": f"http://user:{PRIVATE}@host",
        "MILLSTREAM_SERVE_PORT": "8080",
        "PATH": PRIVATE,
    }
    bundle = tmp_path / "facts.zip"
    names = write_bundle(bundle, store, examine(store), environ=environ)
    parts = parts_of(bundle)
    assert list(parts) == names
    for name, content in parts.items():
        assert PRIVATE.encode() not in content, name
    facts = {name: msgspec.json.decode(content) for name, content in parts.items()}
    assert facts["versions.json"]["millstream"] == millstream.__version__
    assert facts["store.json"]["file_bytes"] == store.stat().st_size
    assert facts["store.json"]["pragmas"]["journal_mode"] == "wal"
    assert any("millstream_record" in text for text in facts["store.json"]["schema"])
    assert facts["store.json"]["application_objects"] == {"table": 1, "index": 1, "trigger": 1}
    assert facts["findings.json"]["healthy"]
    assert facts["settings.json"] == {"MILLSTREAM_SERVE_PORT": "8080", "MILLSTREAM_STORE": "(set)"}
    assert facts["environment.json"]["disks"]["store"]["free_bytes"] > 0


def test_problems_are_counted_without_the_names_that_they_quote(
    store: Path, tmp_path: Path
) -> None:
    report = examine(store)
    report.problems.append(Finding(kind="log", message=f"log {PRIVATE} is damaged", log=PRIVATE))
    bundle = tmp_path / "facts.zip"
    write_bundle(bundle, store, report)
    content = parts_of(bundle)["findings.json"]
    assert PRIVATE.encode() not in content
    assert msgspec.json.decode(content)["problems"] == {"damage log": 1}


def test_a_file_that_exists_is_not_overwritten(store: Path, tmp_path: Path) -> None:
    bundle = tmp_path / "facts.zip"
    bundle.write_text("precious")
    with pytest.raises(CannotOpen, match="name another file"):
        write_bundle(bundle, store, examine(store))
    assert bundle.read_text() == "precious"


def test_log_lines_keep_events_and_numbers_and_lose_every_name(store: Path, tmp_path: Path) -> None:
    lines = [
        {
            "time": "2026-11-18T05:15:13.120Z",
            "level": "warning",
            "event": "slow_command",
            "logger": "millstream.server",
            "time_ms": 1,
            "command": "Append",
            "client": PRIVATE,
            "log": PRIVATE,
            "ms": 1_200,
            "waited_for": "writer turn",
        },
        {
            "event": "request_failed",
            "logger": "millstream.server",
            "error": "KeyError",
            "where": f"/home/{PRIVATE}/site-packages/millstream/server/core.py:12",
        },
        {"event": "request_failed", "logger": "millstream.server", "where": f"/{PRIVATE}/a.py:3"},
        {"event": "request", "path": f"/logs/{PRIVATE}", "status": 200, "principal": PRIVATE},
        {"event": f"error in {PRIVATE}", "logger": "uvicorn.error", "error": PRIVATE},
        {"event": f"text: {PRIVATE}?", "logger": "millstream.server", PRIVATE + "!": 1},
        {"event": {"nested": PRIVATE}, "logger": f"{PRIVATE}"},
    ]
    texts = [msgspec.json.encode(line) + b"\n" for line in lines]
    bundle = tmp_path / "facts.zip"
    log_lines = [b"no JSON " + PRIVATE.encode(), b"", *texts]
    write_bundle(bundle, store, examine(store), environ={}, log_lines=log_lines)
    content = parts_of(bundle)["log_lines.json"]
    assert PRIVATE.encode() not in content
    facts = msgspec.json.decode(content)
    assert facts["unreadable"] == 1
    slow, failed, elsewhere, request, *_ = facts["lines"]
    assert (slow["event"], slow["command"], slow["ms"]) == ("slow_command", "Append", 1_200)
    assert slow["waited_for"] == "writer turn"
    assert (failed["error"], failed["where"]) == ("KeyError", "millstream/server/core.py:12")
    assert elsewhere["where"] == "a.py:3"
    assert (request["event"], request["status"]) == ("request", 200)
    assert len(facts["lines"]) == len(lines)
