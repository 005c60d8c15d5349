"""The doctor on object storage: what is sound is healthy, and what is damaged or missing is named."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

import millstream
from millstream.doctor import examine
from millstream.engine.open import open_engine
from millstream.errors import CannotOpen
from millstream.format import keys
from millstream.testing.probe import corrupt

pytestmark = pytest.mark.requires("s3")


@pytest.fixture
def address(tmp_path: Path) -> str:
    """A store with logs, a queue and a cursor, folded."""
    found = f"file://{tmp_path}/bucket"
    with millstream.open(found) as ms:
        ms.log("orders").append_many([b"%d" % n * 30 for n in range(1_000)])
        ms.log("notes").append("single")
        jobs = ms.queue("jobs", sources=["orders"], start="earliest")
        jobs.ack(jobs.claim(5))
        ms.log("orders").cursor("reader").take(3)
        ms.fold()
    return found


def test_a_sound_bucket_is_healthy(address: str) -> None:
    report = examine(address)
    assert report.healthy, report.problems
    assert report.rows["payload_block"] >= 1
    assert report.rows["record"] > 3


def test_a_damaged_row_is_named(address: str) -> None:
    engine = open_engine(address)
    with engine.read() as snapshot:
        ((key, _),) = snapshot.scan(*keys.range_of(keys.prefix(keys.HEAD)), limit=1)
    corrupt(engine, key)
    engine.close()
    report = examine(address)
    assert not report.healthy
    assert any("checksum" in finding.message for finding in report.problems)


def test_what_a_job_left_behind_is_named_and_harms_nothing(address: str, tmp_path: Path) -> None:
    folder = tmp_path / "bucket" / "staging"
    for name, age_s in (("old", 2 * 24 * 3600), ("young", 0)):
        (folder / name).mkdir(parents=True)
        staged = folder / name / "0-1"
        staged.write_bytes(b"block")
        at_s = staged.stat().st_mtime - age_s
        os.utime(staged, (at_s, at_s))
    report = examine(address)
    assert report.healthy
    (found,) = report.problems
    assert found.severity == "waste"
    assert "staging/old/: 1 staged objects with 5 bytes" in found.message


def test_a_missing_object_is_named(address: str, tmp_path: Path) -> None:
    objects = sorted((tmp_path / "bucket" / "compacted").iterdir())
    assert objects
    for one in objects:
        one.unlink()
    report = examine(address)
    assert not report.healthy
    told = " ".join(finding.message for finding in report.problems)
    assert all(one.name in told for one in objects)


def test_where_there_is_no_store_it_says_so(tmp_path: Path) -> None:
    with pytest.raises(CannotOpen, match="there is no store"):
        examine(f"file://{tmp_path}/none")
