"""`millstream sync`: what it prints, and what it refuses."""

from __future__ import annotations

import pytest

import millstream
from millstream.server.auth.register import Registrar
from millstream.server.auth.tokens import create_token
from tests.unit.cli.conftest import Cli


@pytest.fixture
def stores(cli: Cli) -> None:
    """Two stores with a log each; `b.db` has none of `a.db`'s."""
    cli("append", "x", "1", "2", "--store", "a.db")
    cli("append", "y", "3", "--store", "b.db")


def test_it_goes_both_ways_and_says_what_came(cli: Cli, stores: None) -> None:
    out = cli("sync", "b.db", "--store", "a.db")
    assert out.splitlines()[0].split("\t")[:3] == ["log", "pulled", "pushed"]
    assert [line.split("\t")[:3] for line in out.splitlines()[1:]] == [
        ["x", "0", "2"],
        ["y", "1", "0"],
    ]
    assert "2 logs in step" in cli.stderr
    assert cli("sync", "b.db", "--store", "a.db") == ""
    assert cli("read", "x", "--values", "--store", "b.db") == "1\n2\n"


@pytest.mark.requires("zstd")
def test_json_has_all_of_it(cli: Cli, stores: None) -> None:
    found = cli.json("sync", "b.db", "--store", "a.db", "--push", "--compress", "--logs", "x*")
    assert (found["pushed"], found["pulled"], found["looked_at"]) == (2, 0, 1)
    assert found["logs"][0]["log"] == "x"
    assert found["bytes"] > 0
    assert cli.json("sync", "b.db", "--store", "a.db", "--pull")["pulled"] == 1


def test_a_log_that_failed_is_shown_and_told_by_the_exit_code(cli: Cli, stores: None) -> None:
    cli("append", "x", "other", "--store", "b.db")
    out = cli("sync", "b.db", "--store", "a.db", code=1)
    assert "ForkDetected" in out
    assert "1 log failed" in cli.stderr
    assert cli("read", "y", "--values", "--store", "a.db") == "3\n"
    found = cli.json("sync", "b.db", "--store", "a.db", code=1)
    assert found["logs"][0]["error"].startswith("ForkDetected")


def test_readers_that_go_back_are_shown(cli: Cli, stores: None) -> None:
    cli("sync", "b.db", "--store", "a.db")
    for _ in range(2):
        with millstream.open("a.db") as a, millstream.open("b.db") as b:
            new, old = (a, b) if b.log("x").owner().here else (b, a)
            new.log("x").take_over()
            new.log("x").append(b"new")
            old.log("x").append(b"old")
            reader = old.log("x").cursor("reader")
            reader.ack(reader.take(9))
            end = old.log("x").end_offset()
        if end == 3:
            out = cli("sync", "b.db", "--store", "a.db")
            assert "cursor reader from 3 to 2" in out
        else:
            (back,) = cli.json("sync", "b.db", "--store", "a.db")["logs"][0]["set_back"]
            assert (back["name"], back["passed"], back["offset"]) == ("reader", 4, 3)


def test_truncations_can_be_kept_out(cli: Cli, stores: None) -> None:
    cli("sync", "b.db", "--store", "a.db")
    with millstream.open("a.db") as ms:
        ms.log("x").truncate(before=1)
    cli("sync", "b.db", "--store", "a.db", "--keep")
    assert cli("read", "x", "--values", "--store", "b.db") == "1\n2\n"
    cli("sync", "b.db", "--store", "a.db")
    assert cli("read", "x", "--values", "--store", "b.db") == "2\n"


def test_a_file_is_made_only_on_request(cli: Cli, stores: None) -> None:
    assert "--create creates one" in cli.error("sync", "c.db", "--store", "a.db", code=2)
    assert cli.json("sync", "c.db", "--store", "a.db", "--create")["pushed"] == 2
    assert "there is no store" in cli.error("sync", "a.db", "--store", "none.db", code=2)


def test_what_contradicts_itself_is_refused(cli: Cli, stores: None) -> None:
    cli("sync", "b.db", "--store", "a.db", "--push", "--pull", code=2)
    assert "goes both ways" in cli.stderr
    cli("sync", "b.db", "--store", "a.db", "--on-fork", "mine", code=2)
    assert "refuse, longest or rebase" in cli.stderr
    assert "itself" in cli.error("sync", "a.db", "--store", "a.db")


@pytest.mark.requires("client")
def test_a_server_that_is_not_there_is_told(cli: Cli, stores: None) -> None:
    line = cli.error("sync", "http://127.0.0.1:9", "--store", "a.db", code=2)
    assert "cannot reach" in line


def test_what_is_not_carried_is_named_for_the_stores_that_give(cli: Cli, stores: None) -> None:
    with millstream.open("a.db") as ms:
        jobs = ms.create_queue("jobs")
        jobs.put_many([b"1", b"2", b"3"])
        jobs.ack(jobs.claim(1))
        jobs.claim(1, lease=3600)
        reader = ms.log("x").cursor("reader")
        reader.ack(reader.take(1))
        ms.room("hall").send("chat", "hello")
        create_token(ms, "gone", ["log:read:*"])
        create_token(ms, "someone", ["log:read:*"])
        Registrar(ms).revoke("gone")
        with ms.transaction() as tx:
            tx.sql("CREATE TABLE mine (a)")
    pushed = cli.json("sync", "b.db", "--store", "a.db", "--push")["left_behind"]
    assert [(one["kind"], one["count"], one["names"], one["messages"]) for one in pushed] == [
        ("queue", 1, ["jobs"], 2),
        ("cursor", 1, ["x/reader"], 0),
        ("room", 1, ["hall"], 0),
        ("token", 1, [], 0),
        ("table", 1, ["mine"], 0),
    ]
    assert cli.json("sync", "b.db", "--store", "a.db", "--pull")["left_behind"] == []
    cli("sync", "b.db", "--store", "a.db")
    assert (
        "1 queue with 2 messages (jobs); 1 cursor (x/reader); 1 room (hall); 1 token; "
        "1 table of the application (mine). `millstream copy`" in cli.stderr
    )
    assert cli.json("sync", "a.db", "--store", "b.db", "--pull")["left_behind"] == pushed
