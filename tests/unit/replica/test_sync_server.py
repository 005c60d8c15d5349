"""A store and a server: what a token may copy, push alone, and a real server process."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import IO
from urllib.parse import urlsplit

import pytest

import millstream
from millstream import Millstream
from millstream.errors import Denied, NotOwner, TooLarge
from millstream.server.auth.tokens import create_token
from millstream.server.serving import Serving, running
from millstream.server.settings import Settings
from tests.unit.replica.copies import records, seen, values

OPEN = Settings(port=0, stop_s=1.0)
GUARDED = Settings(port=0, stop_s=1.0, auth="on")


@pytest.fixture
def own(tmp_path: Path) -> Iterator[Millstream]:
    with millstream.open(tmp_path / "own.db") as ms:
        yield ms


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Serving]:
    with running(tmp_path / "server.db", OPEN) as found:
        yield found


def test_a_server_is_a_peer_like_any_other(own: Millstream, server: Serving) -> None:
    own.log("mine").append_many([b"%d" % n for n in range(5_000)])
    own.log("mine").metadata["k"] = 1
    with millstream.open(server.url) as there:
        there.log("theirs").append_many([b"%d" % n for n in range(3_000)])
        outcome = own.sync(server.url, compress=True)
        assert (outcome.pulled, outcome.pushed) == (3_000, 5_000)
        assert seen(own) == seen(there)
        own.log("mine").truncate(before=1_000)
        outcome = own.sync(there)
        assert outcome.logs[0].truncated == 1_000
        assert own.sync(there).bytes < 1_000
        assert seen(own) == seen(there)
        there.log("mine").take_over()
        there.log("mine").append(b"there")
        own.log("mine").append(b"here")
        (log,) = own.sync(there).logs
        assert values(own, log.set_aside[0])[-1] == b"here"
        assert values(own, "mine")[-1] == b"there"


def test_two_servers_can_be_synced_by_a_third(tmp_path: Path, server: Serving) -> None:
    with (
        running(tmp_path / "other.db", OPEN) as other,
        millstream.open(server.url) as one,
        millstream.open(other.url) as two,
    ):
        one.log("x").append(b"1")
        assert one.sync(two).pushed == 1
        assert values(two, "x") == [b"1"]


def test_whoever_may_only_push_needs_nothing_more(tmp_path: Path, own: Millstream) -> None:
    path = tmp_path / "server.db"
    with millstream.open(path) as ms:
        ms.log("secret").append(b"s")
        ms.log("device/2").append(b"of another")
        _, token = create_token(ms, "device", ["replica:write:device/1"])
    own.log("device/1").append_many([b"1", b"2"])
    with running(path, GUARDED) as server:
        outcome = own.sync(server.url, direction="push", logs="device/*", token=token)
        assert outcome.pushed == 2
        assert own.sync(server.url, direction="push", logs="device/*", token=token).logs == []
        own.log("device/2").append(b"not mine to write")
        own.log("device/1").append(b"3")
        with pytest.raises(Denied) as caught:
            own.sync(server.url, direction="push", logs="device/*", token=token)
        assert caught.value.outcome.pushed == 1
        pulled = own.sync(server.url, direction="pull", token=token)
        assert pulled.pulled == 0
    with millstream.open(path) as ms:
        assert records(ms, "device/1") == records(own, "device/1")
        assert values(ms, "device/2") == [b"of another"]
        with pytest.raises(NotOwner):
            ms.log("device/1").append(b"no")
    assert {info.name for info in own.logs()} == {"device/1", "device/2"}


def test_whoever_may_only_read_can_pull_and_not_push(tmp_path: Path, own: Millstream) -> None:
    path = tmp_path / "server.db"
    with millstream.open(path) as ms:
        ms.log("public/1").append(b"1")
        ms.log("private").append(b"2")
        _, reader = create_token(ms, "reader", ["replica:read:public/*"])
        _, other = create_token(ms, "other", ["log:admin", "queue:admin"])
        before = seen(ms)
    with running(path, GUARDED) as server:
        assert own.sync(server.url, direction="pull", token=reader).pulled == 1
        assert [info.name for info in own.logs()] == ["public/1"]
        own.log("new").append(b"1")
        with pytest.raises(Denied):
            own.sync(server.url, direction="push", token=reader)
        outcome = own.sync(server.url, direction="pull", token=other)
        assert (outcome.looked_at, outcome.pulled) == (0, 0)
    with millstream.open(path) as ms:
        assert seen(ms) == before


def test_the_servers_limits_count_for_what_is_pushed(tmp_path: Path, own: Millstream) -> None:
    own.log("x").append_many([b"v" * 100, b"w" * 5_000])
    limits = millstream.Limits(value_bytes_max=1_000)
    with running(tmp_path / "small.db", OPEN, limits=limits) as server:
        with pytest.raises(TooLarge):
            own.sync(server.url)
        with millstream.open(server.url) as there:
            assert there.log("x").end_offset() == 0


@pytest.mark.slow
def test_a_real_server_process_is_followed_and_outlived(tmp_path: Path) -> None:
    """The program, both as a server that is killed and comes back, and as the one that follows it."""
    environment = {k: v for k, v in os.environ.items() if not k.startswith("MILLSTREAM_")}

    with ExitStack() as ending:

        def start(*arguments: str) -> tuple[subprocess.Popen[bytes], IO[bytes]]:
            process = subprocess.Popen(
                [sys.executable, "-m", "millstream", *arguments],
                cwd=tmp_path,
                env=environment,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
            )
            ending.enter_context(process)
            ending.callback(process.kill)
            assert process.stdout is not None
            return process, process.stdout

        def serve(port: str) -> tuple[subprocess.Popen[bytes], str]:
            process, out = start("serve", "server.db", "--port", port, "--json")
            found = urlsplit(json.loads(out.readline())["socket"])
            return process, f"http://{found.netloc}"

        server, url = serve("0")
        own = ending.enter_context(millstream.open(tmp_path / "own.db"))
        own.log("x").append(b"0")
        follower, out = start("sync", url, "--store", "own.db", "--follow", "--push", "--json")
        assert json.loads(out.readline())["pushed"] == 1
        server.kill()
        server.wait(30)
        own.log("x").append(b"1")
        server, url = serve(url.rpartition(":")[2])
        assert json.loads(out.readline())["pushed"] == 1
        with millstream.open(url) as there:
            assert values(there, "x") == [b"0", b"1"]
        follower.send_signal(signal.SIGINT)
        assert follower.wait(30) == 0


def test_a_server_says_what_it_does_not_give_to_a_token_that_may_know(
    own: Millstream, tmp_path: Path
) -> None:
    with millstream.open(tmp_path / "server.db") as ms:
        ms.log("x").append(b"1")
        ms.create_queue("jobs").put(b"2")
        _, few = create_token(ms, "few", ["replica:read:*"])
        _, more = create_token(ms, "more", ["replica:read:*", "store:read"])
    with running(tmp_path / "server.db", GUARDED) as server:
        kinds = []
        for token in (few, more):
            with millstream.open(server.url, token=token) as there:
                outcome = own.sync(there, direction="pull")
                kinds.append([(one.kind, one.count) for one in outcome.left_behind])
    assert kinds == [[("unknown", 0)], [("queue", 1), ("token", 2)]]
