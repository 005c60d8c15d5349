"""`millstream log fork`, `merge` and `owner`."""

from __future__ import annotations

from typing import Any

import pytest

import millstream


@pytest.fixture(autouse=True)
def _logs(cli: Any) -> None:
    with millstream.open("millstream.db") as ms:
        ms.log("orders").append_many([b"0", b"1", b"2"])


def values(name: str) -> list[bytes]:
    with millstream.open("millstream.db") as ms:
        return [record.value for record in ms.log(name).read()]


def test_a_log_is_forked_and_merged(cli: Any) -> None:
    found = cli.json("log", "fork", "orders", "trial")
    assert found == {"log": "orders", "fork": "trial", "end_offset": 3}
    cli("append", "trial", "3")
    assert cli.json("log", "merge", "trial") == {
        "fork": "trial",
        "log": "orders",
        "adopted": 1,
        "start_offset": 0,
        "end_offset": 4,
        "set_aside": None,
    }
    assert values("orders") == [b"0", b"1", b"2", b"3"]
    assert "0 records merged into orders, which ends at 4" in cli("log", "merge", "trial")


def test_info_says_what_a_log_was_forked_from(cli: Any) -> None:
    cli("log", "fork", "orders", "trial")
    assert cli.json("log", "info", "trial")["parent"] == "orders"
    assert cli.json("log", "info", "orders")["parent"] is None
    assert "forked from" in cli("log", "info", "trial")


def test_a_fork_gets_a_name_if_none_is_given(cli: Any) -> None:
    assert cli.json("log", "fork", "orders")["fork"].startswith("orders~fork-")
    assert "is a fork of orders, from 3 on" in cli("log", "fork", "orders")


def test_logs_that_have_both_gone_on(cli: Any) -> None:
    cli("log", "fork", "orders", "trial")
    cli("append", "trial", "a", "b")
    cli("append", "orders", "3")
    error = cli.error("log", "merge", "trial")
    assert "differ from offset 3 on" in error
    assert "rebase" in error
    found = cli.json("log", "merge", "trial", "--on-fork", "rebase")
    assert (found["adopted"], found["end_offset"]) == (2, 6)
    cli("log", "fork", "orders", "again")
    cli("append", "again", "x", "y")
    cli("append", "orders", "6")
    cli("log", "merge", "again", "--on-fork", "longest", "--yes")
    assert "its own records are in orders~fork-" in cli.stderr
    assert values("orders")[6:] == [b"x", b"y"]


def test_merges_that_cannot_be(cli: Any) -> None:
    assert "no fork" in cli.error("log", "merge", "orders")
    assert "no log" in cli.error("log", "merge", "nowhere")
    assert "no log" in cli.error("log", "fork", "nowhere")
    assert "refuse, longest, rebase" in cli.error("log", "merge", "orders", "--on-fork", "x")
    assert "choose another name" in cli.error("log", "fork", "orders", "orders")


def test_the_owner_of_a_log_is_shown_and_changed(cli: Any) -> None:
    here = cli.json("log", "owner", "orders")
    assert (here["epoch"], here["here"]) == (0, True)
    assert f"owned by {here['owner']}, this store, at epoch 0" in cli("log", "owner", "orders")
    found = cli.json("log", "owner", "orders", "--hand-over", "0123", "--yes")
    assert found == {"log": "orders", "owner": "0123", "epoch": 1, "here": False}
    error = cli.error("append", "orders", "x")
    assert "0123" in error
    assert "--take-over" in error
    assert cli.json("log", "owner", "orders", "--take-over", "--yes")["epoch"] == 2
    cli("append", "orders", "x")
    cli("log", "owner", "orders", "--take-over", "--hand-over", "x", code=2)
