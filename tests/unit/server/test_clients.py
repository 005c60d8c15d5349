"""The clients of a server: which connections are open, what each client holds, and where it waits."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
from websockets.sync.client import connect

import millstream
from millstream.queue.commands import ClaimMessages
from millstream.server.auth.tokens import create_token
from millstream.server.claim_counts import ClaimCounts, HeldMessages
from millstream.server.serving import running
from millstream.server.settings import Settings

LOOKS_MAX = 2_000
"""How often a test asks for the clients, until the list is as expected."""


def listed(url: str, token: str = "") -> list[dict[str, Any]]:
    """The clients that the server lists."""
    head = {"authorization": f"Bearer {token}"} if token else {}
    answer = httpx.get(f"{url}/clients", headers=head)
    assert answer.status_code == 200, answer.text
    found: list[dict[str, Any]] = answer.json()["clients"]
    return found


def until(url: str, holds: Callable[[list[dict[str, Any]]], bool]) -> list[dict[str, Any]]:
    """Ask until the list is as expected; a connection is listed and left out in turns of the loop."""
    for _ in range(LOOKS_MAX):
        if holds(clients := listed(url)):
            return clients
    raise AssertionError(f"the list is {clients}")


def test_a_worker_is_listed_with_its_address_and_what_it_holds(tmp_path: Path) -> None:
    with running(tmp_path / "a.db", Settings(port=0)) as server:
        assert listed(server.url) == []
        with millstream.open(server.url) as ms:
            jobs = ms.create_queue("jobs")
            jobs.put_many([b"a", b"b", b"c"])
            claimed = jobs.claim(2, consumer="ann", lease=600)
            (client,) = listed(server.url)
            assert (client["kind"], client["name"]) == ("socket", "local")
            assert client["address"].startswith("127.0.0.1:")
            assert client["since"].endswith("Z")
            held = {"queue": "jobs", "consumer": "ann", "messages": 2, "waiting": 0}
            assert client["queues"] == [held]
            jobs.ack(claimed)
            (client,) = listed(server.url)
            assert client["queues"] == []
        until(server.url, lambda clients: clients == [])


def test_a_client_that_waits_for_messages_is_listed_as_waiting(tmp_path: Path) -> None:
    with running(tmp_path / "a.db", Settings(port=0)) as server, millstream.open(server.url) as ms:
        jobs = ms.create_queue("jobs")
        waiter = threading.Thread(target=lambda: jobs.claim(1, consumer="bob", wait=60))
        waiter.start()
        waiting = {"queue": "jobs", "consumer": "bob", "messages": 0, "waiting": 1}
        until(server.url, lambda clients: [client["queues"] for client in clients] == [[waiting]])
        jobs.put(b"x")
        waiter.join()
        holding = {"queue": "jobs", "consumer": "bob", "messages": 1, "waiting": 0}
        until(server.url, lambda clients: [client["queues"] for client in clients] == [[holding]])


def test_claims_over_http_belong_to_the_token(tmp_path: Path) -> None:
    with running(tmp_path / "a.db", Settings(port=0)) as server:
        httpx.put(f"{server.url}/queues/mail")
        httpx.post(f"{server.url}/queues/mail/messages", json={"value": 1})
        body = {"n": 1, "consumer": "curl", "lease": 600}
        httpx.post(f"{server.url}/queues/mail/claims", json=body)
        (client,) = listed(server.url)
        assert (client["kind"], client["name"], client["address"]) == ("http", "local", "")
        held = {"queue": "mail", "consumer": "curl", "messages": 1, "waiting": 0}
        assert (client["since"], client["queues"]) == (None, [held])


def test_a_client_in_a_room_is_listed_with_its_user(tmp_path: Path) -> None:
    with running(tmp_path / "a.db", Settings(port=0)) as server:
        address = server.url.replace("http", "ws") + "/rooms/hall?user=ada"
        with connect(address, open_timeout=60) as socket:
            socket.recv()  # the greeting
            (client,) = until(server.url, lambda clients: len(clients) == 1)
            assert (client["kind"], client["room"], client["user"]) == ("room", "hall", "ada")
            assert client["queues"] == []
        until(server.url, lambda clients: clients == [])


def test_only_administrators_see_clients(tmp_path: Path) -> None:
    with millstream.open(tmp_path / "a.db") as ms:
        texts = {
            permission: create_token(ms, permission, [permission])[1]
            for permission in ("*:read", "*:admin", "admin", "queue:admin")
        }
    with running(tmp_path / "a.db", Settings(port=0, auth="on")) as server:
        for permission, text in texts.items():
            head = {"authorization": f"Bearer {text}"}
            status = httpx.get(f"{server.url}/clients", headers=head).status_code
            assert status == (200 if permission in ("*:admin", "admin") else 403), permission


def test_names_of_queues_that_do_not_exist_are_not_remembered() -> None:
    counts = ClaimCounts(100)
    claims = [ClaimMessages(f"none-{n}", 1, None, "ann", 1_000, []) for n in range(3)]
    reserved = [counts.reserve(claim, lambda: 0) for claim in claims]
    waiting = [
        HeldMessages(queue=claim.queue, consumer="ann", messages=0, waiting=1) for claim in claims
    ]
    assert counts.held(0) == waiting
    for claim in reserved:
        counts.release(claim)
    assert counts.held(0) == []
