"""Another message takes the place of a failed one: once, in one commit, whatever the queue is."""

from __future__ import annotations

from typing import Any

import pytest

from millstream import Millstream
from millstream.errors import Conflict, InvalidInput, NotFound
from millstream.testing import SimulatedClock

from .conftest import Reopen, counts, fold_all, values


def failed(ms: Millstream, **settings: Any) -> tuple[Any, Any]:
    """A queue with one failed message, of the key `k` and the id 7."""
    queue = ms.create_queue("jobs", **settings)
    queue.put(b"bad", key="k", headers={"id": 7, "g": "a", "p": 3})
    (message,) = queue.claim(consumer="ann")
    queue.fail(message, reason="no")
    return queue, message


@pytest.mark.parametrize("folded", [False, True])
@pytest.mark.parametrize(
    "how", [{}, {"group_by": "g"}, {"priority_by": "p"}, {"dedup_by": "id"}, {"dedup_by": "key"}]
)
def test_what_replaces_it_can_be_claimed_and_has_its_past(
    ms: Millstream, folded: bool, how: dict[str, str]
) -> None:
    queue, message = failed(ms, **how)
    if folded:
        fold_all(ms)
    id = queue.replace(message, b"good", key="k", headers={"id": 7, "g": "a", "p": 3})
    assert counts(queue) == {"available": 1}
    (again,) = queue.claim(consumer="bob")
    assert (again.value, again.key, again.attempt) == (b"good", b"k", 1)
    assert again.headers["id"] == 7
    assert [one.consumer for one in queue.attempts(again)] == ["ann", "bob"]
    queue.ack(again)
    assert counts(queue) == {"done": 1}
    assert queue.message(id).state == "done"


def test_of_two_that_replace_it_one_does(ms: Millstream) -> None:
    queue, message = failed(ms)
    queue.replace(message, b"one")
    with pytest.raises(Conflict, match="not failed"):
        queue.replace(message, b"two")
    assert values(queue.claim(5)) == [b"one"]


@pytest.mark.parametrize("state", ["available", "in flight", "done"])
def test_only_what_has_failed_is_replaced(ms: Millstream, state: str) -> None:
    queue = ms.create_queue("jobs")
    queue.put(b"x")
    (message,) = queue.peek() if state == "available" else queue.claim()
    if state == "done":
        queue.ack(message)
    before = counts(queue)
    with pytest.raises(Conflict):
        queue.replace(message, b"y")
    with pytest.raises(Conflict):
        queue.replace(10**15, b"y")
    assert counts(queue) == before


def test_it_is_checked_as_what_is_put(ms: Millstream) -> None:
    queue, message = failed(ms)
    with pytest.raises(InvalidInput):
        queue.replace(message, b"y", headers={"a": [1]})
    with pytest.raises(NotFound):
        ms.queue("none").replace(message, b"y")
    assert counts(queue) == {"failed": 1}


def test_it_stands_behind_what_was_put_for_later(ms: Millstream, clock: SimulatedClock) -> None:
    queue, message = failed(ms)
    queue.put(b"later", delay=5)
    queue.replace(message, b"now")
    assert values(queue.claim(5)) == [b"now"]
    clock.advance(5)
    assert values(queue.claim(5)) == [b"later"]


def test_it_is_there_after_a_reopening(ms: Millstream, reopen: Reopen) -> None:
    queue, message = failed(ms)
    queue.replace(message.claim_id, {"fixed": True})
    again = reopen().queue("jobs")
    assert counts(again) == {"available": 1}
    assert [one.json() for one in again.claim(5)] == [{"fixed": True}]
