"""Serving: taking an address, letting connections in, and stopping."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import ssl
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import httpx
import pytest
from websockets.exceptions import ConnectionClosed, InvalidStatus

import millstream
from millstream.errors import CannotOpen, InvalidInput
from millstream.log import commands as logs
from millstream.queue import commands as queues
from millstream.queue.model.spec import QueueSpec
from millstream.replica.sync.follow import WaitForChange
from millstream.server.auth.tokens import create_token
from millstream.server.listen.ports import CannotListen
from millstream.server.serving import Serving, running
from millstream.server.settings import Settings
from tests.unit.server.talking import single, talking

ANY = Settings(port=0)
SOON_S = 60.0
"""By then a test gives up: only a failure takes so long."""


def test_a_second_server_on_the_port_is_told_which_port_it_is(tmp_path: Path) -> None:
    with running(tmp_path / "store.db", ANY) as server:
        with pytest.raises(CannotListen, match="another port") as refused:
            Serving(tmp_path / "other.db", Settings(port=server.port))
        assert (refused.value.host, refused.value.port) == ("127.0.0.1", server.port)
        assert f"127.0.0.1:{server.port}" in refused.value.message
        assert not (tmp_path / "other.db").exists()


def test_a_port_is_free_again_after_a_stop(tmp_path: Path) -> None:
    with running(tmp_path / "store.db", ANY) as server, talking(server):
        port = server.port
    with running(tmp_path / "store.db", Settings(port=port)) as server, talking(server):
        assert server.port == port


def test_a_host_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(CannotListen, match=r"no\.such\.host\.invalid:0"):
        Serving(tmp_path / "store.db", Settings(host="no.such.host.invalid", port=0))


def test_a_store_that_cannot_be_opened_is_the_callers_error(tmp_path: Path) -> None:
    (tmp_path / "store.db").write_bytes(b"not a store" * 1000)
    with pytest.raises(CannotOpen), running(tmp_path / "store.db", ANY):
        pytest.fail("it runs")


def test_nobody_is_served_without_tokens_where_others_can_connect(tmp_path: Path) -> None:
    everywhere = Settings(host="0.0.0.0", port=0)
    with (
        pytest.raises(InvalidInput, match="millstream token create"),
        running(tmp_path / "store.db", everywhere),
    ):
        pytest.fail("it runs")
    with millstream.open(tmp_path / "store.db") as ms:
        _, text = create_token(ms, "me", ["log:write:*"])
    with running(tmp_path / "store.db", everywhere) as server:
        with pytest.raises(InvalidStatus), talking(server):
            pytest.fail("it talks")
        with talking(server, additional_headers={"authorization": f"Bearer {text}"}) as talk:
            assert talk.ask(logs.Append("a", single("x"))) == 0


def test_everybody_who_waits_is_told_when_the_server_stops(tmp_path: Path) -> None:
    with (
        running(tmp_path / "store.db", ANY) as server,
        talking(server) as waiting,
        talking(server) as claiming,
        talking(server) as idle,
    ):
        claiming.ask(queues.SpecifyQueue("q", QueueSpec(sources=("a",))))
        waiting.send((1, logs.WaitForOffset("a", 0, None)))
        claiming.send((1, queues.ClaimMessages("q", 1, None, "me", 60_000, [])))
        waiting.ask(logs.GetBounds("a"))  # so the waits have begun
        claiming.ask(logs.GetBounds("a"))
        server.stop()
        for talk in (waiting, claiming, idle):
            assert talk.ending() == (1001, "the server is stopping")


def test_a_follower_that_waits_for_a_change_is_not_waited_for(tmp_path: Path) -> None:
    with running(tmp_path / "store.db", ANY) as server, talking(server) as talk:
        newest = talk.ask(WaitForChange(0, 0))
        talk.send((1, WaitForChange(newest, 60_000)))
        talk.ask(logs.GetBounds("a"))  # so the wait has begun
        server.stop()
        with pytest.raises(ConnectionClosed):
            pytest.fail(f"it was answered: {talk.frame()}")


def test_what_was_begun_is_finished_when_the_server_stops(tmp_path: Path) -> None:
    with running(tmp_path / "store.db", ANY) as server, talking(server) as talk:
        talk.send(*[(n, logs.Append("a", single(b"x" * 5000))) for n in range(200)])
        server.stop()
        answered = 0
        with contextlib.suppress(ConnectionClosed):
            while True:
                answered += len(talk.frame())
        code, _ = talk.ending()
    assert code == 1001
    with millstream.open(tmp_path / "store.db") as ms:
        assert len(ms.log("a")) == answered  # what was begun was finished, and told


def test_who_does_not_answer_the_close_is_cut(tmp_path: Path) -> None:
    with (
        socket.socket() as silent,
        running(tmp_path / "store.db", Settings(port=0, stop_s=0.2)) as server,
    ):
        silent.connect(("127.0.0.1", server.port))
        with talking(server):
            pass


def test_a_head_that_is_too_large_is_refused(tmp_path: Path) -> None:
    with running(tmp_path / "store.db", Settings(port=0, head_bytes_max=2_000)) as server:
        assert (
            httpx.get(f"{server.url}/health", headers={"x": "y" * 1_000}, timeout=60).status_code
            == 200
        )
        assert (
            httpx.get(f"{server.url}/health", headers={"x": "y" * 3_000}, timeout=60).status_code
            == 431
        )
        with socket.create_connection(("127.0.0.1", server.port)) as raw:
            raw.sendall(b"GET / HTTP/1.1\r\nx: " + b"y" * 5_000)  # it never ends
            assert raw.recv(12) == b"HTTP/1.1 431"


def test_requests_on_one_connection_have_a_head_each(tmp_path: Path) -> None:
    with (
        running(tmp_path / "store.db", Settings(port=0, head_bytes_max=2_000)) as server,
        httpx.Client(timeout=60) as client,
    ):
        for _ in range(5):
            assert client.get(f"{server.url}/health", headers={"x": "y" * 1_000}).status_code == 200


def test_connections_over_the_bound_are_told_to_come_back(tmp_path: Path) -> None:
    with running(tmp_path / "store.db", Settings(port=0, connections_max=2)) as server:
        with talking(server), talking(server):
            answer = httpx.get(f"{server.url}/health", timeout=60)
            assert answer.status_code == 503
            assert answer.headers["retry-after"] == "1"
            with pytest.raises(InvalidStatus), talking(server):
                pytest.fail("it talks")
        with talking(server) as talk:
            assert talk.ask(logs.GetBounds("a")) == (0, 0)


@pytest.fixture
def certificate(tmp_path: Path) -> tuple[Path, Path]:
    """A certificate for 127.0.0.1 that only this test trusts."""
    found, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    command = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256"]
    command += ["-nodes", "-days", "2", "-subj", "/CN=127.0.0.1"]
    command += ["-addext", "subjectAltName=IP:127.0.0.1", "-out", str(found), "-keyout", str(key)]
    subprocess.run(command, check=True, capture_output=True)
    return found, key


def test_with_a_certificate_the_server_speaks_tls(
    tmp_path: Path, certificate: tuple[Path, Path]
) -> None:
    found, key = map(str, certificate)
    settings = Settings(port=0, certificate=found, key=key)
    trusting = ssl.create_default_context(cafile=found)
    with running(tmp_path / "store.db", settings) as server:
        assert server.url.startswith("https://")
        assert httpx.get(f"{server.url}/health", verify=trusting, timeout=60).status_code == 200
        with talking(server, ssl=trusting) as talk:
            assert talk.ask(logs.Append("a", single("x"))) == 0
        with pytest.raises(httpx.HTTPError):
            httpx.get(server.url.replace("https", "http"), timeout=60)


@pytest.mark.parametrize("given", [{"certificate": "x"}, {"key": "x"}])
def test_a_certificate_without_its_key_is_refused(tmp_path: Path, given: dict[str, Any]) -> None:
    with pytest.raises(InvalidInput, match="both"):
        Serving(tmp_path / "store.db", Settings(port=0, **given))


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_the_program_cleanly(tmp_path: Path, number: int) -> None:
    command = [sys.executable, "-m", "millstream", "serve", "--port", "0", "--json"]
    with subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        line = process.stdout.readline()
        assert b"ws://127.0.0.1" in line
        os.kill(process.pid, number)
        assert process.wait(30) == 0
    assert not list(tmp_path.glob("*-wal"))


LOSES_A_COMMIT = """
import sys, threading
from millstream.cli import main
from millstream.server import serving
from millstream.testing import Probe

