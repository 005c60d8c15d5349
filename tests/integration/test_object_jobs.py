"""Jobs whose store is on object storage: each kind of job ends as on a file."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.kit.jobs import every_kind_of_job

pytestmark = [pytest.mark.requires("s3"), pytest.mark.slow]


def test_jobs_on_object_storage(tmp_path: Path) -> None:
    every_kind_of_job(f"file://{tmp_path}/store")
