"""A node that does not lead hands requests over HTTP on to the one that does."""

from __future__ import annotations

import json
import os
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

import millstream
from millstream.server.auth.tokens import create_token
from millstream.server.settings import Settings
from tests.unit.remote.conftest import Call
from tests.unit.server.cluster.pretending import KEY, Pair, paired
from tests.unit.server.test_slow_clients import eventually, plug

JSON = {"content-type": "application/json"}


def ask(pair: Pair, name: str, method: str, path: str, **options: Any) -> httpx.Response:
    return httpx.request(method, pair.url(name) + path, timeout=30, **options)


def handed_on(pair: Pair, name: str) -> int:
    seat = pair.servers[name].core.seat  # type: ignore[union-attr]
    assert seat is not None
    return seat.handed_on


def test_every_method_is_handed_on(pair: Pair) -> None:
    assert ask(pair, "b", "PUT", "/logs/orders%2Fnew").status_code == 201
    body = {"records": [{"value": 1}, {"value": 2}]}
    found = ask(pair, "b", "POST", "/logs/orders%2Fnew/records", json=body)
    assert found.status_code in (200, 201), found.text
    found = ask(pair, "b", "GET", "/logs/orders%2Fnew/records", params={"limit": 1})
    assert len(found.json()["records"]) == 1
    head = ask(pair, "b", "HEAD", "/logs/orders%2Fnew")
    assert (head.status_code, head.content) == (200, b"")
    assert ask(pair, "b", "DELETE", "/logs/orders%2Fnew").status_code == 200
    assert ask(pair, "b", "GET", "/logs/orders%2Fnew").status_code == 404
    assert handed_on(pair, "b") == 6
    assert handed_on(pair, "a") == 0


def test_errors_come_back_as_they_are(pair: Pair) -> None:
    found = ask(pair, "b", "POST", "/logs/a/records", content=b"{", headers=JSON)
    assert found.status_code == 400
    assert found.headers["content-type"] == "application/problem+json"
    assert found.json()["title"] == "Malformed"
    assert found.headers.get_list("x-request-id") == [found.headers["x-request-id"]]


def test_a_large_body_without_a_length_is_streamed_through(pair: Pair) -> None:
    piece = os.urandom(256 * 1024)

    def pieces() -> Iterator[bytes]:
        for _ in range(16):
            yield piece

    kind = {"content-type": "application/octet-stream"}
    found = ask(pair, "b", "POST", "/logs/a/records", content=pieces(), headers=kind)
    assert found.status_code in (200, 201), found.text
    back = ask(
        pair, "b", "GET", "/logs/a/records/0", headers={"accept": "application/octet-stream"}
    )
    assert back.content == piece * 16


def test_staged_parts_are_kept_by_the_leading_node(pair: Pair) -> None:
    part = ask(pair, "b", "POST", "/staging/t/p", json={"records": [{"value": 1}]}).json()
    found = ask(pair, "a", "POST", "/staging/t/commit", json={"log": "a", "parts": [part]})
    assert found.json()["count"] == 1


def test_what_was_handed_on_goes_no_further(pair: Pair) -> None:
    found = ask(pair, "b", "PUT", "/logs/a", headers={"millstream-hop": "1"})
    assert found.status_code == 503
    told = found.json()
    assert (told["title"], told["data"]["leader"]) == ("NotLeader", pair.url("a"))
    assert "retry-after" in found.headers


def test_nodes_that_take_each_other_for_the_leader_make_no_loop(pair: Pair) -> None:
    pair.nodes["a"].believes, pair.nodes["b"].believes = pair.url("b"), pair.url("a")
    pair.lead(None)
    found = ask(pair, "b", "PUT", "/logs/a")
    assert (found.status_code, found.json()["title"]) == (503, "NotLeader")
    assert (handed_on(pair, "a"), handed_on(pair, "b")) == (0, 1)


def test_reads_by_their_level(pair: Pair) -> None:
    ask(pair, "a", "PUT", "/logs/a")
    count = handed_on(pair, "b")
    assert ask(pair, "b", "GET", "/logs/a", headers={"millstream-read": "eventual"}).is_success
    assert ask(pair, "b", "GET", "/logs/a", headers={"millstream-read": "bounded:5"}).is_success
    assert handed_on(pair, "b") == count
    pair.nodes["b"].progress_age_s = 9
    assert ask(pair, "b", "GET", "/logs/a", headers={"millstream-read": "bounded:5"}).is_success
    assert handed_on(pair, "b") == count + 1
    wrong = ask(pair, "b", "GET", "/logs/a", headers={"millstream-read": "weak"})
    assert (wrong.status_code, wrong.json()["title"]) == (422, "InvalidInput")


