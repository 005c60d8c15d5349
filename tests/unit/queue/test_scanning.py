"""Promise: attempts and what waits unrouted can be listed in pages, and nothing changes by it."""

from __future__ import annotations

import pytest

from millstream import Millstream
from millstream.errors import InvalidInput, NotFound
from millstream.queue.commands import PeekMessages
from millstream.queue.model.message import messages_of
from millstream.queue.service.bulk_reads import Attempted, ListAttempts, ListUnrouted, Unrouted
from millstream.record import moment
from millstream.testing import SimulatedClock


def attempts(ms: Millstream, count: int = 100) -> list[Attempted]:
    found: list[Attempted] = []
    after = -1
    while page := ms.session.execute(ListAttempts("q", count, after)):
        found += page
        after = page[-1].claim_id
    return found


@pytest.mark.parametrize("page", [1, 3, 100])
def test_attempts_are_listed_in_pages(ms: Millstream, clock: SimulatedClock, page: int) -> None:
    queue = ms.queue("q", backoff=0, max_attempts=2)
    queue.put_many([b"%d" % i for i in range(5)])
    claimed_at = clock.wall_ms()
    messages = queue.claim(4, consumer="me")
    clock.advance(2)
    queue.ack(messages[:2])
    queue.fail(messages[2], reason="no")
    queue.nack(messages[3])
    again = queue.claim(1, consumer="you")
    assert [message.offset for message in again] == [3]

    for _ in range(10):  # the background may commit once or twice after the acknowledgements
        before = ms.stats()["sequence"]
        found = attempts(ms, page)
        if ms.stats()["sequence"] == before:
            break
    else:
        pytest.fail("listing attempts commits something each time")

    told = [
        (one.offset, one.state, [(t.consumer, t.outcome, t.reason) for t in one.tries])
        for one in found
    ]
    assert told == [
        (0, "done", [("me", "done", "")]),
        (1, "done", [("me", "done", "")]),
        (2, "failed", [("me", "failed", "no")]),
        (3, "in_flight", [("me", "again", ""), ("you", "in_flight", "")]),
    ]
    assert {one.log for one in found} == {"queue:q"}
    first = found[0].tries[0]
    assert (first.claimed, first.ended) == (moment(claimed_at), moment(claimed_at + 2_000))


def test_what_is_not_routed_is_told(ms: Millstream) -> None:
    queue = ms.queue("q", sources=["jobs"], start="earliest")
    ms.log("jobs").append_many([b"x"] * 3)
    queue.put(b"y")
    ask = ListUnrouted("q")
    assert sorted(ms.session.execute(ask), key=lambda one: one.log) == [
        Unrouted("jobs", 0, 3, False),
        Unrouted("queue:q", 0, 1, True),
    ]
    assert ms.session.execute(PeekMessages("q", "available", 10, route=False)) == []
    assert len(messages_of(ms.session.execute(PeekMessages("q", "available", 10)))) == 4
    assert ms.session.execute(ask) == []


def test_nonsense_is_refused(ms: Millstream) -> None:
    ms.queue("q", lease=1)
    for count in (0, 10_001, -1):
        with pytest.raises(InvalidInput):
            ms.session.execute(ListAttempts("q", count))
    with pytest.raises(NotFound):
        ms.session.execute(ListAttempts("none", 1))
    with pytest.raises(NotFound):
        ms.session.execute(ListUnrouted("none"))
