"""A store on a disk below 256 MiB, which it fills.

Promises: when publishing is refused, reads, claims, acknowledgements and truncation still work, a
checkpoint has the room that it needs, and once logs are truncated records are taken again.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

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