def test_pages_and_health_are_the_nodes_own(pair: Pair) -> None:
    for path in ("/health", "/", "/docs", "/metrics", "/live/history"):
        assert ask(pair, "b", "GET", path).is_success, path
    assert handed_on(pair, "b") == 0


def test_the_leading_node_checks_the_clients_own_token(tmp_path: Path) -> None:
    path = tmp_path / "shared.db"
    with millstream.open(path) as ms:
        _, text = create_token(ms, "reader", ["log:read:a"])
    with paired(path, Settings(port=0, stop_s=1.0, auth="on")) as pair:
        bearer = {"authorization": f"Bearer {text}"}
        assert ask(pair, "b", "PUT", "/logs/a", headers=bearer).status_code == 403
        assert ask(pair, "b", "PUT", "/logs/a").status_code == 401
        key = {"authorization": f"Bearer {KEY}"}
        assert ask(pair, "b", "PUT", "/logs/a", headers=key).status_code == 201
        assert ask(pair, "b", "GET", "/logs/a", headers=bearer).status_code == 200
        with millstream.open(pair.url("b"), token=text) as ms:
            assert len(ms.log("a")) == 0
            with pytest.raises(millstream.MillstreamError, match="may not write"):
                ms.log("a").append(b"x")


def test_a_page_of_the_asked_node_may_change_what_the_leading_one_has(pair: Pair) -> None:
    headers = {"origin": pair.url("b"), "sec-fetch-site": "same-origin"}
    assert ask(pair, "b", "PUT", "/logs/a", headers=headers).status_code == 201
    wrong = ask(pair, "b", "PUT", "/logs/b", headers={"origin": "http://elsewhere"})
    assert wrong.status_code == 403


def test_a_leading_node_that_is_gone_is_said_in_bounded_time(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    ask(pair, "b", "PUT", "/logs/a")
    pair.stop("a")
    with monkeypatch.context() as hasty:
        hasty.setattr("millstream.server.cluster.relay.FORWARD_S", 0.2)
        found = ask(pair, "b", "PUT", "/logs/b")
    assert (found.status_code, found.json()["title"]) == (503, "NotLeader")
    pair.lead("b")
    assert ask(pair, "b", "PUT", "/logs/b").status_code == 201


def test_a_write_whose_answer_was_lost_is_not_repeated(pair: Pair) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        requests: list[bytes] = []

        def hang_up() -> None:
            for _ in range(2):
                taken, _ = listener.accept()
                requests.append(taken.recv(65_536))
                taken.close()

        hanging = threading.Thread(target=hang_up)
        hanging.start()
        pair.nodes["a"].address = f"http://127.0.0.1:{listener.getsockname()[1]}"
        pair.lead("a")
        found = ask(pair, "b", "PUT", "/logs/b")
        assert (found.status_code, found.json()["outcome"]) == (500, "unknown")
        assert len(requests) == 1
        socket.create_connection(listener.getsockname()).close()
        hanging.join()
    assert b"millstream-hop: 1" in requests[0]


@pytest.mark.parametrize("method", ["PUT", "GET"])
def test_a_leader_that_is_replaced_before_it_answers_is_left(pair: Pair, method: str) -> None:
    """Its process stands still: what it may have done is unknown, and what only reads is asked anew."""
    ask(pair, "a", "PUT", "/logs/a")
    with socket.create_server(("127.0.0.1", 0)) as silent:
        pair.nodes["a"].address = f"http://127.0.0.1:{silent.getsockname()[1]}"
        pair.lead("a")
        asked = Call(lambda: ask(pair, "b", method, "/logs/a"))
        taken, _ = silent.accept()
        assert taken.recv(65_536)
        pair.lead("b")
        found = asked.result()
        taken.close()
    if method == "GET":
        assert found.status_code == 200
    else:
        assert (found.status_code, found.json()["outcome"]) == (500, "unknown")


def test_a_client_that_leaves_ends_its_wait_at_the_leading_node(pair: Pair) -> None:
    ask(pair, "b", "PUT", "/logs/a")
    gauge = pair.servers["a"].core.meter.requests_open  # type: ignore[union-attr]
    waiting = b"GET /logs/a/records?wait=60 HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"
    with plug(pair.servers["b"]) as client:
        client.sendall(waiting)
        eventually(lambda: next(iter(gauge.collect())).samples[0].value == 1)
    eventually(lambda: next(iter(gauge.collect())).samples[0].value == 0)


def test_json_of_the_document_is_not_asked_elsewhere(pair: Pair) -> None:
    assert "/logs/{log}" in json.loads(ask(pair, "b", "GET", "/openapi.json").text)["paths"]
    assert handed_on(pair, "b") == 0
