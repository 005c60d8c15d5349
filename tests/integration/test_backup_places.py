"""Backups in places that fail: a bucket on S3, a bucket without permission, a disk that is full.

Promises: a backup in a bucket is complete, incremental and verified. A refusal is one sentence with the
reason, no point is added, and the next run goes on with the chunks that are there.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import millstream
from millstream import doctor
from millstream.backup.keep import Keep
from millstream.backup.place import BackupPlace
from millstream.backup.restore import restore
from millstream.backup.run import back_up
from millstream.backup.verify import verify
from millstream.errors import MillstreamError, StoreError
from tests.kit.objects import Fault, ObjectProxy
from tests.unit.store.test_store_copy import fill, rows_of

pytestmark = [pytest.mark.faults, pytest.mark.slow]


@pytest.fixture
def source(tmp_path: Path) -> Path:
    fill(tmp_path / "a.db")
    return tmp_path / "a.db"


@pytest.mark.requires("s3")
def test_a_backup_in_a_bucket_is_complete_and_incremental(
    source: Path, proxy: ObjectProxy, address: str, tmp_path: Path
) -> None:
    with millstream.open(source) as ms:
        ms.log("large").append_many([os.urandom(60_000) for _ in range(20)])
    first = back_up(source, address)
    assert first.stored_chunks == first.chunks
    with millstream.open(source) as ms:
        ms.log("orders").append(b"one more")
    second = back_up(source, address, keep=Keep(newest=1))
    assert 0 < second.stored_chunks < second.chunks
    assert second.deleted_points == 1
    report = verify(address)
    assert (report.points, report.damage) == (1, [])
    restore(address, tmp_path / "b.db")
    assert doctor.examine(tmp_path / "b.db").healthy
    assert rows_of(tmp_path / "b.db") == rows_of(source)


@pytest.mark.requires("s3")
def test_a_bucket_without_permission_is_one_sentence(
    source: Path, proxy: ObjectProxy, address: str, tmp_path: Path
) -> None:
    def deny(method: str, path: str) -> Fault | None:
        return "deny" if method in ("PUT", "POST", "DELETE") else None

    back_up(source, address)
    with millstream.open(source) as ms:
        ms.log("orders").append(b"one more")
    proxy.script = deny
    with pytest.raises(MillstreamError) as refused:
        back_up(source, address)
    assert "\n" not in refused.value.message
    assert address in refused.value.message or "AccessDenied" in refused.value.message
    proxy.script = lambda _method, _path: "deny"
    for work in (lambda: verify(address), lambda: restore(address, tmp_path / "b.db")):
        with pytest.raises(MillstreamError) as refused:
            work()
        assert "\n" not in refused.value.message
    assert not (tmp_path / "b.db").exists()
    proxy.script = None
    assert len(BackupPlace(address).points()) == 1
    back_up(source, address)
    assert verify(address).damage == []


@pytest.mark.requires("s3")
def test_a_bucket_that_fails_in_the_middle_gets_the_others_later(
    source: Path, proxy: ObjectProxy, address: str, tmp_path: Path
) -> None:
    with millstream.open(source) as ms:
        ms.log("large").append_many([os.urandom(60_000) for _ in range(40)])
    stored: list[str] = []

    def deny_most(method: str, path: str) -> Fault | None:
        if method == "PUT" and "/chunks/" in path:
            stored.append(path)
            return "deny" if len(stored) > 3 else None
        return None

    proxy.script = deny_most
    with pytest.raises((StoreError, MillstreamError)):
        back_up(source, address)
    proxy.script = None
    assert BackupPlace(address).points() == []
    report = back_up(source, address)
    assert report.stored_chunks < report.chunks
    restore(address, tmp_path / "b.db")
    assert rows_of(tmp_path / "b.db") == rows_of(source)


@pytest.mark.requires("mounts")
def test_a_full_disk_is_told_and_the_next_run_goes_on(tmp_path: Path) -> None:
    source, disk = tmp_path / "source.db", tmp_path / "disk"
    disk.mkdir()
    with millstream.open(source) as ms:
        ms.log("a").append_many([os.urandom(1_000) for _ in range(4_000)])
    backup = '"$0" -m millstream backup "$1" "$2/backup"'
    steps = [
        'mount -t tmpfs -o size=3m tmpfs "$2"',
        f"! {backup}",
        '"$0" -m millstream backup list "$2/backup"',
        'mount -o remount,size=32m "$2"',
        backup,
        '"$0" -m millstream backup verify "$2/backup"',
    ]
    ran = subprocess.run(
        ["unshare", "-rm", "sh", "-c", " && ".join(steps), sys.executable, source, disk],
        capture_output=True,
        text=True,
        timeout=250,
    )
    assert ran.returncode == 0, ran.stderr
    assert "its disk is full, and there is no new point" in ran.stderr
    assert ran.stderr.count("error: ") == 1
    assert "no points yet" in ran.stdout + ran.stderr
    assert "sound: 1 point can be restored" in ran.stdout
