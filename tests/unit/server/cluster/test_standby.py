"""A primary and its standby: everything is shipped, and the standby can be promoted."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx
import pytest
from typer.testing import CliRunner

import millstream
from millstream.cli import app
from millstream.errors import CannotOpen, MillstreamError
from millstream.server.cluster.pair import Pairing
from millstream.server.serving import Serving, running
from millstream.server.settings import Settings

KEY = "k" * 64
SETTINGS = Settings(port=0, stop_s=1.0)


class Two:
    """The servers of a pair, by name."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.servers: dict[str, Serving] = {}
        self._endings: dict[str, ExitStack] = {}

    def start(self, name: str, standby_of: str = "", port: int = 0) -> str:
        pairing = Pairing(self.folder / f"{name}.db", name=name, key=KEY, standby_of=standby_of)
        ending = self._endings[name] = ExitStack()
        settings = Settings(port=port, stop_s=1.0)
        self.servers[name] = ending.enter_context(running(os.devnull, settings, pairing=pairing))
        return self.servers[name].url

    def stop(self, name: str) -> None:
        self._endings.pop(name).close()

    def close(self) -> None:
        for name in list(self._endings):
            self.stop(name)

    def status(self, name: str) -> Any:
        return httpx.get(f"{self.servers[name].url}/cluster/status", timeout=30).json()

    def promote(self, name: str) -> httpx.Response:
        return httpx.post(f"{self.servers[name].url}/cluster/promote", timeout=30)


@pytest.fixture
def two(tmp_path: Path) -> Iterator[Two]:
    found = Two(tmp_path)
    try:
        yield found
    finally:
        found.close()


def shipped(url: str, log: str, offset: int) -> bool:
    with millstream.open(url, read_level="eventual") as ms:
        return ms.log(log).wait(offset, timeout=30)


def test_a_standby_has_logs_queues_cursors_and_claims(two: Two) -> None:
    primary = two.start("a")
    with millstream.open(primary) as ms:
        ms.log("a").append_many([b"x" * 500] * 3_000)
        queue = ms.create_queue("q", sources=["a"], start="earliest")
        held = queue.claim(3)
        queue.ack(held[:1])
        cursor = ms.log("a").cursor("c")
        cursor.ack(cursor.take(10))
    two.stop("a")
    primary = two.start("a")  # what a standby has missed is not kept in memory any more
    standby = two.start("b", primary)
    with millstream.open(primary) as ms:
        ms.log("a").append(b"after")
        assert shipped(standby, "a", 3_000)
    with millstream.open(standby, read_level="eventual") as ms:
        assert ms.log("a").get(3_000).value == b"after"
        info = ms.queue("q").info()
        assert (info.done, info.in_flight) == (1, 2)
        assert ms.log("a").cursor("c").info().floor == 10
    told = two.status("b")
    assert (told["role"], told["leader"], told["snapshots"]) == ("follower", "a", 1)
    assert {one["node"] for one in two.status("a")["nodes"]} == {"a", "b"}


def test_what_is_written_at_a_standby_goes_to_the_primary(two: Two) -> None:
    primary = two.start("a")
    standby = two.start("b", primary)
    with millstream.open(standby) as ms:
        assert ms.log("a").append(b"0") == 0
        assert len(ms.log("a")) == 1
    assert httpx.put(f"{standby}/logs/b", timeout=30).status_code == 201