make = serving.Core

def make_losing(store, settings, **options):
    core = make(store, settings, **options)
    threading.Thread(target=lose, args=[store]).start()
    return core

def lose(store):
    while not store.listeners.poison:
        pass  # the server is not up yet
    with Probe(store).hold_commits():
        store._poison(OSError("commit 7 is missing"))

serving.Core = make_losing
sys.argv = ["millstream", "serve", sys.argv[1], "--port", "0"]
main()
"""


def test_a_server_whose_store_lost_a_commit_ends_with_a_reason_and_a_code(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", LOSES_A_COMMIT, str(tmp_path / "a.db")],
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    assert done.returncode == 1, done.stderr
    assert "commit 7 is missing" in done.stderr
    assert '"store_poisoned"' in done.stderr


def test_stopping_twice_and_too_early_is_fine(tmp_path: Path) -> None:
    serving = Serving(tmp_path / "store.db", ANY)
    serving.stop()
    serving.run()
    serving.stop()
    assert not (tmp_path / "store.db").exists()


def test_two_servers_share_a_store(tmp_path: Path) -> None:
    with (
        running(tmp_path / "store.db", ANY) as one,
        running(tmp_path / "store.db", ANY) as other,
        talking(one) as writer,
        talking(other) as reader,
    ):
        reader.send((1, logs.WaitForOffset("a", 0, 30_000)))
        writer.ask(logs.Append("a", single("x")))
        assert reader.answers(1) == {1: True}


def test_a_server_leaves_no_threads(tmp_path: Path) -> None:
    before = set(threading.enumerate())
    with running(tmp_path / "store.db", ANY) as server, talking(server) as talk:
        talk.ask(logs.Append("a", single("x")))
    left = set(threading.enumerate()) - before
    for thread in left:  # of the server's pool, and of the client: told to end, and not waited for
        thread.join(SOON_S)
    assert not [thread.name for thread in left if thread.is_alive()]


@pytest.mark.parametrize(
    "given",
    [
        {"rooms_sweep_s": 0.0},
        {"rooms_sweep_s": 3_601.0},
        {"rooms_poll_s": -0.1},
        {"rooms_poll_s": 61.0},
        {"rooms_batch": 0},
        {"rooms_batch": 10_001},
    ],
    ids=str,
)
def test_settings_of_rooms_that_cannot_be_are_refused(given: dict[str, Any]) -> None:
    (name,) = given
    with pytest.raises(InvalidInput, match=f"{name} is from"):
        Settings(**given).check()
