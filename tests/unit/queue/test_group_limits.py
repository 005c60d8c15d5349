"""Limits of single groups, set while the queue is in use."""

from __future__ import annotations

import random
from collections import Counter
from typing import Any

import pytest

import millstream
from millstream import Millstream
from millstream.doctor import examine
from millstream.errors import InvalidInput, NotFound
from millstream.queue.model.group_limits import GroupLimit
from millstream.queue.model.message import Message
from millstream.testing import SimulatedClock
from millstream.threads.queue import Queue

from .conftest import Reopen, fold_all, values

KINDS: list[dict[str, Any]] = [{}, {"priority_by": "p"}, {"priority_by": "p", "group_order": False}]
"""Messages of groups wait in a lane; or all of them in the index; or in a lane per priority."""


def filled(ms: Millstream, each: int, **how: Any) -> Queue:
    queue = ms.create_queue("q", group_by="g", backoff=0, lease=1_000, **how)
    for number in range(each):
        for group in ("acme", "other"):
            queue.put(b"%s %d" % (group.encode(), number), group=group)
    return queue


def groups(messages: list[Any]) -> dict[str, int]:
    return dict(Counter(message.value.decode().split()[0] for message in messages))


@pytest.mark.parametrize("how", KINDS)
@pytest.mark.parametrize("limit", [1, 2])
def test_one_group_gets_more_in_flight(ms: Millstream, how: dict[str, Any], limit: int) -> None:
    queue = filled(ms, 20, group_in_flight=limit, **how)
    first = queue.claim(50)
    assert groups(first) == {"acme": limit, "other": limit}
    assert queue.limit_group("acme", in_flight=10) is True
    assert queue.limit_group("acme", in_flight=10) is False
    second = queue.claim(50)
    assert groups(second) == {"acme": 10 - limit}
    queue.ack(first)
    third = queue.claim(50)
    assert groups(third) == {"acme": limit, "other": limit}
    queue.nack([*second, *third])
    assert groups(queue.claim(50)) == {"acme": 10, "other": limit}


@pytest.mark.parametrize("how", KINDS)
def test_one_group_gets_less_in_flight(ms: Millstream, how: dict[str, Any]) -> None:
    queue = filled(ms, 20, group_in_flight=5, **how)
    first = queue.claim(50)
    queue.limit_group("acme", in_flight=2)
    queue.limit_group("other", in_flight=0)
    assert groups(queue.claim(50)) == {"other": 15}
    acme = [message for message in first if message.value.startswith(b"acme")]
    queue.ack(acme[:3])
    assert queue.claim(50) == []
    queue.ack(acme[3])
    assert groups(queue.claim(50)) == {"acme": 1}


@pytest.mark.parametrize("how", KINDS)
def test_every_message_is_delivered_while_limits_change(
    ms: Millstream, clock: SimulatedClock, how: dict[str, Any]
) -> None:
    queue = filled(ms, 30, group_in_flight=1, max_attempts=1_000, **how)
    done: list[bytes] = []
    for step in range(200):
        queue.limit_group("acme", in_flight=(step * 7) % 4 if step % 3 else None)
        messages = queue.claim(3)
        queue.nack(messages[:1])
        queue.ack(messages[1:])
        done += values(messages[1:])
        clock.advance(0.01)
    queue.limit_group("acme")
    while messages := queue.claim(9):
        queue.ack(messages)
        done += values(messages)
    assert sorted(done) == sorted(
        b"%s %d" % (group, number) for group in (b"acme", b"other") for number in range(30)
    )
    assert queue.info().is_empty


@pytest.mark.parametrize("how", KINDS)
def test_one_group_gets_another_rate(
    ms: Millstream, clock: SimulatedClock, how: dict[str, Any]
) -> None:
    queue = filled(ms, 20, group_in_flight=0, group_rate=0.001, group_burst=1, **how)
    assert groups(queue.claim(50)) == {"acme": 1, "other": 1}
    assert queue.claim(50) == []
    queue.limit_group("acme", rate=1)
    assert groups(queue.claim(50)) == {"acme": 1}
    clock.advance(1.1)
    assert groups(queue.claim(50)) == {"acme": 1}
    queue.limit_group("acme", rate=0)
    assert groups(queue.claim(50)) == {"acme": 17}