def test_a_standby_is_promoted_and_the_former_primary_is_kept_aside(two: Two) -> None:
    primary = two.start("a")
    port = two.servers["a"].port
    standby = two.start("b", primary)
    with millstream.open(primary) as ms:
        ms.log("a").append(b"0")
        assert shipped(standby, "a", 0)
    epoch = two.status("b")["epoch"]
    two.stop("a")
    promoted = two.promote("b")
    assert promoted.status_code == 200, promoted.text
    assert promoted.json()["role"] == "leader"
    assert promoted.json()["epoch"] > epoch
    with millstream.open(standby) as ms:
        assert ms.log("a").append(b"1") == 1

    again = two.start("a", port=port)  # before it heard that another one took its place
    with millstream.open(again, retry_for=0) as ms:
        ms.log("lost").append(b"in one file alone")
        mark = two.folder / "a.db.superseded"
        while not mark.exists():
            two.status("a")
        with pytest.raises(MillstreamError, match="was promoted in epoch"):
            ms.log("lost").append(b"x")
    assert "were not shipped, and are in this file alone" in two.status("a")["reason"]
    two.stop("a")
    with pytest.raises(CannotOpen, match="is kept aside: node b"):
        two.start("a", port=port)
    with millstream.open(two.folder / "a.db", mode="r") as kept:
        assert kept.log("lost").get(0).value == b"in one file alone"


def test_a_promoted_standby_stays_the_primary_and_has_a_standby_of_its_own(two: Two) -> None:
    primary = two.start("a")
    two.start("b", primary)
    with millstream.open(primary) as ms:
        ms.log("a").append(b"0")
        assert shipped(two.servers["b"].url, "a", 0)
    two.stop("a")
    assert two.promote("b").status_code == 200
    assert two.promote("b").status_code == 409
    two.stop("b")
    url = two.start("b", primary)
    third = two.start("c", url)
    with millstream.open(url) as ms:
        assert ms.log("a").append(b"1") == 1
    assert shipped(third, "a", 1)


def test_two_that_were_promoted_in_turn_do_not_stop_each_other(two: Two) -> None:
    first = two.start("a")
    second = two.start("b", first)
    port = two.servers["b"].port
    with millstream.open(first) as ms:
        ms.log("a").append(b"0")
    assert shipped(second, "a", 0)
    two.stop("a")
    assert two.promote("b").status_code == 200

    for file in two.folder.glob("a.db*"):
        file.unlink()
    third = two.start("a", second)  # where b still looks for its former primary
    with millstream.open(second) as ms:
        ms.log("a").append(b"1")
    assert shipped(third, "a", 1)
    two.stop("b")
    assert two.promote("a").status_code == 200
    with millstream.open(third) as ms:
        ms.log("a").append(b"2")

    two.start("b", third, port=port)  # it was promoted once, and says so to the newer primary
    mark = two.folder / "b.db.superseded"
    while not mark.exists():
        two.status("b")
    assert two.status("b")["role"] == "halted"
    assert two.status("a")["reason"] == ""
    with millstream.open(third) as ms:
        assert ms.log("a").append(b"3") == 3


def test_a_primary_that_was_killed_goes_on_with_its_standby(two: Two) -> None:
    primary = two.start("a")
    port = two.servers["a"].port
    standby = two.start("b", primary)
    with millstream.open(standby) as ms:
        for number in range(5):
            ms.log("a").append(b"%d" % number)
            ms.log("a").end_offset()
        assert shipped(standby, "a", 4)
        two.stop("a")
        two.start("a", port=port)
        assert ms.log("a").append(b"5") == 5
        assert shipped(standby, "a", 5)
    assert two.status("b")["reason"] == ""


def test_only_nodes_may_take_entries(two: Two) -> None:
    primary = two.start("a")
    for path in ("entries", "supersede"):
        kind = "application/msgpack" if path == "entries" else "application/json"
        found = httpx.post(
            f"{primary}/cluster/{path}",
            content=b'{"node":"x","address":"y","epoch":9,"sequence":0}',
            headers={"content-type": kind},
            timeout=30,
        )
        assert found.status_code == 403, path
    assert two.promote("a").status_code == 409


def test_the_command_promotes_a_standby(two: Two) -> None:
    primary = two.start("a")
    standby = two.start("b", primary)
    runner = CliRunner()
    refused = runner.invoke(app, ["promote", primary])
    assert refused.exit_code == 1
    assert "is not a standby" in refused.output
    done = runner.invoke(app, ["promote", standby])
    assert (done.exit_code, done.output.strip()) == (0, "b is the primary now, in epoch 2")
