"""Promise: jobs that stage beside the same store do not get into each other's way."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from millstream.limits import Limits
from millstream.spark.sink import disk_staging as staging


@pytest.mark.parametrize("is_there", [False, True], ids=["made", "found"])
def test_a_folder_that_another_job_removes_at_that_moment_is_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_there: bool
) -> None:
    path, make, removed = str(tmp_path / "store.db"), os.mkdir, list[str]()
    root = staging.directory_of(path, "job").parent
    if is_there:
        root.mkdir()

    def make_while_another_sweeps(wanted: str | Path, mode: int = 0o777) -> None:
        try:
            make(wanted, mode)
        finally:
            if Path(wanted) == root and not removed:
                removed.append(str(wanted))
                staging.sweep(path)
                assert not root.exists()

    monkeypatch.setattr(os, "mkdir", make_while_another_sweeps)
    staged = staging.stage(path, "job", "0-0", [], Limits())
    assert removed == [str(root)]
    assert (staging.directory_of(path, "job") / staged.name).exists()
