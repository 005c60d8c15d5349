"""Claims of runs: several messages of an ordered group at once, in order."""

from __future__ import annotations

import pytest

from millstream import Millstream
from millstream.errors import LeaseLost
from millstream.queue.commands import ClaimMessages
from millstream.testing import SimulatedClock
from millstream.threads.queue import Queue
from millstream.wire.abilities import needed_abilities

from .conftest import counts, values


@pytest.fixture
def queue(ms: Millstream) -> Queue:
    return ms.queue("jobs", group_by="g", lease=10, backoff=0, max_attempts=3, bucket_exponent=1)


def put(queue: Queue, names: str) -> None:
    """Messages such as 'a1': the group and a number."""
    for name in names.split():
        queue.put(name.encode(), group=name[0])


def run(queue: Queue, count: int) -> list[bytes]:
    return values(queue.claim(count, group_runs=True))


def test_a_run_has_several_messages_of_a_group_in_order(queue: Queue) -> None:
    put(queue, "a1 a2 b1 a3 b2")
    assert run(queue, 10) == [b"a1", b"a2", b"a3", b"b1", b"b2"]
    assert run(queue, 10) == []


def test_a_run_gathers_the_messages_of_a_group(queue: Queue) -> None:
    put(queue, "a1 b1 b2 c1 a2 d1")
    assert run(queue, 3) == [b"a1", b"a2", b"b1"]
    assert run(queue, 9) == [b"c1", b"d1"]


def test_the_others_are_left_to_other_consumers(queue: Queue) -> None:
    put(queue, "a1 b1 a2 b2 a3 b3 c1 a4")
    first = queue.claim(3, group_runs=True)
    assert values(first) == [b"a1", b"a2", b"a3"]
    second = queue.claim(3, group_runs=True)
    assert values(second) == [b"b1", b"b2", b"b3"]
    assert run(queue, 3) == [b"c1"]
    queue.ack([*first, *second])
    assert run(queue, 3) == [b"a4"]


def test_a_run_sets_few_messages_aside(ms: Millstream) -> None:
    queue = ms.queue("many", group_by="g")
    put(queue, "a1 b1 c1 d1 e1 f1 g1 h1 i1 j1 k1 a2")
    assert run(queue, 2) == [b"a1", b"b1"]


def test_a_message_of_the_group_that_is_not_due_ends_the_gathering(
    queue: Queue, clock: SimulatedClock
) -> None:
    put(queue, "a1 b1")
    queue.put(b"a2", group="a", delay=5)
    put(queue, "b2 a3 c1")
    assert run(queue, 10) == [b"a1", b"b1", b"b2", b"c1"]


def test_the_group_waits_until_the_whole_run_has_ended(queue: Queue) -> None:
    put(queue, "a1 a2 a3 a4")
    first, second, third = queue.claim(3, group_runs=True)
    queue.ack([first, third])
    assert run(queue, 10) == []
    assert queue.claim(10) == []
    queue.ack(second)
    assert run(queue, 10) == [b"a4"]


def test_another_claim_goes_on_with_other_groups(queue: Queue) -> None:
    put(queue, "a1 a2 a3 b1 b2")
    assert run(queue, 2) == [b"a1", b"a2"]
    assert run(queue, 2) == [b"b1", b"b2"]
    assert run(queue, 2) == []


def test_members_that_were_passed_over_come_in_a_run(queue: Queue) -> None:
    put(queue, "a1 a2 a3 a4 b1")
    (first,) = queue.claim()
    assert values(queue.claim()) == [b"b1"]  # the members of a wait behind their head now
    put(queue, "a5")
    assert values(queue.claim(3, ack=[first], group_runs=True)) == [b"a2", b"a3", b"a4"]
    assert run(queue, 10) == []


def test_a_run_goes_on_from_the_group_into_the_lane(queue: Queue) -> None:
    put(queue, "a1 a2 b1")
    (first,) = queue.claim()
    queue.claim()
    put(queue, "a3 a4")
    assert values(queue.claim(9, ack=[first], group_runs=True)) == [b"a2", b"a3", b"a4"]


