"""Promise: streams run on a standalone cluster, from a file, a server and a bucket.

Master and worker are processes of Spark's own classes on this machine, and each of two executors is a
process of its own. Credentials of the bucket reach executors by `spark.executorEnv`.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from time import monotonic

import pytest

import millstream
from millstream.bench.objects import BUCKET, object_server, variables
from millstream.server.serving import running
from millstream.server.settings import Settings
from millstream.spark.local.session import prepare

pytestmark = [pytest.mark.timeout(600), pytest.mark.requires("s3")]

DRIVER = Path(__file__).with_name("standalone_driver.py")
PATIENCE_S = 120.0
ROWS = 1_200


@contextmanager
def daemon(folder: Path, kind: str, ready: str, *arguments: str) -> Iterator[str]:
    """Run a master or a worker while the block runs; answer what its log says when it is ready."""
    import pyspark

    environ = dict(os.environ)
    prepare(environ)
    environ |= {"SPARK_DAEMON_MEMORY": "256m", "SPARK_HOME": str(Path(pyspark.__file__).parent)}
    environ["SPARK_MASTER_OPTS"] = "-Dspark.master.rest.enabled=false"  # it has a fixed port
    command = [Path(environ["SPARK_HOME"]) / "bin" / "spark-class"]
    command += [f"org.apache.spark.deploy.{kind.lower()}.{kind}", "--host", "127.0.0.1"]
    command += ["--port", "0", "--webui-port", "0", *arguments]
    log = folder / f"{kind}.txt"
    with log.open("wb") as output:
        process = subprocess.Popen(command, env=environ, stdout=output, stderr=output, cwd=folder)
    try:
        deadline, waiting = monotonic() + PATIENCE_S, threading.Event()
        while (match := re.search(ready, text := log.read_text(errors="replace"))) is None:
            assert process.poll() is None, text[-3_000:]
            assert monotonic() < deadline, text[-3_000:]
            waiting.wait(0.05)
        yield match[0]
    finally:
        process.terminate()
        process.wait(PATIENCE_S)


def test_streams_from_a_file_a_server_and_a_bucket(no_spark: None, tmp_path: Path) -> None:
    values = [b"%d" % number for number in range(ROWS)]
    bucket, file, served = f"s3://{BUCKET}/shop", tmp_path / "file.db", tmp_path / "served.db"
    with (
        object_server() as objects,
        variables(objects),
        running(served, Settings(port=0, stop_s=1.0)) as server,
        daemon(tmp_path, "Master", r"spark://127\.0\.0\.1:\d+") as master,
        daemon(
            tmp_path, "Worker", "Successfully registered with master",
            "--cores", "2", "--memory", "2g", "--work-dir", str(tmp_path / "work"), master,
        ),
    ):  # fmt: skip
        for place in (file, server.url, bucket):
            with millstream.open(place) as store:
                store.log("orders").append_many(values)
        done = subprocess.run(
            [sys.executable, DRIVER, tmp_path, master, server.url, file, server.url, bucket],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=480,
            check=False,
        )
        assert done.returncode == 0, done.stderr[-3_000:]
        with millstream.open(server.url) as store:
            for number in range(3):
                copied = [record.value for record in store.log(f"copy-{number}").read()]
                assert sorted(copied) == sorted(values), number
    log = (tmp_path / "Worker.txt").read_text(errors="replace")
    assert set(re.findall(r"Asked to launch executor app-[\d-]+/(\d+)", log)) == {"0", "1"}
