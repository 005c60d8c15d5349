"""The security order is the same for every protocol: of two faults, the earlier one is told.

`STEPS` is the order. Each protocol is asked with every pair of faults that it can be given; the
answer must name the step that comes first.
"""

from __future__ import annotations

import json
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import combinations
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from websockets.exceptions import InvalidStatus

import millstream
from millstream.errors import MillstreamError
from millstream.log.commands import GetBounds
from millstream.queue.commands import ClaimMessages
from millstream.server.auth.access import Principal
from millstream.server.auth.tokens import create_token
from millstream.server.core import Core
from millstream.server.serving import Serving, running
from millstream.server.settings import Settings
from tests.unit.server.cluster.pretending import paired
from tests.unit.server.lines import GATEWAY, entered, line_client, options
from tests.unit.server.rooms.joining import joined
from tests.unit.server.talking import Talk, talking

STEPS = ("authenticate", "rate", "connections", "rights", "bounds", "requests", "claims")
"""The order in which a request and its command are admitted; see `server/admission.py`."""

SETTINGS = Settings(
    port=0,
    auth="on",
    requests_per_second=1_000,
    connections_per_token_max=5,
    requests_per_token_max=5,
    claims_open_max=1,
    stop_s=1.0,
)
SOON_S = 60.0
RIGHTS = ("queue:write:mail", "log:write", "room:write")
READ_ONLY = ("queue:read", "log:read", "room:read")


class Credential(NamedTuple):
    """A token of a test, and the principal that its requests have."""

    text: str
    principal: Principal


class Place(NamedTuple):
    """A server that is asked, and tokens that no test has used."""

    server: Serving
    tokens: dict[tuple[str, ...], Iterator[Credential]]

    @property
    def core(self) -> Core:
        assert self.server.core is not None
        return self.server.core

    def unused(self, faults: set[str]) -> Credential:
        """A token that no test has used; with the fault `rights` it may only read."""
        return next(self.tokens[READ_ONLY if "rights" in faults else RIGHTS])

    def exhaust(self, found: Credential, faults: set[str]) -> str:
        """Use up all that a token may have; return the text that the client then shows."""
        quota, principal = self.core.quota, found.principal
        if "rate" in faults:
            quota.spend(principal, 10**9)
        if "connections" in faults:
            quota.connections.take(principal, SETTINGS.connections_per_token_max)
        if "requests" in faults:
            quota.requests.take(principal, SETTINGS.requests_per_token_max)
        return "ms_no_token" if "authenticate" in faults else found.text


def prepared(path: Path) -> dict[tuple[str, ...], Iterator[Credential]]:
    """A store with a queue, and tokens for all tests of one server."""
    tokens: dict[tuple[str, ...], list[Credential]] = {RIGHTS: [], READ_ONLY: []}
    with millstream.open(path) as ms:
        ms.create_queue("mail", lease=3_600).put_many([b"x"] * 500)
        for rights, credentials in tokens.items():
            for index in range(100):
                token, text = create_token(ms, f"{rights[0]}-{index}".replace(":", "-"), rights)
                principal = Principal(token.name, token.allowed, token.id)
                credentials.append(Credential(text, principal))
    return {rights: iter(credentials) for rights, credentials in tokens.items()}


@pytest.fixture(scope="module", params=["alone", "leading node"])
def place(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Any]:
    """A server by itself, and the leading node of a cluster: both have the same door."""
    path = tmp_path_factory.mktemp("admission") / "a.db"
    tokens = prepared(path)
    if request.param == "alone":
        with running(path, SETTINGS, **options()) as server:
            yield Place(server, tokens)
    else:
        with paired(path, SETTINGS, gateways=[GATEWAY]) as pair:
            yield Place(pair.servers["a"], tokens)


def step_of(name: str, message: str) -> str:
    """The step that has refused, by the error's name and text."""
    if name != "Overloaded":
        return {"Unauthenticated": "authenticate", "Denied": "rights"}.get(name, "bounds")
    for part, step in {
        "times per second": "rate",
        "connections already": "connections",
        "are being carried out": "requests",
        "messages are claimed": "claims",
    }.items():
        if part in message:
            return step
    raise AssertionError(message)


def step_of_problem(body: bytes) -> str:
    problem = json.loads(body)
    return step_of(problem["title"], problem["detail"])


# REST: the framework is asked in two pieces, the hot endpoint in one.


def post(server: Serving, token: str, *, hot: bool) -> tuple[int, bytes]:
    """Claim a message over REST."""
    body = b"{}"
    kind = "" if hot else "expect: 100-continue\r\n"
    head = (
        f"POST /queues/mail/claims HTTP/1.1\r\nhost: 127.0.0.1\r\nauthorization: Bearer {token}\r\n"
        f"content-type: application/json\r\n{kind}content-length: {len(body)}\r\n"
        "connection: close\r\n\r\n"
    )
    received = b""
    with socket.create_connection(("127.0.0.1", server.port), SOON_S) as raw:
        raw.sendall(head.encode() + body)
        while data := raw.recv(65_536):
            received += data
    received = received.removeprefix(b"HTTP/1.1 100 Continue\r\n\r\n")
    answer, _, found = received.partition(b"\r\n\r\n")
    return int(answer.split()[1]), found


