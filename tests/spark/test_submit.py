"""Promise: a job that is handed to `spark-submit` finds the source in the environment it is given."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import millstream
from millstream.spark.session import prepare

DRIVER = Path(__file__).with_name("copying_driver.py")


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_submitted_job_reads_and_writes(no_spark: None, tmp_path: Path) -> None:
    import pyspark

    path = tmp_path / "store.db"
    with millstream.open(path) as store:
        store.log("from").append_many([b"%d" % i for i in range(10)])
    environ = dict(os.environ)
    prepare(environ)
    assert environ["PYSPARK_PYTHON"] == sys.executable
    done = subprocess.run(
        [
            *(Path(pyspark.__file__).parent / "bin" / "spark-submit", "--master", "local[2]"),
            *("--conf", "spark.driver.memory=800m"),
            *(DRIVER, path, tmp_path / "checkpoint"),
        ],
        cwd=tmp_path,
        env=environ,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=540,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-2_000:] + done.stderr[-2_000:]
    with millstream.open(path) as store:
        assert [int(record.value) for record in store.log("to").read()] == list(range(10))
