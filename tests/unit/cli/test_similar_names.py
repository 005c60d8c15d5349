"""Unknown names on the command line: the question "did you mean", and what it does not reveal."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

import millstream
from millstream.log.model.names import similar_name
from millstream.server.auth.tokens import create_token
from millstream.server.serving import running
from millstream.server.settings import Settings


def test_a_mistyped_log_or_queue_is_asked_about(cli: Any) -> None:
    cli("append", "orders", "x")
    cli("queue", "create", "invoices")
    told = cli.error("read", "ordres")
    assert told == "error: there is no log 'ordres'; did you mean 'orders'?"
    for command in (
        ["put", "invoice", "x"],
        ["queue", "info", "Invoices"],
        ["queue", "pop", "invocies"],
    ):
        assert cli.error(*command).endswith("; did you mean 'invoices'?")
    cli("room", "send", "lobby", "note", "1")
    assert cli.error("room", "presence", "loby").endswith("; did you mean 'lobby'?")


def test_a_name_like_no_other_gets_the_list(cli: Any) -> None:
    cli("append", "orders", "x")
    assert cli.error("read", "zebra").endswith("; `millstream log list` lists the logs")
    assert "`millstream queue create` creates one" in cli.error("put", "zebra", "x")


@pytest.mark.parametrize(
    ("name", "similar"),
    [
        ("ordres", "orders"),
        ("ORDERS", "orders"),
        ("order", "orders"),
        ("mail", None),
        ("queue:job", None),
    ],
)
def test_the_most_similar_name_is_found_among_names_of_users(
    name: str, similar: str | None
) -> None:
    names = ["orders", "orders.archive", "queue:jobs", "room:ordres"]
    assert similar_name(name, names) == similar


def test_a_server_asks_only_about_names_that_the_token_may_read(cli: Any) -> None:
    with millstream.open("served.db") as ms:
        text = create_token(ms, "narrow", ["log:read:a*", "queue:read:a*"])[1]
        for name in ("abcd-secret", "b-orders"):
            ms.log(name).append("x")
            ms.create_queue(name)
    settings = Settings(port=0, auth="on")
    with running(cli.directory / "served.db", settings, durability="relaxed") as server:
        at = ("--store", server.url, "--token", text)
        assert cli.error("read", "abcd-secrets", *at).endswith("did you mean 'abcd-secret'?")
        assert "did you mean" not in cli.error("read", "ab-orders", *at)
        head = {"authorization": f"Bearer {text}"}
        for noun in ("logs", "queues"):
            answer = httpx.get(f"{server.url}/{noun}/abcd-secrets", headers=head).json()
            assert answer["detail"].endswith("; did you mean 'abcd-secret'?")
            assert answer["data"]["similar"] == "abcd-secret"
            answer = httpx.get(f"{server.url}/{noun}/ab-orders", headers=head)
            assert (answer.status_code, "did you mean" in answer.text) == (404, False)
