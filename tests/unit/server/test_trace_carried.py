"""A request's trace reaches the consumer: real requests, a real server, real consumers."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

import millstream
from millstream import Millstream
from millstream.command import Transact
from millstream.log.commands import Append
from millstream.queue.commands import PutMessages
from millstream.server.serving import Serving, running
from millstream.server.settings import Settings
from tests.unit.server.talking import batch, single, talking

PARENT = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
OWN = "00-11111111111111111111111111111111-2222222222222222-01"


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Serving]:
    with running(tmp_path / "store.db", Settings(port=0), durability="relaxed") as server:
        yield server


@pytest.fixture
def ms(server: Serving) -> Iterator[Millstream]:
    with millstream.open(server.url) as ms:
        ms.queue("mail", sources=["orders"], max_attempts=3)
        yield ms


@pytest.fixture
def rest(server: Serving, ms: Millstream) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=server.url, headers={"traceparent": PARENT}, timeout=60) as rest:
        yield rest


def claimed(ms: Millstream) -> list[Any]:
    return [message.headers.get("traceparent") for message in ms.queue("mail").claim(100)]


APPENDED: list[tuple[dict[str, Any], list[str]]] = [
    ({"value": 1}, [PARENT]),
    ({"value": 1, "headers": {"a": 1}}, [PARENT]),
    ({"value": 1, "headers": {"traceparent": OWN}}, [OWN]),
    (
        {
            "records": [
                {"value": 1, "key": "k"},
                {"value": "t", "headers": {"a": 1}},
                {"value": 3, "headers": {"traceparent": OWN}},
            ]
        },
        [PARENT, PARENT, OWN],
    ),
]


@pytest.mark.parametrize(("body", "expected"), APPENDED)
def test_an_append_over_rest(
    rest: httpx.Client, ms: Millstream, body: dict[str, Any], expected: list[str]
) -> None:
    assert rest.post("/logs/orders/records", json=body).status_code == 201
    assert claimed(ms) == expected
    records = list(ms.log("orders").read())
    for record, given in zip(records, body.get("records", [body]), strict=True):
        own = {key: value for key, value in record.headers.items() if key != "content-type"}
        assert own == {"traceparent": PARENT, **given.get("headers", {})}
        assert record.key == (given["key"].encode() if "key" in given else None)


def test_a_raw_body_over_rest(rest: httpx.Client, ms: Millstream) -> None:
    rest.post("/logs/orders/records", content=b"raw", headers={"content-type": "text/x"})
    assert claimed(ms) == [PARENT]


@pytest.mark.parametrize("later", [{}, {"delay": 0.001}])
def test_a_put_over_rest(rest: httpx.Client, ms: Millstream, later: dict[str, Any]) -> None:
    body = {"messages": [{"value": 1}, {"value": 2, "headers": {"traceparent": OWN}}], **later}
    assert rest.post("/queues/mail/messages", json=body).status_code == 201
    found = ms.queue("mail").claim(2, wait=10)
    assert [message.headers["traceparent"] for message in found] == [PARENT, OWN]


def test_a_transaction_over_rest(rest: httpx.Client, ms: Millstream) -> None:
    operations = [
        {"op": "append", "log": "orders", "value": 1},
        {"op": "put", "queue": "mail", "value": 2},
        {"op": "create_log", "log": "other"},
    ]
    assert rest.post("/transactions", json={"operations": operations}).status_code == 200
    assert claimed(ms) == [PARENT, PARENT]


def test_a_consumer_over_rest_gets_it(rest: httpx.Client, ms: Millstream) -> None:
    rest.post("/logs/orders/records", json={"value": 1})
    answer = rest.post("/queues/mail/claims", json={}).json()
    (message,) = answer["messages"]
    assert message["headers"]["traceparent"] == PARENT


def test_without_a_trace_nothing_is_added(rest: httpx.Client, ms: Millstream) -> None:
    del rest.headers["traceparent"]
    rest.post("/logs/orders/records", json={"value": 1})
    rest.post("/logs/orders/records", json={"value": 1}, headers={"traceparent": "nonsense"})
    assert claimed(ms) == [None, None]


def test_what_is_published_over_a_socket(server: Serving, ms: Millstream) -> None:
    with talking(server, additional_headers={"traceparent": PARENT}) as talk:
        talk.ask(Append("orders", single("a", headers={"h": 1})))
        talk.ask(Append("orders", single("b", headers={"traceparent": OWN})))
        talk.ask(Append("orders", batch(["c", "d"], keys=["k", None], timestamps=[1, 2])))
        talk.ask(Transact([Append("orders", single("e"))]))
        talk.ask(PutMessages("mail", single("f"), delay_ms=0))
    found = {one.text: one.headers["traceparent"] for one in ms.queue("mail").claim(10)}
    assert found == {"a": PARENT, "b": OWN, "c": PARENT, "d": PARENT, "e": PARENT, "f": PARENT}
    records = {record.text: record for record in ms.log("orders").read()}
    assert (records["c"].key, records["c"].timestamp) == (b"k", 1)
    assert (records["d"].key, records["d"].timestamp) == (None, 2)
    assert records["a"].headers["h"] == 1


def test_headers_that_would_grow_too_large_stay_as_they_are(
    server: Serving, ms: Millstream
) -> None:
    most = ms.session.limits.headers_bytes_max
    full = {"h": "x" * (most - 20)}
    with talking(server, additional_headers={"traceparent": PARENT}) as talk:
        talk.ask(Append("orders", single(b"a", headers=full)))
        talk.ask(Append("orders", batch([b"b", b"c"], headers=[full, None])))
    assert claimed(ms) == [None, None, PARENT]
