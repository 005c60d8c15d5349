"""Commands over a server: the same nouns, a token that is not shown, and what needs a file."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

import millstream
from millstream.server.auth.tokens import create_token
from millstream.server.serving import running
from millstream.server.settings import Settings

Program = Callable[..., subprocess.Popen[bytes]]


@pytest.fixture
def url(cli: Any) -> Iterator[str]:
    with running(cli.directory / "served.db", Settings(port=0), durability="relaxed") as server:
        yield server.url


@pytest.fixture
def guarded(cli: Any) -> Iterator[tuple[str, str]]:
    """A server that needs tokens, and one for logs whose names begin with `a`."""
    with millstream.open("served.db") as ms:
        _, token = create_token(ms, "reader", ["log:write:a*"])
    settings = Settings(port=0, auth="on")
    with running(cli.directory / "served.db", settings, durability="relaxed") as server:
        yield server.url, token


def test_logs_over_a_server(cli: Any, url: str) -> None:
    at = ("--store", url)
    assert cli("append", "orders", *at, input=b"a\nb\nc\n") == "0-2\n"
    assert cli("read", "orders", "--values", "--from", "-2", *at) == "b\nc\n"
    assert cli("--store", url, "read", "orders", "--values", "--limit", "1") == "a\n"
    assert [info["name"] for info in cli.json("log", "list", *at)] == ["orders"]
    assert cli("read", "orders", "--cursor", "c", "--ack", "--values", *at) == "a\nb\nc\n"
    assert (
        cli("log", "tail", "orders", "--from", "-1", "--timeout", "10ms", "--values", *at) == "c\n"
    )
    cli("log", "metadata", "orders", "team", "blue", *at)
    assert cli.json("log", "info", "orders", *at)["metadata"] == {"team": "blue"}
    cli("log", "retention", "orders", "--count", "2", "--enforce", "--yes", *at)
    assert cli.json("log", "truncate", "orders", "--before", "2", "-y", *at)["start_offset"] == 2
    assert cli.json("log", "fork", "orders", "trial", *at)["end_offset"] == 3
    cli("append", "trial", "d", *at)
    assert cli.json("log", "merge", "trial", *at)["adopted"] == 1
    assert cli.json("stats", *at)["logs"] == 2
    assert cli.json("fold", *at)["folded"] >= 0
    assert cli.json("log", "delete", "trial", "-y", *at)["deleted"]
    assert not Path("millstream.db").exists()


def test_statements_of_sql_over_a_server(cli: Any, url: str) -> None:
    with millstream.open(url) as ms:
        ms.log("orders").append_many([{"id": n} for n in range(50)])
        ms.create_queue("jobs").put_many([b"1", b"2"])
        ms.queue("jobs").claim(1)
        ms.queue("jobs").put(b"3", delay=60)
    shown = cli("sql", url, "SELECT value ->> 'id' AS id FROM millstream_records WHERE offset > 47")
    assert shown == "id\n48\n49\n"
    states = "SELECT state, value FROM millstream_messages WHERE queue = 'jobs' ORDER BY value"
    assert cli("sql", url, states) == "state\tvalue\nin_flight\t1\navailable\t2\ndelayed\t3\n"
    assert (
        cli("sql", "-s", url, "SELECT name, ready FROM millstream_queues")
        == "name\tready\njobs\t1\n"
    )
    assert "no such table: mine" in cli.error("sql", url, "SELECT * FROM mine")
    assert not Path("millstream.db").exists()


def test_queues_over_a_server(cli: Any, url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MILLSTREAM_STORE", url)
    assert cli("queue", "create", "jobs", "--backoff", "0s") == "queue jobs created\n"
    cli("put", "jobs", "a", "b", "c")
    claim = msgspec.json.decode(cli("queue", "claim", "jobs", "--json"))["claim"]
    assert cli.json("queue", "renew", "jobs", claim, "--lease", "5m")["count"] == 1
    cli("queue", "nack", "jobs", claim)
    assert cli("queue", "pop", "jobs", "--values", "-n", "2") == "a\nb\n"
    stats = cli.json("exec", "jobs", "--drain", f"test $MILLSTREAM_STORE = {url}")
    assert stats["retried"] > 0, "there is no shell"
    stats = cli.json("queue", "info", "jobs")
    assert (stats["done"], stats["failed"]) == (2, 1)
    assert cli.json("queue", "redrive", "jobs")["redriven"] == 1
    shell = f"sh -c 'test $MILLSTREAM_STORE = {url}'"
    assert cli.json("exec", "jobs", "--drain", shell)["done"] == 1


def test_a_server_is_synced_with_a_file_from_either_side(cli: Any, url: str) -> None:
    cli("append", "here", "x")
    cli("append", "there", "y", "--store", url)
    assert cli.json("sync", url, "--push")["pushed"] == 1
    found = cli.json("sync", "millstream.db", "--store", url)
    assert (found["pulled"], found["pushed"]) == (0, 1)
    assert cli("read", "there", "--values") == "y\n"


@pytest.mark.parametrize("command", [["doctor"], ["serve"], ["token", "list"], ["doctor", "URL"]])
def test_what_needs_a_file_says_so(cli: Any, command: list[str]) -> None:
    address = "http://127.0.0.1:9"
    words = [word.replace("URL", address) for word in command]
    told = cli.error(*words, *([] if "URL" in command else ["--store", address]), code=2)
    assert f"`millstream {command[0]}` needs the file of a store, not a server" in told


def test_a_token_comes_by_option_file_or_variable(
    cli: Any, guarded: tuple[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    url, token = guarded
    Path("token.txt").write_text(f"{token}\n", encoding="utf-8")
    cli("append", "a", "1", "--store", url, "--token", token)
    cli("--store", url, "--token", "@token.txt", "append", "a", "2")
    monkeypatch.setenv("MILLSTREAM_TOKEN", token)
    cli("append", "a", "3", "--store", url)
    monkeypatch.delenv("MILLSTREAM_TOKEN")
    text = f'store = "{url}"\ntoken = "@token.txt"\n[append]\nbatch = 7\n'
    Path("millstream.toml").write_text(text, encoding="utf-8")
    cli("append", "a", "4")
    assert cli("read", "a", "--values") == "1\n2\n3\n4\n"


def test_a_token_is_never_shown(cli: Any, guarded: tuple[str, str]) -> None:
    url, token = guarded
    secret = "ms_" + "0" * 16 + "_not-the-token"
    told = cli.error("read", "a", "--store", url, "--token", secret, code=2)
    assert secret not in told
    assert "pass --token, or set MILLSTREAM_TOKEN" in told
    told = cli.error("read", "b", "--store", url, "--token", token)
    assert "log:read" in told
    assert token not in told
    told = cli.error("read", "a", "--store", url.replace("//", f"//{token}@"), code=1)
    assert token not in told
    cli("read", "a", "--token", token, code=2)
    assert "for a server" in cli.stderr
    assert token not in cli.stderr


@pytest.mark.skipif(not Path("/proc/self/mem").exists(), reason="only Linux shows it so")
def test_a_token_is_blanked_in_the_list_of_processes(
    cli: Any, guarded: tuple[str, str], program: Program
) -> None:
    url, token = guarded
    cli("append", "a", "x", "--store", url, "--token", token)
    follow = ("log", "tail", "a", "--from", "0", "--values", "--store", url, "--token", token)
    with program(*follow) as running:
        assert running.stdout is not None
        assert running.stdout.readline() == b"x\n"
        line = Path(f"/proc/{running.pid}/cmdline").read_bytes()
        running.terminate()
    assert url.encode() in line
    assert token.encode() not in line
    assert b"*" * len(token) in line


def test_an_address_without_its_scheme_is_explained(cli: Any) -> None:
    assert "write http://localhost:8080" in cli.error("stats", "-s", "localhost:8080", code=2)
    assert "cannot reach" in cli.error("stats", "-s", "http://127.0.0.1:9", code=2)
