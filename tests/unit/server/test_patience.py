"""Refusals: the first are free, the next are slow, and then the connection is closed."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from millstream import errors
from millstream.errors import MillstreamError
from millstream.log import commands as logs
from millstream.server.listen.refusals import (
    ONE_USER,
    TOO_MANY,
    Allowance,
    RefusalCount,
    is_refusal,
    shared_by,
)
from millstream.server.serving import Serving, running
from millstream.server.settings import Settings
from millstream.server.socket import conversation
from tests.unit.server.talking import EACH_TRANSPORT, each_transport, single, talking

transport = EACH_TRANSPORT(each_transport)

THREADS = 256
MANY = shared_by(THREADS)
SMALL = Allowance(free=50, per_s=1.0, most=50, quiet_s=0.0)
"""Few refusals, of which hardly any are forgotten while a test runs."""

REFUSED_AT_ONCE = 2 * SMALL.most


def flood(count: RefusalCount, began_s: float = 0.0) -> tuple[int, float]:
    """Send refused requests as fast as they are read, until the end: how many, and how long."""
    now_s, refused = began_s, 0
    while (pause_s := count.refuse(now_s)) < math.inf:
        now_s, refused = now_s + pause_s, refused + 1
    return refused, now_s - began_s


@pytest.mark.parametrize("allowance", [ONE_USER, MANY, shared_by(1)])
def test_a_flood_is_slowed_and_then_closed(allowance: Allowance) -> None:
    count = RefusalCount(allowance)
    assert [count.refuse(0.0) for _ in range(allowance.free)] == [0.0] * allowance.free
    refused, lasted_s = flood(count)
    assert refused == allowance.most - allowance.free
    assert lasted_s == pytest.approx(refused / allowance.per_s)


@pytest.mark.parametrize("late_s", [0.0, 0.003, 0.05, 0.5])
def test_a_flood_is_closed_also_by_a_server_that_is_late(late_s: float) -> None:
    count, now_s, refused = RefusalCount(MANY), 0.0, 0
    while (pause_s := count.refuse(now_s)) < math.inf:
        now_s, refused = now_s + (pause_s + late_s if pause_s else 0.0), refused + 1
        assert refused <= MANY.most


def test_threads_that_wait_as_they_are_told_are_never_slowed() -> None:
    """All at once each second, or one after the other."""
    together, apart = RefusalCount(MANY), RefusalCount(MANY)
    for second in range(100):
        assert {together.refuse(float(second)) for _ in range(THREADS)} == {0.0}
        assert {apart.refuse(second + n / THREADS) for n in range(THREADS)} == {0.0}


def test_quiet_makes_up_for_a_flood() -> None:
    count = RefusalCount(MANY)
    for n in range(MANY.most - 1):
        count.refuse(n / MANY.per_s / 4)
    refused, _ = flood(count, began_s=10_000.0)
    assert refused == MANY.most


REFUSALS: list[MillstreamError] = [
    errors.Denied("no"),
    errors.Unauthenticated(),
    errors.InvalidInput("no"),
    errors.InvalidName("no"),
    errors.InvalidFilter("no"),
    errors.ConstraintViolation("no"),
    errors.TooLarge("no"),
    errors.Overloaded("wait", retry_after_s=1, requests_per_second=5.0),
    errors.Overloaded("wait", messages_per_second=5.0),
]


def kinds_of(kind: type[MillstreamError]) -> Iterator[type[MillstreamError]]:
    yield kind
    for below in kind.__subclasses__():
        yield from kinds_of(below)


def test_a_refusal_brings_its_client_nothing_and_every_other_answer_is_none() -> None:
    assert all(map(is_refusal, REFUSALS))
    refused = {type(one) for one in REFUSALS} - {errors.Overloaded}
    others = {
        kind for kind in kinds_of(MillstreamError) if kind.__module__ == errors.__name__
    } - refused
    assert {errors.NotFound, errors.LeaseLost, errors.NotLeader, errors.Overloaded} <= others
    assert not any(is_refusal(kind("an answer", retry_after_s=1)) for kind in others)
    assert not is_refusal(ValueError("a mistake of ours"))
    assert not is_refusal(17)


# Over the streaming socket, by WebSockets and by frames.


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Serving]:
    monkeypatch.setattr(conversation, "shared_by", lambda requests_max: SMALL)
    with running(tmp_path / "store.db", Settings(port=0)) as one:
        yield one


@pytest.mark.parametrize(
    "command",
    [
        pytest.param(logs.GetBounds("a\0"), id="read"),
        pytest.param(logs.Append("a\0", single(1)), id="written"),
    ],
)
def test_a_connection_that_is_refused_too_often_is_told_so_behind_its_other_answers(
    server: Serving, command: Any
) -> None:
    with talking(server) as neighbour, talking(server) as talk:
        refused = [(n, command) for n in range(REFUSED_AT_ONCE)]
        talk.send(*refused, (REFUSED_AT_ONCE, logs.Append("a", single(1))))
        found = talk.answers(REFUSED_AT_ONCE + 1)
        assert found.pop(REFUSED_AT_ONCE) == 0
        assert {type(one) for one in found.values()} == {errors.InvalidName}
        talk.send((0, logs.Append("a", single(2))))
        assert talk.ending() == (1008, TOO_MANY)
        assert neighbour.ask(logs.GetBounds("a")) == (0, 1)


def test_answers_about_the_state_of_the_store_slow_nobody(server: Serving) -> None:
    with talking(server) as talk:
        talk.ask(logs.Append("a", single(1)))
        for _ in range(REFUSED_AT_ONCE):
            with pytest.raises(errors.EndMoved):
                talk.ask(logs.Append("a", single(1), expect_end=7))
            with pytest.raises(errors.NotFound):
                talk.ask(logs.MoveCursor("none", "c", 4))
        assert talk.ask(logs.GetBounds("a")) == (0, 1)
