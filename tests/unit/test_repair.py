"""A repair replaces damaged rows and pages by proven copies, and leaves everything else as it is."""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import apsw
import pytest

import millstream
from millstream.backup.run import back_up
from millstream.doctor import examine
from millstream.doctor.donor import Donor, open_donor
from millstream.doctor.repair import RepairReport, apply_repair, plan_repair
from millstream.engine.copy import copy_store
from millstream.engine.sqlite.file import PAGE_BYTES
from millstream.engine.sqlite.options import SqliteOptions
from millstream.errors import CannotOpen, MillstreamError
from millstream.server.serving import running
from millstream.server.settings import Settings
from tests.unit.store.test_store_copy import fill, names_in, rows_of

BLOCK = (
    "UPDATE millstream_block SET value = zeroblob(length(value)) "
    "WHERE id = (SELECT max(id) FROM millstream_block)"
)
LARGE = 30


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A store, and its backup beside it."""
    fill(tmp_path / "a.db")
    with millstream.open(tmp_path / "a.db") as ms:
        ms.log("large").append_many([os.urandom(3_000) for _ in range(LARGE)])
        ms.log("x").append(b"1")
        ms.fold()
    back_up(tmp_path / "a.db", tmp_path / "backup")
    return tmp_path / "a.db"


def damage(path: Path, statement: str, *values: Any) -> None:
    with closing(apsw.Connection(str(path))) as file:
        file.execute(statement, values)
        assert file.changes(), "the statement has found nothing to damage"


@contextmanager
def donor_at(place: Path | str) -> Iterator[Donor]:
    folder = Path(place).parent if isinstance(place, Path) else Path.cwd()
    with open_donor(str(place), folder=folder) as donor:
        yield donor


def repaired(path: Path, place: Path | str) -> RepairReport:
    with donor_at(place) as donor:
        return apply_repair(path, donor)


def test_a_damaged_row_is_replaced_from_a_backup(path: Path, tmp_path: Path) -> None:
    before = rows_of(path)
    damage(path, BLOCK)
    damaged_bytes = path.read_bytes()
    assert not examine(path).healthy
    with donor_at(tmp_path / "backup") as donor:
        plan = plan_repair(path, donor)
        assert path.read_bytes() == damaged_bytes
        report = apply_repair(path, donor)
    assert plan.replaced == report.replaced
    assert len(report.replaced) == 1
    assert "the block of payloads" in report.replaced[0]
    assert (plan.applied, plan.healthy, plan.aside) == (False, None, None)
    assert (report.applied, report.healthy, report.remaining) == (True, True, [])
    assert rows_of(path) == before
    assert Path(str(report.aside)).read_bytes() == damaged_bytes
    assert names_in(tmp_path) == {"a.db", "a.db.aside-1", "backup"}


def test_a_backup_whose_newest_point_is_damaged_repairs_from_the_point_before(
    path: Path, tmp_path: Path
) -> None:
    before = rows_of(path)
    damage(path, BLOCK)
    newest = tmp_path / "backup" / "points" / "99999999999999-9.json"
    newest.write_bytes(b"{}")
    assert repaired(path, tmp_path / "backup").healthy
    assert rows_of(path) == before


def test_a_copy_and_a_server_are_donors_too(path: Path, tmp_path: Path) -> None:
    before = rows_of(path)
    copy_store(str(path), str(tmp_path / "copy.db"))
    damage(path, BLOCK)
    assert repaired(path, tmp_path / "copy.db").healthy
    damage(path, BLOCK)
    with running(tmp_path / "copy.db", Settings(port=0, stop_s=1.0)) as server:
        assert repaired(path, server.url).healthy
    assert rows_of(path) == before


def test_a_row_that_has_changed_since_is_left_as_it_is(path: Path, tmp_path: Path) -> None:
    with millstream.open(path) as ms:
        jobs = ms.queue("jobs")
        jobs.ack(jobs.claim(2))
        ms.log("new").append_many([os.urandom(3_000) for _ in range(LARGE)])
        ms.log("x").append(b"2")
        ms.fold()
    with donor_at(tmp_path / "backup") as donor:
        stale = [key for key, value in rows_of(path).items() if donor.get(key) not in (None, value)]
    key = next(key for key in stale if len(rows_of(path)[key]) > 20)
    statement = (
        "UPDATE millstream_record SET value = CAST(zeroblob(length(value)) AS BLOB) WHERE key = ?"
    )
    damage(path, statement, key)
    damage(path, BLOCK)  # of the log that is new
    damaged_bytes = path.read_bytes()
    report = repaired(path, tmp_path / "backup")
    assert (report.replaced, report.applied, report.aside) == ([], False, None)
    assert "has another version of it" in report.remaining[0]
    assert "does not have it" in report.remaining[1]
    assert path.read_bytes() == damaged_bytes
    assert names_in(tmp_path) == {"a.db", "backup"}


def test_a_damaged_donor_gives_only_sound_rows(path: Path, tmp_path: Path) -> None:
    copy_store(str(path), str(tmp_path / "copy.db"))
    first = BLOCK.replace("max(id)", "min(id)")
    damage(path, BLOCK)
    damage(path, first)
    damage(tmp_path / "copy.db", first)
    report = repaired(path, tmp_path / "copy.db")
    assert (len(report.replaced), len(report.remaining)) == (1, 1)
    assert (report.applied, report.healthy) == (True, False)


def test_any_flipped_byte_is_repaired_or_reported_and_nothing_is_guessed(
    path: Path, tmp_path: Path
) -> None:
    chance = random.Random(int(os.environ.get("MILLSTREAM_SEED", "1")))
    with millstream.open(path) as ms:  # the backup is older than the store
        ms.log("x").append_many([b"%d" % number for number in range(20)])
        jobs = ms.queue("jobs")
        jobs.ack(jobs.claim(2))
        ms.fold()
    sound, rows = path.read_bytes(), rows_of(path)
    outcomes = {True: 0, False: 0}
    with donor_at(tmp_path / "backup") as donor:
        for _ in range(25):
            data = bytearray(sound)
            data[chance.randrange(PAGE_BYTES, len(data))] ^= 1 << chance.randrange(8)
            path.write_bytes(data)
            try:
                report = apply_repair(path, donor)
            except MillstreamError:
                continue  # SQLite does not find the tables any more: nothing was changed
            outcomes[bool(report.replaced)] += 1
            if report.healthy:
                assert rows_of(path) == rows
            for leftover in tmp_path.glob("a.db*"):
                leftover.unlink()
    assert outcomes[True], outcomes


def test_a_damaged_page_with_a_checksum_is_replaced(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    with millstream.open(path, options=SqliteOptions(page_checksums=True)) as ms:
        ms.log("large").append_many([os.urandom(3_000) for _ in range(LARGE)])
        ms.fold()
    back_up(path, tmp_path / "backup")
    sound, rows = path.read_bytes(), rows_of(path)
    count = len(sound) // PAGE_BYTES
    for page in range(count // 2, count, 3):  # all full of payloads
        data = bytearray(sound)
        data[page * PAGE_BYTES + 100] ^= 0xFF
        path.write_bytes(data)
        report = repaired(path, tmp_path / "backup")
        assert f"page {page + 1:,} (" in report.replaced[0]
        assert report.healthy, page
        assert rows_of(path) == rows
    data = bytearray(sound)
    page = count - 1
    data[page * PAGE_BYTES + 100] ^= 0xFF
    data[(page + 1) * PAGE_BYTES - 1] ^= 0xFF  # the checksum too
    path.write_bytes(data)
    report = repaired(path, tmp_path / "backup")
    assert f"page {page + 1:,}: " in report.remaining[0]
    assert len(report.replaced) == 1  # the row still has its own checksum
    assert rows_of(path) == rows


def test_what_cannot_be_repaired_is_refused(path: Path, tmp_path: Path) -> None:
    fill(tmp_path / "other.db")
    for place, message in (("none", "there is no backup"), ("other.db", "is another store")):
        with pytest.raises(CannotOpen, match=message):
            repaired(path, tmp_path / place)
    damage(path, BLOCK)
    with (
        millstream.open(path),
        pytest.raises(CannotOpen, match="is in use"),
        donor_at(tmp_path / "backup") as donor,
    ):
        apply_repair(path, donor)
    assert names_in(tmp_path) == {"a.db", "other.db", "backup"}
    assert repaired(path, tmp_path / "backup").healthy


def test_a_healthy_store_is_left_as_it_is(path: Path, tmp_path: Path) -> None:
    report = repaired(path, tmp_path / "backup")
    assert (report.replaced, report.remaining, report.applied) == ([], [], False)
    assert names_in(tmp_path) == {"a.db", "backup"}


def test_a_table_that_cannot_be_read_is_reported_and_the_file_stays(
    path: Path, tmp_path: Path
) -> None:
    with closing(apsw.Connection(str(path))) as file:
        query = "SELECT rootpage FROM sqlite_schema WHERE name = 'millstream_payload'"
        root = file.execute(query).get
    content = bytearray(path.read_bytes())
    content[(root - 1) * PAGE_BYTES + 3 : (root - 1) * PAGE_BYTES + 7] = b"\xff" * 4  # its cells
    path.write_bytes(content)
    report = repaired(path, tmp_path / "backup")
    assert not report.applied
    assert any("millstream_payload cannot be read to its end" in text for text in report.remaining)
    assert path.read_bytes() == content
    assert names_in(tmp_path) == {"a.db", "backup"}