def test_an_early_message_comes_back_before_the_later_ones(
    queue: Queue, clock: SimulatedClock
) -> None:
    put(queue, "a1 a2 a3 a4")
    first, second, third = queue.claim(3, group_runs=True)
    clock.advance(5)
    queue.renew([second, third])
    clock.advance(6)  # the lease of the first has ended
    assert queue.claim(10) == []
    queue.ack(second)
    assert queue.claim(10) == []
    queue.ack(third)
    (again,) = queue.claim()
    assert (again.value, again.attempt) == (first.value, 2)
    queue.ack(again)
    assert run(queue, 10) == [b"a4"]


def test_a_run_that_comes_back_keeps_its_order(queue: Queue, clock: SimulatedClock) -> None:
    put(queue, "a1 a2 a3 a4")
    first, second, third = queue.claim(3, group_runs=True)
    queue.nack(third)
    queue.nack(first)
    assert run(queue, 10) == []
    queue.nack(second)
    assert run(queue, 10) == [b"a1", b"a2", b"a3", b"a4"]
    clock.advance(11)
    assert run(queue, 2) == [b"a1", b"a2"]


def test_a_message_of_the_run_that_waits_holds_up_the_later_ones(
    queue: Queue, clock: SimulatedClock
) -> None:
    put(queue, "a1 a2 a3")
    first, second, third = queue.claim(3, group_runs=True)
    queue.nack(second, delay=5)
    queue.nack(third)
    queue.ack(first)
    assert run(queue, 10) == []
    assert counts(queue)["done"] == 1
    clock.advance(5)
    assert run(queue, 10) == [b"a2", b"a3"]


def test_a_late_message_ends_the_run(queue: Queue, clock: SimulatedClock) -> None:
    put(queue, "a1")
    queue.put(b"a2", group="a", delay=5)
    put(queue, "a3")
    assert run(queue, 10) == [b"a1"]
    clock.advance(6)
    queue.ack(queue.claim(0))
    clock.advance(5)
    assert run(queue, 10) == [b"a1", b"a2", b"a3"]


def test_a_failed_message_of_the_run_lets_the_group_go_on(queue: Queue) -> None:
    put(queue, "a1 a2 a3")
    first, second = queue.claim(2, group_runs=True)
    queue.fail(first)
    queue.ack(second)
    assert run(queue, 10) == [b"a3"]
    with pytest.raises(LeaseLost):
        queue.ack(first)


def test_messages_of_a_run_can_be_cancelled_once_they_wait_again(queue: Queue) -> None:
    put(queue, "a1 a2 a3")
    first, second, third = queue.claim(3, group_runs=True)
    queue.nack([first, second])
    assert queue.cancel(first)
    assert not queue.cancel(third)
    queue.ack(third)
    assert run(queue, 10) == [b"a2"]


def test_the_cap_of_a_queue_bounds_a_run(ms: Millstream) -> None:
    queue = ms.queue("few", group_by="g", max_in_flight=2)
    put(queue, "a1 a2 a3")
    assert run(queue, 10) == [b"a1", b"a2"]


def test_the_rate_of_a_group_bounds_a_run(ms: Millstream, clock: SimulatedClock) -> None:
    queue = ms.queue("slow", group_by="g", group_rate=1, group_burst=2)
    put(queue, "a1 a2 a3 a4")
    messages = queue.claim(10, group_runs=True)
    assert values(messages) == [b"a1", b"a2"]
    queue.ack(messages)
    assert run(queue, 10) == []
    clock.advance(1.1)
    assert run(queue, 10) == [b"a3"]


@pytest.mark.parametrize(
    "settings",
    [{"group_order": False}, {"group_in_flight": 2}],
    ids=["without order", "with a cap"],
)
def test_groups_without_an_order_keep_their_cap(ms: Millstream, settings: dict[str, int]) -> None:
    queue = ms.queue("others", group_by="g", **settings)  # type: ignore[arg-type]
    put(queue, "a1 a2 a3 b1")
    assert run(queue, 10) == values(queue.peek(state="in_flight", n=10))
    assert len(queue.peek(state="in_flight", n=10)) == 1 + settings.get("group_in_flight", 1)


def test_a_client_asks_no_older_server_for_runs() -> None:
    claim = ClaimMessages("jobs", 1, None, "", None, [])
    assert needed_abilities(claim) == frozenset()
    runs = ClaimMessages("jobs", 1, None, "", None, [], group_runs=True)
    assert needed_abilities(runs) == {"group-runs"}
