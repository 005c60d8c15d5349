"""A queue that was deleted and made again knows nothing of the one that had its name before."""

from __future__ import annotations

from typing import Any

import pytest

from millstream import Message, Millstream
from millstream.errors import LeaseLost
from millstream.format import keys
from millstream.testing import Probe
from millstream.threads.queue import Queue
from tests.unit.queue.conftest import Reopen, counts, fold_all, upkeep, values

ENDINGS: dict[str, Any] = {
    "ack": lambda queue, message: queue.ack(message),
    "nack": lambda queue, message: queue.nack(message),
    "fail": lambda queue, message: queue.fail(message),
    "renew": lambda queue, message: queue.renew(message),
    "ack with a claim": lambda queue, message: queue.claim(1, ack=message),
}
SPECS: dict[str, dict[str, Any]] = {
    "plain": {},
    "small buckets": {"bucket_exponent": 0},
    "large buckets": {"bucket_exponent": 4},
    "groups": {"group_by": "g", "group_in_flight": 0},
}


def made_again(ms: Millstream, **spec: Any) -> tuple[Message, Queue, Message]:
    """A claim of the old queue, the new one, and a claim of that."""
    old = ms.create_queue("q")
    old.put_many([b"old", b"older"])
    (before,) = old.claim()
    assert old.delete()
    new = ms.create_queue("q", **spec)
    new.put_many([b"new"] * 30)
    (now,) = new.claim(wait=1)
    return before, new, now


@pytest.mark.parametrize("end", ENDINGS.values(), ids=ENDINGS)
@pytest.mark.parametrize("spec", SPECS.values(), ids=SPECS)
def test_a_claim_of_the_old_one_does_nothing(
    ms: Millstream, end: Any, spec: dict[str, Any]
) -> None:
    before, new, now = made_again(ms, **spec)
    assert before.claim_id != now.claim_id
    with pytest.raises(LeaseLost):
        end(new, before)
    assert new.finish_each(before, "ack") == [before]
    assert counts(new)["in_flight"] == 1
    new.ack(now)
    assert counts(new)["done"] == 1


@pytest.mark.parametrize("folded", [False, True], ids=["unfolded", "folded"])
def test_a_claim_of_the_old_one_does_nothing_after_reopening(reopen: Reopen, folded: bool) -> None:
    ms = reopen()
    old = ms.create_queue("q")
    old.put(b"old")
    (before,) = old.claim()
    old.delete()
    if folded:
        fold_all(ms)
    ms = reopen()
    new = ms.create_queue("q")
    new.put(b"new")
    (now,) = new.claim()
    new = reopen().queue("q")
    with pytest.raises(LeaseLost):
        new.ack(before)
    new.ack(now)


def test_claim_ids_never_repeat_however_often_it_is_made(ms: Millstream) -> None:
    seen: set[int] = set()
    for turn in range(12):
        queue = ms.create_queue("q", bucket_exponent=turn % 5)
        queue.put_many([b"x"] * 7)
        found = {message.claim_id for message in queue.claim(7)}
        assert len(found) == 7
        assert not found & seen
        seen |= found
        if turn % 3 == 0:
            ms.create_queue("other").put(b"x")
            ms.queue("other").claim()
            ms.queue("other").delete()
        queue.delete()


@pytest.mark.parametrize("start", ["latest", "earliest"])
def test_an_inbox_goes_with_its_queue(ms: Millstream, start: str) -> None:
    queue = ms.create_queue("q")
    queue.put_many([b"done", b"held", b"waits"])
    queue.put(b"later", delay=0.5)
    queue.ack(queue.claim(1))
    queue.claim(1)
    queue.delete()
    assert [log.name for log in ms.logs()] == []
    again = ms.create_queue("q", start=start)
    assert counts(again) == {}
    again.put(b"new")
    assert values(again.claim(10)) == [b"new"]


def test_sources_stay(ms: Millstream) -> None:
    ms.log("events").append(b"x")
    ms.create_queue("q", sources="events", start="earliest").delete()
    again = ms.create_queue("q", sources="events", start="earliest")
    assert values(again.claim(10)) == [b"x"]


@pytest.mark.embedded
def test_a_second_queue_on_the_inbox_keeps_what_it_needs(reopen: Reopen) -> None:
    ms = reopen()
    first = ms.create_queue("first")
    second = ms.create_queue("second", sources="queue:first")
    first.put_many([b"a", b"b"])
    held = second.claim(2)
    first.delete()
    fold_all(ms)
    upkeep(ms)
    ms = reopen()
    second = ms.queue("second")
    second.nack(held, delay=0)
    again = second.claim(2)
    assert values(again) == [b"a", b"b"]
    second.ack(again)
    ms.create_queue("first").put(b"c")
    assert values(second.claim(2)) == [b"c"]


@pytest.mark.embedded
def test_the_bytes_of_the_inbox_go(ms: Millstream) -> None:
    queue = ms.create_queue("q")
    queue.put_many([b"x" * 5_000] * 20)
    queue.delete()
    fold_all(ms)
    upkeep(ms)
    fold_all(ms)
    assert Probe(ms).rows(keys.PAYLOAD_BLOCK) == {}
