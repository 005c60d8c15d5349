"""Fairness: a group with much in flight lets quieter ones go first, but is never shut out."""

from __future__ import annotations

import pytest

from millstream import Limits, Millstream
from millstream.queue.model.message import Message
from millstream.testing import SimulatedClock
from millstream.threads.queue import Queue

from .conftest import Reopen, counts, fold_all


@pytest.fixture
def queue(ms: Millstream) -> Queue:
    return ms.queue("jobs", group_by="g", group_in_flight=0, lease=600, backoff=0)


def put(queue: Queue, group: str, count: int) -> None:
    """A batch of one group; the value is its name."""
    queue.put_many([group.encode()] * count, headers=[{"g": group}] * count)


def groups(messages: list[Message]) -> str:
    return "".join(message.text for message in messages)


def test_a_group_alone_is_not_held_back(queue: Queue) -> None:
    put(queue, "a", 200)
    assert groups(queue.claim(150)) == "a" * 150
    assert groups(queue.claim(100)) == "a" * 50


def test_a_noisy_group_lets_others_go_first_in_one_claim(queue: Queue) -> None:
    put(queue, "a", 60)
    put(queue, "b", 5)
    assert groups(queue.claim(50)) == "a" * 30 + "b" * 5 + "a" * 15


def test_a_noisy_group_lets_others_go_first_between_claims(queue: Queue) -> None:
    put(queue, "a", 60)
    assert groups(queue.claim(40)) == "a" * 40
    put(queue, "b", 5)
    assert groups(queue.claim(10)) == "b" * 5 + "a" * 5


def test_messages_without_a_group_are_never_noisy(queue: Queue) -> None:
    put(queue, "a", 60)
    queue.claim(40)
    queue.put_many([b"-"] * 50)
    assert groups(queue.claim(60)) == "-" * 50 + "a" * 10


def test_a_group_with_few_in_flight_goes_in_its_turn(queue: Queue) -> None:
    put(queue, "a", 40)
    held = queue.claim(29)
    put(queue, "b", 5)
    assert groups(queue.claim(3)) == "abb"
    assert len(held) == 29


def test_a_group_with_a_small_share_goes_in_its_turn(queue: Queue) -> None:
    for group in "bcdefghijklmn":
        put(queue, group, 29)
    queue.claim(13 * 29)
    put(queue, "a", 40)
    put(queue, "z", 5)
    assert groups(queue.claim(36)) == "a" * 36


def test_a_group_is_quiet_again_once_its_messages_are_done(queue: Queue) -> None:
    put(queue, "a", 60)
    held = queue.claim(40)
    queue.ack(held[:20])
    put(queue, "b", 30)
    assert groups(queue.claim(10)) == "a" * 10


def test_retries_of_a_noisy_group_yield_as_well(queue: Queue, clock: SimulatedClock) -> None:
    put(queue, "a", 60)
    held = queue.claim(40)
    queue.nack(held[:5], delay=1)
    put(queue, "b", 2)
    clock.advance(1)
    again = queue.claim(4)
    assert groups(again) == "bbaa"
    assert [one.attempt for one in again] == [1, 1, 1, 2]


def test_two_noisy_groups_share_by_age(queue: Queue, clock: SimulatedClock) -> None:
    put(queue, "a", 60)
    clock.advance(1)
    put(queue, "b", 60)
    assert groups(queue.claim(80)) == "a" * 30 + "b" * 30 + "a" * 20
    assert groups(queue.claim(80)) == "a" * 10 + "b" * 30


def test_popping_is_never_noisy(queue: Queue) -> None:
    put(queue, "a", 60)
    for _ in range(4):
        assert groups(queue.pop(10)) == "a" * 10
    put(queue, "b", 5)
    assert groups(queue.pop(5)) == "a" * 5


def test_fairness_survives_folding_and_opening_again(reopen: Reopen) -> None:
    ms = reopen()
    queue = ms.queue("jobs", group_by="g", group_in_flight=0, lease=600)
    put(queue, "a", 60)
    held = queue.claim(40)
    fold_all(ms)
    ms = reopen()
    queue = ms.queue("jobs")
    put(queue, "b", 2)
    some = queue.claim(3)
    assert groups(some) == "bba"
    queue.ack(held + some)
    fold_all(ms)
    queue = reopen().queue("jobs")
    assert groups(queue.claim(60)) == "a" * 19
    assert counts(queue) == {"in_flight": 19, "done": 43}


@pytest.mark.parametrize("inline", [0, 2_048])
def test_nothing_is_handed_out_twice_after_a_transaction_of_several_steps(
    reopen: Reopen, inline: int
) -> None:
    ms = reopen(Limits(inline_bytes_max=inline))
    queue = ms.queue("jobs", group_by="g", group_in_flight=0, lease=600)
    put(queue, "a", 43)
    noisy = queue.claim(41)
    for group in "bcdefghijklmnopq":
        put(queue, group, 25)
    others = queue.claim(360)
    assert "a" not in groups(others)
    with ms.transaction() as tx:
        tx.ack(noisy[:2])
        tx.ack([*others[:300], noisy[2]])
    found = queue.claim(100)
    found += queue.claim(100)
    claims = [message.claim_id for message in found]
    assert len(claims) == len(set(claims)) == 42
    assert counts(queue) == {"in_flight": 140, "done": 303}


def test_a_large_claim_does_not_make_a_noisy_group_look_quiet(queue: Queue) -> None:
    put(queue, "a", 60)
    for group in "bcdefghi":
        put(queue, group, 21)
    assert groups(queue.claim(198)).count("a") == 30
    put(queue, "z", 5)
    assert groups(queue.claim(6)) == "zzzzza"
