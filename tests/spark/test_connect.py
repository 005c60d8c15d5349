"""Promise: reads, writes and streams work through Spark Connect as they do in the driver's process."""

from __future__ import annotations

import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

import millstream

DRIVER = Path(__file__).with_name("connect_driver.py")


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.skipif(find_spec("grpc") is None, reason="pyspark[connect] is not installed")
def test_the_source_works_through_spark_connect(no_spark: None, tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    with millstream.open(path) as store:
        store.log("from").append_many([b"%d" % i for i in range(10)])
    done = subprocess.run(
        [sys.executable, DRIVER, path, tmp_path / "checkpoint"],
        cwd=tmp_path,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=540,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3_000:]
    assert "TYPE pyspark.sql.connect" in done.stdout
    with millstream.open(path) as store:
        for log in ("batch", "streamed"):
            assert [int(record.value) for record in store.log(log).read()] == list(range(10)), log
