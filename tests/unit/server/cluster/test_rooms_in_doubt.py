"""What clients of a room see while no node takes their messages: each is stored once, and in order."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
from websockets.exceptions import InvalidStatus

import millstream
from millstream.errors import MillstreamError, NoQuorum, OutcomeUnknown
from millstream.server.cluster import forwarder as forwarding
from millstream.server.serving import Serving
from tests.unit.server.cluster.pretending import Pair, paired
from tests.unit.server.rooms.joining import Client, joined

FAILED = 1011
COUNT = 5


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[Pair]:
    with paired(tmp_path / "store.db") as found:
        yield found


def stored(folder: Path) -> list[Any]:
    """What was drawn, in the order in which it is stored."""
    with millstream.open(folder / "store.db", mode="r") as ms:
        records = ms.room("canvas").log.read()
        return [one.json() for one in records if one.headers.get("type") == "draw"]


def draw(client: Client, *numbers: int) -> None:
    for number in numbers:
        client.send(("draw", number), n=number)


@contextmanager
def let_in(server: Serving, **wishes: Any) -> Iterator[Client]:
    """Do what a client does that is refused for now: ask until it is let in."""
    with ExitStack() as ending:
        for _ in range(1_000):
            try:
                client = ending.enter_context(joined(server, **wishes))
                break
            except InvalidStatus as refusal:
                if refusal.response.status_code != 503:
                    raise
        else:
            raise AssertionError("the room stays closed")
        yield client


class Failing:
    """Keeps the first commit waiting until it is told to fail; those behind it succeed."""

    def __init__(self, error: MillstreamError) -> None:
        self.begun, self.ends = threading.Event(), threading.Event()
        self._error = error

    def __call__(self) -> None:
        if not self.begun.is_set():
            self.begun.set()
            assert self.ends.wait(60)
            raise self._error


@pytest.mark.parametrize("name", ["a", "b"])
@pytest.mark.parametrize("error", [NoQuorum("too few"), OutcomeUnknown("who knows")])
def test_what_follows_a_message_that_is_not_stored_is_not_stored_before_it(
    pair: Pair, tmp_path: Path, name: str, error: MillstreamError
) -> None:
    server = pair.servers[name]
    with joined(server, client="ada") as ada:
        draw(ada, 1)
        ada.until_sent(1)
        failing = pair.nodes["a"].before_commit = Failing(error)
        draw(ada, 2)
        assert failing.begun.wait(60)
        draw(ada, 3, 4)
        ada.settle()  # the server has them
        failing.ends.set()
        assert ada.until_closed() == FAILED
        assert not ada.errors
    with let_in(server, client="ada", offset=ada.offset) as again:
        first = (again.welcome["sent"] or 1) + 1
        assert first == 2, "what is stored has no gap"
        draw(again, *range(first, COUNT + 1))
        again.until_sent(COUNT)
    assert stored(tmp_path) == [1, 2, 3, 4, 5]


@pytest.mark.parametrize("name", ["a", "b"])
def test_messages_that_come_while_no_node_leads_are_stored_in_their_order(
    pair: Pair, tmp_path: Path, name: str
) -> None:
    with joined(pair.servers[name], client="ada") as ada:
        pair.lead(None)
        draw(ada, *range(1, 21))
        ada.settle()
        pair.lead("b" if name == "a" else "a")
        ada.until_sent(20)
        assert not ada.errors
    assert stored(tmp_path) == [*range(1, 21)]


def test_if_no_node_leads_for_long_the_connection_ends_and_the_client_sends_again(
    pair: Pair, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with joined(pair.servers["b"], client="ada") as ada:
        draw(ada, 1)
        ada.until_sent(1)
        with monkeypatch.context() as hasty:
            hasty.setattr(forwarding, "FORWARD_S", 0.2)
            pair.lead(None)
            draw(ada, 2, 3)
            assert ada.until_closed() == FAILED
        assert not ada.errors
    pair.lead("a")
    with let_in(pair.servers["b"], client="ada", offset=ada.offset) as again:
        assert again.welcome["sent"] in (None, 1)
        draw(again, 2, 3)
        again.until_sent(3)
    assert stored(tmp_path) == [1, 2, 3]


def test_a_message_that_can_never_be_stored_is_refused_and_the_others_are_stored(
    pair: Pair, tmp_path: Path
) -> None:
    for name in ("a", "b"):
        with joined(pair.servers[name], client=f"of-{name}") as ada:
            draw(ada, 1)
            ada.send(("joined", "not by clients"), n=2)
            ada.until_sent(1)
            while not ada.errors:
                ada.take()
            assert (ada.errors[0]["n"], ada.errors[0]["error"]["status"]) == (2, 422)
            draw(ada, 3)
            ada.until_sent(3)
    assert stored(tmp_path) == [1, 3, 1, 3]


def test_what_a_node_handed_on_is_not_stored_once_its_client_is_back(pair: Pair) -> None:
    """Though no other node has listeners: the leading one may still have frames of the client."""
    with joined(pair.servers["b"], client="ada") as ada:
        draw(ada, 1)
        ada.until_sent(1)
        before = ada.welcome["generation"]
        with joined(pair.servers["b"], client="ada", offset=ada.offset) as again:
            assert again.welcome["generation"] > before
            draw(again, 2)
            again.until_sent(2)
        draw(ada, 3)
        while not ada.errors:
            ada.take()
        assert ada.errors[0]["error"]["title"] == "Fenced"
