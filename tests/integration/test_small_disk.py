"""A store on a disk below 256 MiB, which it fills.

Promises: when publishing is refused, reads, claims, acknowledgements and truncation still work, a
checkpoint has the room that it needs, and once logs are truncated records are taken again. A copy
into a folder on such a disk ends soon, says that it is full, and goes on once there is room.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import millstream

pytestmark = [pytest.mark.requires("mounts"), pytest.mark.faults, pytest.mark.slow]


@pytest.mark.parametrize("disk_mb", [16, 64])
def test_a_small_disk_that_is_full_can_be_truncated(tmp_path: Path, disk_mb: int) -> None:
    mount = f'mount -t tmpfs -o size={disk_mb}m tmpfs "$1"'
    program = 'exec "$0" -m tests.integration.small_disk "$1"'
    ran = subprocess.run(
        ["unshare", "-rm", "sh", "-c", f"{mount} && {program}", sys.executable, str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=250,
    )
    assert ran.returncode == 0, ran.stderr
    assert int(ran.stdout) > 1_000


@pytest.mark.requires("s3")
def test_a_copy_into_a_folder_of_a_full_disk_ends_and_goes_on_with_room(tmp_path: Path) -> None:
    source, disk = tmp_path / "source.db", tmp_path / "disk"
    disk.mkdir()
    with millstream.open(source) as ms:
        for _ in range(24):
            ms.log("a").append_many([os.urandom(1_000) for _ in range(1_000)])
    copy = '"$0" -m millstream copy "$1" "file://$2/store"'
    steps = [
        'mount -t tmpfs -o size=16m tmpfs "$2"',
        f"! timeout 20 {copy}",
        'mount -o remount,size=128m "$2"',
        copy,
    ]
    ran = subprocess.run(
        ["unshare", "-rm", "sh", "-c", " && ".join(steps), sys.executable, source, disk],
        capture_output=True,
        text=True,
        timeout=250,
    )
    assert ran.returncode == 0, ran.stderr
    assert "is full" in ran.stderr
    assert "Copy again" in ran.stderr
    assert "are the same in" in ran.stdout
