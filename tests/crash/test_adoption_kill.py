"""Promise: what a bulk writer has staged in a bucket is published once, whenever its server is killed.

A server is killed with SIGKILL before and after the commit that adopts a job. Its standby takes over,
begins anew, and the job's driver gets its answer from there. Others write meanwhile, and none of them is
fenced by the job.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import millstream
from millstream.bench.objects import BUCKET, object_server, variables
from millstream.bench.server_program import ServerProgram, served
from millstream.clock import SystemClock
from millstream.format.packing import pack_many
from millstream.limits import Limits
from millstream.spark.failures import PATIENCE_S, VARIABLE
from millstream.spark.sink.adoption import Asking
from millstream.spark.sink.bucket_staging import objects_of, stage
from millstream.spark.sink.publishing import Version

pytestmark = [pytest.mark.requires("s3"), pytest.mark.crash, pytest.mark.slow]

PLACE = f"s3://{BUCKET}/shop"
VALUES = [b"%d" % number for number in range(500)]


@pytest.fixture
def bucket() -> Iterator[None]:
    with object_server() as server, variables(server):
        yield


def published(version: Version | None) -> int:
    """Stage two objects, as two tasks do, and have them adopted; how many records were published."""
    objects = objects_of(PLACE)
    files = []
    for task, values in enumerate((VALUES[:200], VALUES[200:])):
        packed = pack_many(values, keys=None, headers=None, timestamps=None, limits=Limits())
        assert packed is not None
        files.append(stage(objects, "job", str(task), [("", packed)], Limits()))
    return Asking(objects).adopt("job", version, "orders", files)


def kill_once(server: ServerProgram, stopped: Path) -> None:
    """Kill a server that has come to the point at which it stops."""
    until_s = SystemClock().seconds() + PATIENCE_S
    while not stopped.exists() and SystemClock().seconds() < until_s:
        threading.Event().wait(0.05)
    server.kill()
    assert stopped.exists()


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("point", "version"),
    [
        ("before adoption", None),
        ("after adoption", None),
        ("after adoption", Version("nightly", 3)),
    ],
)
def test_of_a_server_that_is_killed_as_it_adopts_the_standby_goes_on(
    bucket: None,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    point: str,
    version: Version | None,
) -> None:
    monkeypatch.setenv(VARIABLE, f"{point}:{tmp_path}/stopped")
    with served(PLACE) as server, ThreadPoolExecutor(1) as others:
        with millstream.open(server.url()) as ms:
            ms.log("others").append(b"before")
        with served(PLACE, "--standby") as standby:
            standby.await_said("waiting")
            killed = others.submit(kill_once, server, tmp_path / "stopped")
            count = published(version)
            killed.result()
            assert count == (0 if point == "after adoption" else len(VALUES))
            with millstream.open(standby.url()) as ms:
                assert [record.value for record in ms.log("orders").read()] == VALUES
                assert ms.log("others").append(b"after") == 1
                assert published(Version("nightly", 3)) == (len(VALUES) if version is None else 0)
            left = {one.name.partition("/")[0] for one in objects_of(PLACE).list()}
            assert not left & {"staging", "adopt"}
