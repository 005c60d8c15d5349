"""Peeks: how messages stand, in order, page by page, for work that grows with what is shown."""

from __future__ import annotations

from typing import Any, get_args

import pytest

from millstream import Millstream
from millstream.errors import InvalidInput, NotFound
from millstream.format import keys
from millstream.queue.commands import PeekMessages
from millstream.queue.model.bucket import Bucket
from millstream.queue.model.message import PeekState, messages_of
from millstream.queue.model.slots import End
from millstream.testing import Probe, SimulatedClock
from millstream.threads.queue import Queue

from .conftest import fold_all, values


class Counted(list[End]):
    """A list that counts how often it is gone through."""

    times = 0

    def __iter__(self) -> Any:
        Counted.times += 1
        return super().__iter__()


def paged(queue: Queue, state: str, size: int) -> list[Any]:
    found: list[Any] = []
    after = -1
    while page := queue.peek(size, state=state, after=after):
        found += page
        after = page[-1].claim_id
    return found


@pytest.mark.embedded
@pytest.mark.parametrize("end", ["fail", "ack", "nack"])
def test_messages_ended_one_by_one_are_not_looked_for_one_by_one(ms: Millstream, end: str) -> None:
    queue = ms.queue("jobs", backoff=0)
    queue.put_many([b"%d" % n for n in range(300)])
    for message in queue.claim(300):
        options = {} if end == "ack" else {"reason": message.value.decode()}
        getattr(queue, end)(message, **options)
    store = Probe(ms).store
    (bucket,) = [entity for key, entity in store.state.entities.items() if key[1] == keys.BUCKET]
    assert isinstance(bucket, Bucket)
    assert len(bucket.ends) == 300
    bucket.ends = Counted(bucket.ends)
    Counted.times = 0
    state = {"fail": "failed", "ack": "done", "nack": "available"}[end]
    found = queue.peek(300, state=state)
    assert values(found) == [b"%d" % n for n in range(300)]
    if end != "ack":
        assert [one.reason for one in found] == [str(n) for n in range(300)]
    assert Counted.times < 10


@pytest.mark.parametrize("folded", [False, True])
@pytest.mark.parametrize("batched", [False, True])
def test_single_messages_are_shown_with_what_each_has(
    ms: Millstream, clock: SimulatedClock, folded: bool, batched: bool
) -> None:
    queue = ms.queue("jobs", sources=["a", "b"], bucket_exponent=1, backoff=0, lease=500)
    for name in "ab":
        rows = [b"%s%d" % (name.encode(), n) for n in range(25)]
        if batched:
            ms.log(name).append_many(rows, headers=[{"n": n} for n in range(25)])
        else:
            for n, row in enumerate(rows):
                ms.log(name).append(row, headers={"n": n})
    for message in queue.claim(50):
        queue.fail(message, reason=f"no {message.value.decode()}")
        clock.advance(1)
    if folded:
        fold_all(ms)
    found = queue.peek(100, state="failed")
    assert len(found) == 50
    for message in found:
        assert message.reason == f"no {message.value.decode()}"
        assert message.value == b"%s%d" % (message.log.encode(), message.offset)
        assert dict(message.headers) == {"n": message.offset}
    assert [one.claim_id for one in found] == sorted(one.claim_id for one in found)
    for size in (1, 7, 50):
        assert paged(queue, "failed", size) == found


@pytest.mark.parametrize("state", ["available", "done", "failed", "in_flight"])
@pytest.mark.parametrize("exponents", [(2, 0, 1), (0, 2, 0)])
def test_pages_go_on_through_every_bucket_size(
    ms: Millstream, state: str, exponents: tuple[int, ...]
) -> None:
    queue = ms.queue("jobs", bucket_exponent=exponents[0], lease=100, backoff=0)
    expected = []
    for turn, exponent in enumerate(exponents):
        if turn:
            queue.alter(bucket_exponent=exponent)
        rows = [b"%d.%d" % (turn, n) for n in range(130)]
        queue.put_many(rows)
        expected += rows
        if state == "available":
            queue.peek(1_000)
            continue
        messages = queue.claim(130)
        if state != "in_flight":
            getattr(queue, "ack" if state == "done" else "fail")(messages)
    assert values(queue.peek(1_000, state=state)) == expected
    for size in (1, 60, 129, 250):
        assert values(paged(queue, state, size)) == expected


@pytest.mark.embedded
def test_a_peek_is_checked(ms: Millstream) -> None:
    queue = ms.queue("jobs", lease=30)
    for wrong in ({"state": "lost"}, {"n": -1}, {"n": 10_001}):
        with pytest.raises(InvalidInput):
            queue.peek(**wrong)  # type: ignore[arg-type]
    for count in (0, 1):
        with pytest.raises(NotFound):
            ms.queue("none").peek(count, state="failed")


@pytest.mark.parametrize("exponent", [0, 1, 3])
@pytest.mark.parametrize("is_altered", [False, True])
def test_the_newest_messages_are_read_page_by_page(
    ms: Millstream, exponent: int, is_altered: bool
) -> None:
    queue = ms.create_queue("q", bucket_exponent=exponent, backoff=600, priority_by="p")
    for number in range(60):
        if number == 30 and is_altered:
            queue.alter(bucket_exponent=2)
        queue.put(b"%d" % number, priority=number % 3, delay=None if number % 7 else 60)
    claimed = queue.claim(40)
    queue.ack(claimed[:12])
    queue.fail(claimed[12:20])
    queue.nack(claimed[20:25])
    for message in queue.peek(100)[::3]:
        queue.cancel(message)
    seen: set[int] = set()
    for state in get_args(PeekState):
        expected = [message.claim_id for message in queue.peek(100, state=state)]
        assert expected, state
        seen.update(expected)
        for size in (1, 3, 100):
            found: list[int] = []
            after = -1
            while True:
                command = PeekMessages("q", state, size, after, newest=True)
                page = [one.claim_id for one in messages_of(ms.session.execute(command))]
                if not page:
                    break
                found += page[::-1]
                after = page[0]
            assert found == expected[::-1], (state, size)
    assert len(seen) == 60