def ask_rest(place: Place, faults: set[str], *, hot: bool) -> str:
    found = place.unused(faults)
    if "claims" in faults:
        assert post(place.server, found.text, hot=hot)[0] == 200
    status, body = post(place.server, place.exhaust(found, faults), hot=hot)
    return "" if status == 200 else step_of_problem(body)


# The streaming socket: a claim alone has no task; behind a read in the same frame it has one.


@contextmanager
def talk_with(place: Place, token: str) -> Iterator[Talk]:
    headers = {"authorization": f"Bearer {token}"}
    with talking(place.server, additional_headers=headers) as talk:
        yield talk


def ask_socket(place: Place, faults: set[str], *, in_task: bool) -> str:
    found = place.unused(faults)
    with talk_with(place, found.text) as talk:
        claim = ClaimMessages("mail", 1, None, "c", 0, [])
        if "claims" in faults:
            talk.ask(claim)
        place.exhaust(found, faults)
        if "bounds" in faults:
            claim = ClaimMessages("mail", -1, None, "c", 0, [])
        before = [(1, GetBounds("orders"))] if in_task else []
        talk.send(*before, (2, claim))
        answer = talk.answers(len(before) + 1)[2]
    return step_of(type(answer).__name__, str(answer)) if is_error(answer) else ""


def is_error(answer: Any) -> bool:
    return isinstance(answer, MillstreamError)


def enter_socket(place: Place, faults: set[str]) -> str:
    try:
        with talk_with(place, place.exhaust(place.unused(faults), faults)):
            return ""
    except InvalidStatus as refused:
        return step_of_problem(refused.response.body or b"")


# Rooms.


def ask_room(place: Place, faults: set[str]) -> str:
    found = place.unused(faults)
    with joined(place.server, headers={"authorization": f"Bearer {found.text}"}) as client:
        place.exhaust(found, faults)
        client.send(("drawn", 1), n=1)
        while not client.errors and not client.sent:
            client.take()
        if not client.errors:
            return ""
        error = client.errors[0]["error"]
        return step_of(error["title"], error["detail"])


def enter_room(place: Place, faults: set[str]) -> str:
    token = place.exhaust(place.unused(faults), faults)
    headers = {"authorization": f"Bearer {token}"}
    try:
        with joined(place.server, headers=headers):
            return ""
    except InvalidStatus as refused:
        return step_of_problem(refused.response.body or b"")


# A gateway: the line protocol of the tests.


def ask_line(place: Place, faults: set[str]) -> str:
    found = place.unused(faults)
    with entered(place.server, found.text) as client:
        place.exhaust(found, faults)
        answer = client.ask("APPEND orders x")
    return step_of_line(answer)


def enter_line(place: Place, faults: set[str]) -> str:
    token = place.exhaust(place.unused(faults), faults)
    with line_client(place.server, f"TOKEN {token}") as client:
        return step_of_line(client.answer())


def step_of_line(answer: str) -> str:
    verb, _, told = answer.partition(" ")
    name, _, message = told.partition(" ")
    return "" if verb == "OK" else step_of(name, message)


class Way(NamedTuple):
    """A way to the door, and the faults that can be given to it."""

    ask: Callable[[Place, set[str]], str]
    faults: tuple[str, ...]


ENTERING = ("authenticate", "rate", "connections")
WAYS = {
    "rest": Way(
        lambda place, faults: ask_rest(place, faults, hot=False),
        (*ENTERING, "rights", "requests", "claims"),
    ),
    "rest, hot": Way(
        lambda place, faults: ask_rest(place, faults, hot=True),
        (*ENTERING, "rights", "requests", "claims"),
    ),
    "socket, handshake": Way(enter_socket, ENTERING),
    "socket, task": Way(
        lambda place, faults: ask_socket(place, faults, in_task=True),
        ("rate", "rights", "bounds", "requests", "claims"),
    ),
    "socket, taskless": Way(
        lambda place, faults: ask_socket(place, faults, in_task=False),
        ("rate", "rights", "bounds", "requests", "claims"),
    ),
    "room, handshake": Way(enter_room, ENTERING),
    "room": Way(ask_room, ("rate", "rights")),
    "gateway, first line": Way(enter_line, ENTERING),
    "gateway": Way(ask_line, ("rate", "rights", "requests")),
}


@pytest.mark.parametrize("name", WAYS)
def test_of_two_faults_the_earlier_step_refuses(place: Place, name: str) -> None:
    way = WAYS[name]
    assert way.ask(place, set()) == ""
    for step in way.faults:
        assert way.ask(place, {step}) == step
    for first, second in combinations(sorted(way.faults, key=STEPS.index), 2):
        if {first, second} != {"rights", "claims"}:  # who may not claim holds no claim
            assert way.ask(place, {first, second}) == first, (first, second)