@pytest.mark.parametrize("how", KINDS)
def test_a_queue_without_a_rate_gives_one_group_a_rate(
    ms: Millstream, clock: SimulatedClock, how: dict[str, Any]
) -> None:
    queue = filled(ms, 5, group_in_flight=0, group_burst=1, **how)
    queue.limit_group("acme", rate=1)
    assert groups(queue.claim(50)) == {"acme": 1, "other": 5}
    clock.advance(1.1)
    assert groups(queue.claim(50)) == {"acme": 1}


def test_limits_are_listed_kept_and_removed(reopen: Reopen) -> None:
    with reopen() as ms:
        queue = ms.create_queue("q", group_by="g")
        queue.limit_group("b", in_flight=3)
        queue.limit_group("a", rate=0.5)
        fold_all(ms)
    with reopen() as ms:
        queue = ms.queue("q")
        assert list(queue.group_limits().items()) == [
            ("a", GroupLimit(None, 0.5)),
            ("b", GroupLimit(3)),
        ]
        assert queue.limit_group("a") is True
        assert queue.limit_group("a") is False
        assert queue.group_limits() == {"b": GroupLimit(3)}
        queue.delete()
        queue = ms.create_queue("q", group_by="g")
        assert queue.group_limits() == {}


def test_wrong_limits_are_refused(ms: Millstream) -> None:
    plain, queue = ms.create_queue("p"), ms.create_queue("q", group_by="g")
    with pytest.raises(InvalidInput, match="has no groups"):
        plain.limit_group("acme", in_flight=1)
    with pytest.raises(InvalidInput, match="in_flight"):
        queue.limit_group("acme", in_flight=-1)
    with pytest.raises(InvalidInput, match="rate"):
        queue.limit_group("acme", rate=-1.0)
    with pytest.raises(InvalidInput, match="with a name"):
        queue.limit_group("", in_flight=1)
    with pytest.raises(NotFound):
        ms.queue("none").group_limits()
    assert queue.group_limits() == {}


@pytest.mark.embedded
@pytest.mark.parametrize("how", KINDS)
def test_the_doctor_finds_nothing_after_limits(
    reopen: Reopen, tmp_path: Any, how: dict[str, Any]
) -> None:
    with reopen() as ms:
        queue = filled(ms, 10, group_in_flight=1, group_rate=1, **how)
        queue.claim(5)
        queue.limit_group("acme", in_flight=4, rate=100)
        queue.nack(queue.claim(5))
        queue.limit_group("acme", in_flight=1)
        fold_all(ms)
    report = examine(tmp_path / "store.db")
    assert report.healthy, report.problems


@pytest.mark.parametrize("seed", range(8))
def test_a_key_with_limits_of_its_own_changes_nothing_for_the_others(seed: int) -> None:
    """The short way for queues without such a key chooses the same messages as the long way."""
    chance = random.Random(seed)
    with millstream.open(":memory:") as ms:
        spec = {"group_by": "customer", "group_order": False, "group_in_flight": 3}
        queues = [ms.create_queue(name, **spec) for name in ("short", "long")]
        queues[1].limit_group("nobody", in_flight=1)
        held: list[list[Message]] = [[], []]
        for turn in range(60):
            groups = [f"g{chance.randrange(4)}" for _ in range(chance.randrange(12))]
            n, finish = chance.randrange(1, 9), chance.choice(["ack", "nack", "fail"])
            ended = [chance.random() < 0.6 for _ in range(100)]
            claims = []
            for queue, messages in zip(queues, held, strict=True):
                headers = [{"customer": group} for group in groups]
                queue.put_many([f"{turn}".encode()] * len(groups), headers=headers)
                messages += queue.claim(n)
                ending = [m for m, is_ended in zip(messages, ended, strict=False) if is_ended]
                if ending:
                    queue.finish_each(ending, finish, delay=0 if finish == "nack" else None)
                    messages[:] = [m for m in messages if m not in ending]
                claims.append([(m.claim_id, m.attempt) for m in messages])
            assert claims[0] == claims[1]
