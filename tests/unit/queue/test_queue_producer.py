"""The producer of a queue: single messages at streaming speed, over a file and over a server."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from millstream import Millstream, Queue
from millstream.errors import InvalidInput, NotFound
from millstream.testing import SimulatedClock


def test_messages_are_claimed_in_the_order_of_the_calls(ms: Millstream) -> None:
    queue = ms.create_queue("jobs")
    with queue.producer() as producer:
        handles = [producer.put(b"%d" % number) for number in range(500)]
    messages = queue.claim(500)
    assert [message.value for message in messages] == [b"%d" % number for number in range(500)]
    assert [handle.id() for handle in handles] == [*range(500)]
    assert all(handle.done for handle in handles)


def test_the_id_is_that_of_the_message(ms: Millstream) -> None:
    queue = ms.create_queue("jobs")
    with queue.producer() as producer:
        handle = producer.put({"n": 1}, delay=60)
        fate = queue.message(handle.id())
    assert fate is not None
    assert fate.state == "delayed"


def test_priorities_groups_and_dedup_ids_are_those_of_put(ms: Millstream) -> None:
    gathered, single = (
        ms.create_queue(name, priority_by="p", group_by="g", dedup_by="d")
        for name in ("gathered", "single")
    )
    wishes: list[dict[str, Any]] = [
        {},
        {"priority": 1, "key": "k"},
        {"priority": 9, "headers": {"h": 1}},
        {"group": "a"},
        {"dedup": "x"},
        {"dedup": "x"},
    ]
    with gathered.producer() as producer:
        for number, wish in enumerate(wishes):
            producer.put(f"{number}", **wish)
    for number, wish in enumerate(wishes):
        single.put(f"{number}", **wish)

    def claimed(queue: Queue) -> list[object]:
        messages = [message for _ in range(9) for message in queue.claim(1)]
        return [(message.text, message.key, dict(message.headers)) for message in messages]

    assert claimed(gathered) == claimed(single)
    assert gathered.info().duplicates == 1


def test_messages_for_later_come_when_they_are_due(ms: Millstream, clock: SimulatedClock) -> None:
    queue = ms.create_queue("jobs")
    due = datetime.fromtimestamp(clock.wall_ms() / 1000, UTC) + timedelta(seconds=20)
    with queue.producer() as producer:
        for number in range(4):
            producer.put(f"late {number}", delay=10)
            producer.put(f"now {number}")
            producer.put(f"at {number}", at=due)
    assert [message.text for message in queue.claim(9)] == [f"now {number}" for number in range(4)]
    clock.advance(11)
    assert [message.text for message in queue.claim(9)] == [f"late {number}" for number in range(4)]
    clock.advance(11)
    assert [message.text for message in queue.claim(9)] == [f"at {number}" for number in range(4)]


def test_a_message_that_the_queue_refuses_fails_alone(ms: Millstream) -> None:
    queue = ms.create_queue("jobs")  # it looks at no priority
    with queue.producer(linger=60) as producer:
        handles = [
            producer.put(b"%d" % number, priority=5 if number in (3, 17) else None)
            for number in range(40)
        ]
        producer.put(b"", delay=-1)
        with pytest.raises(InvalidInput):
            producer.flush()
        for number, handle in enumerate(handles):
            if number in (3, 17):
                with pytest.raises(InvalidInput, match="priority"):
                    handle.id()
            else:
                handle.id()
    values = [message.value for message in queue.claim(50)]
    assert values == [b"%d" % number for number in range(40) if number not in (3, 17)]


def test_a_missing_queue_refuses_messages_until_it_is_created(ms: Millstream) -> None:
    queue = ms.create_queue("jobs")
    queue.delete()
    with queue.producer() as producer:
        handles = [producer.put(b"lost"), producer.put(b"lost", priority=1)]
        for handle in handles:
            with pytest.raises(NotFound):
                handle.id()
        ms.create_queue("jobs")
        producer.put(b"kept").id()
    assert [message.value for message in queue.claim(9)] == [b"kept"]


@pytest.mark.parametrize(
    "wishes",
    [
        {"priority": 10},
        {"group": 5},
        {"delay": 1, "at": 5},
        {"at": -1},
        {"at": datetime(2030, 1, 1)},
    ],
)
def test_impossible_wishes_fail_the_handle(ms: Millstream, wishes: dict[str, object]) -> None:
    queue = ms.create_queue("jobs", priority_by="p", group_by="g")
    with queue.producer() as producer:
        handle = producer.put(b"x", **wishes)  # type: ignore[arg-type]
        with pytest.raises(InvalidInput):
            handle.id()
