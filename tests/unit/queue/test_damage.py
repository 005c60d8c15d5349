"""A damaged message fails by itself and says why; everything else goes on."""

from __future__ import annotations

import asyncio
import pickle
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from millstream import Message
from millstream.aio.database import Millstream as AsyncMillstream
from millstream.clock import SystemClock
from millstream.embedded.loop.session import AsyncEmbeddedSession
from millstream.embedded.session import open_store
from millstream.engine.commit import Commit
from millstream.testing import Probe
from millstream.threads.queue import Queue
from tests.unit.damaging import Fragile
from tests.unit.queue.conftest import counts
from tests.unit.server.asking import serving

pytestmark = pytest.mark.embedded

SPECS: dict[str, dict[str, Any]] = {
    "plain": {},
    "grouped": {"group_by": "group"},
    "shared": {"group_by": "group", "group_in_flight": 0},
    "priority": {"priority_by": "priority"},
    "filtered": {"filter": "group = 'a'"},
    "repeats": {"dedup_by": "number"},
}


@pytest.fixture
def fragile() -> Iterator[Fragile]:
    made = Fragile()
    yield made
    made.ms.close()


def singles(fragile: Fragile, count: int = 10) -> None:
    """Records that are folded one by one, so that the fold joins none of them."""
    log = fragile.ms.log("x")
    for n in range(count):
        log.append(str(n), headers={"group": "a", "number": n, "priority": 1})
        fragile.settle()


def batches(fragile: Fragile, count: int = 4, each: int = 3) -> None:
    log = fragile.ms.log("x")
    for n in range(count):
        numbers = range(n * each, n * each + each)
        log.append_many(
            [str(one) for one in numbers],
            headers=[{"group": "a", "number": one, "priority": 1} for one in numbers],
        )


def queue_on(fragile: Fragile, **spec: Any) -> Queue:
    fragile.ms.queue("q", sources="x", start="earliest", **spec)
    fragile.settle()
    return fragile.ms.queue("q")


def drained(queue: Queue, n: int) -> list[int]:
    """Everything that can be claimed, acknowledged along the way."""
    found: list[int] = []
    held: list[Message] = []
    while held := queue.claim(n, ack=held):
        assert all(message.text == str(message.offset) for message in held)
        assert {message.attempt for message in held} == {1}
        found += [message.offset for message in held]
    return found


def failures(queue: Queue) -> dict[int, str]:
    """The offsets of the failed messages, and why they failed."""
    return {message.offset: message.reason for message in queue.failed()}


@pytest.mark.parametrize("kind", SPECS)
@pytest.mark.parametrize("n", [1, 3, 100])
@pytest.mark.parametrize("how", ["spoil", "lose"])
def test_damaged_payloads_fail_alone(fragile: Fragile, kind: str, n: int, how: str) -> None:
    singles(fragile)
    queue = queue_on(fragile, **SPECS[kind])
    getattr(fragile, how)("x", 0, 4, 5, 9)

    assert drained(queue, n) == [1, 2, 3, 6, 7, 8]

    assert counts(queue) == {"done": 6, "failed": 4}
    reasons = failures(queue)
    assert sorted(reasons) == [0, 4, 5, 9]
    for offset, reason in reasons.items():
        assert reason.startswith("damaged: log 'x': ")
        assert f"offset {offset} " in reason


@pytest.mark.parametrize("kind", SPECS)
@pytest.mark.parametrize("n", [1, 2, 100])
def test_a_damaged_block_fails_with_all_its_messages(fragile: Fragile, kind: str, n: int) -> None:
    batches(fragile)
    queue = queue_on(fragile, **SPECS[kind])
    fragile.spoil("x", 4)

    assert drained(queue, n) == [0, 1, 2, *range(6, 12)]

    assert counts(queue) == {"done": 9, "failed": 3}
    assert sorted(failures(queue)) == [3, 4, 5]
    assert all("damaged: log 'x': " in reason for reason in failures(queue).values())


@pytest.mark.parametrize("kind", SPECS)
@pytest.mark.parametrize("n", [1, 100])
@pytest.mark.parametrize("routed", [False, True])
def test_damaged_metadata_is_passed_over_and_counted(
    fragile: Fragile, kind: str, n: int, routed: bool
) -> None:
    batches(fragile)
    queue = queue_on(fragile, **SPECS[kind])
    if routed:
        queue.peek(100)
        fragile.settle()
    fragile.spoil_entry("x", 4)
    queue = fragile.reopen().queue("q")

    assert drained(queue, n) == [0, 1, 2, *range(6, 12)]

    info = queue.info()
    assert info is not None
    if routed:
        assert (info.damaged, info.skipped, info.failed) == (0, [], 3)
        assert sorted(failures(queue)) == [3, 4, 5]
    else:
        assert (info.damaged, info.failed) == (3, 0)
        assert [(one.log, one.start, one.stop) for one in info.skipped] == [("x", 3, 6)]
    assert fragile.reopen().queue("q").info() == info


def test_a_lost_entry_is_passed_over_and_counted(fragile: Fragile) -> None:
    batches(fragile)
    queue = queue_on(fragile)
    with fragile.engine.write() as writer:
        writer.commit(Commit(deletes=[fragile.entry("x", 0), fragile.entry("x", 9)]))

    assert drained(queue, 100) == list(range(3, 9))

    info = queue.info()
    assert info is not None
    assert (info.damaged, info.unrouted) == (6, 0)
    assert [(one.start, one.stop) for one in info.skipped] == [(0, 3), (9, 12)]


def test_a_queue_that_starts_at_a_time_begins_before_what_cannot_say(fragile: Fragile) -> None:
    batches(fragile, count=1)
    fragile.clock.advance(60)
    since_ms = fragile.clock.wall_ms()
    batches(fragile, count=2)
    fragile.settle()
    fragile.spoil_entry("x", 3)

    queue = fragile.ms.queue("q", sources="x", start_ms=since_ms)

    assert [message.offset for message in queue.claim(10)] == [6, 7, 8]
    info = queue.info()
    assert info is not None
    assert info.damaged == 3


def test_an_info_does_not_fail_before_damage(fragile: Fragile) -> None:
    batches(fragile, count=1)
    queue = queue_on(fragile)
    fragile.spoil_entry("x", 0)

    info = queue.info()

    assert info is not None
    assert (info.unrouted, info.oldest_s) == (3, None)


def test_pop_fails_what_is_damaged_and_gives_the_rest(fragile: Fragile) -> None:
    singles(fragile)
    queue = queue_on(fragile)
    fragile.spoil("x", 0, 1, 5)

    assert [message.offset for message in queue.pop(2)] == [2, 3]
    assert [message.offset for message in queue.pop(4)] == [4, 6, 7]
    assert [message.offset for message in queue.pop(10)] == [8, 9]
    assert queue.pop(10) == []
    assert counts(queue) == {"done": 7, "failed": 3}
    assert sorted(failures(queue)) == [0, 1, 5]


@pytest.mark.parametrize("pops", [True, False])
def test_of_messages_that_lie_apart_only_the_damaged_ones_fail(
    fragile: Fragile, *, pops: bool
) -> None:
    log = fragile.ms.log("x")
    for n in range(12):
        log.append(str(n), headers={"priority": n % 2})
        fragile.settle()
    queue = queue_on(fragile, priority_by="priority")
    fragile.spoil("x", 3, 4)

    found = queue.pop(12) if pops else queue.claim(12)

    assert [message.offset for message in found] == [1, 5, 7, 9, 11, 0, 2, 6, 8, 10]
    assert [message.text for message in found] == [str(message.offset) for message in found]
    queue.ack([] if pops else found)
    assert counts(queue) == {"done": 10, "failed": 2}
    assert sorted(failures(queue)) == [3, 4]


def test_peek_shows_what_is_damaged_without_its_value(fragile: Fragile) -> None:
    batches(fragile)
    queue = queue_on(fragile)
    fragile.spoil("x", 4)

    shown = queue.peek(100)

    assert [message.offset for message in shown] == list(range(12))
    broken = [message for message in shown if not message.value]
    assert [message.offset for message in broken] == [3, 4, 5]
    assert all(message.reason.startswith("damaged: log 'x': ") for message in broken)
    assert [message.headers["number"] for message in broken] == [3, 4, 5]
    assert counts(queue) == {"available": 12}
    fragile.spoil_entry("x", 4)
    (bare,) = [message for message in queue.peek(100) if message.offset == 4]
    assert (bare.value, bare.headers, bare.key) == (b"", {}, None)


def test_a_done_message_that_is_still_there_says_that_it_is_damaged(fragile: Fragile) -> None:
    batches(fragile)
    queue = queue_on(fragile)
    queue.ack(queue.claim(12))
    fragile.settle()
    fragile.reopen()
    fragile.spoil("x", 4)

    shown = fragile.ms.queue("q").peek(100, state="done")

    assert [message.offset for message in shown] == list(range(12))
    damaged = [message for message in shown if message.damage]
    assert [(message.offset, message.damage) for message in damaged] == [
        (3, "value"),
        (4, "value"),
        (5, "value"),
    ]
    assert all(message.reason.startswith("damaged: log 'x': ") for message in damaged)


@pytest.mark.parametrize("state", ["available", "in_flight", "failed"])
def test_every_state_says_what_is_damaged_before_the_old_reason(
    fragile: Fragile, state: str
) -> None:
    batches(fragile)
    queue = queue_on(fragile, backoff=0, max_attempts=3)
    held = queue.claim(12)
    if state == "failed":
        queue.fail(held, reason="no address")
    else:
        queue.nack(held, reason="no address")
        if state == "in_flight":
            fragile.clock.advance(1)
            queue.claim(12)
    fragile.settle()
    queue = fragile.reopen().queue("q")
    fragile.spoil("x", 4)
    fragile.spoil_entry("x", 7)

    shown = {message.offset: message for message in queue.peek(100, state=state)}

    damages = {offset: message.damage for offset, message in shown.items() if message.damage}
    assert damages == dict.fromkeys([3, 4, 5], "value") | dict.fromkeys([6, 7, 8], "record")
    for offset, message in shown.items():
        if not message.damage:
            assert (message.text, message.reason) == (str(offset), "no address")
            continue
        assert message.value == b""
        assert message.reason.startswith("damaged: log 'x': ")
        assert message.reason.endswith("; before that: no address")
        assert f"damage={message.damage!r}" in repr(message)
        assert pickle.loads(pickle.dumps(message)) == message
    if state == "failed":
        assert [one.damage for one in queue.failed()] == [one.damage for one in shown.values()]


def test_a_redrive_does_not_take_what_is_damaged_for_empty(fragile: Fragile) -> None:
    batches(fragile)
    queue = queue_on(fragile)
    queue.fail(queue.claim(12), reason="no address")
    fragile.settle()
    queue = fragile.reopen().queue("q")
    fragile.spoil("x", 4)
    fragile.spoil_entry("x", 7)

    def chosen(where: str) -> list[int]:
        offsets = [message.offset for message in queue.failed(where)]
        assert queue.redrive(where, dry_run=True) == len(offsets)
        return offsets

    assert chosen("number IS NULL") == []
    assert chosen("_key IS NULL AND NOT number > 100") == [0, 1, 2, 3, 4, 5, 9, 10, 11]
    assert chosen("_timestamp < 1000") == []
    assert chosen("_value IS NULL") == []
    assert chosen("number BETWEEN 3 AND 8") == [3, 4, 5]
    assert queue.redrive(dry_run=True) == 12
    assert queue.redrive("number < 4") == 4
    assert [message.text for message in queue.claim(12)] == ["0", "1", "2"]
    again = {message.offset: message for message in queue.failed() if message.offset == 3}
    assert again[3].reason.startswith("damaged: log 'x': ")
    assert "before that" not in again[3].reason


def test_done_messages_whose_payloads_are_gone_are_not_called_damaged(fragile: Fragile) -> None:
    batches(fragile)
    queue = queue_on(fragile)
    queue.ack(queue.claim(12))
    fragile.ms.log("x").truncate(before=6)
    Probe(fragile.ms).upkeep()
    fragile.settle()
    fragile.reopen()
    shown = fragile.ms.queue("q").peek(100, state="done")
    assert [message.offset for message in shown] == list(range(12))
    assert {bool(message.value) for message in shown[:6]} == {False}
    assert {message.damage for message in shown} == {""}


def test_the_group_goes_on_behind_the_failed_one(fragile: Fragile) -> None:
    singles(fragile, 4)
    queue = queue_on(fragile, group_by="group")
    fragile.spoil("x", 1)

    (first,) = queue.claim(10)
    (second,) = queue.claim(10, ack=first)
    assert (first.offset, second.offset) == (0, 2)
    assert sorted(failures(queue)) == [1]


def test_what_is_driven_again_fails_again_once(fragile: Fragile) -> None:
    singles(fragile, 3)
    queue = queue_on(fragile, dead_letter="dead")
    fragile.spoil("x", 1)
    assert drained(queue, 10) == [0, 2]

    assert queue.redrive() == 1
    assert queue.claim(10) == []

    assert counts(queue) == {"done": 2, "failed": 1}
    assert len(fragile.ms.log("dead")) == 2


def test_a_filter_of_a_redrive_sees_the_headers_that_are_left(fragile: Fragile) -> None:
    singles(fragile, 3)
    queue = queue_on(fragile)
    fragile.spoil("x", 1)
    drained(queue, 10)

    assert queue.redrive("number = 2") == 0
    assert queue.redrive("number = 1") == 1


@pytest.mark.parametrize("how", ["spoil", "lose"])
def test_a_letter_says_what_was_damaged(fragile: Fragile, how: str) -> None:
    singles(fragile, 3)
    queue = queue_on(fragile, dead_letter="dead")
    getattr(fragile, how)("x", 1)

    assert drained(queue, 10) == [0, 2]

    (letter,) = fragile.ms.log("dead").read()
    assert letter.value == b""
    assert letter.headers["number"] == 1
    assert letter.headers["dead-letter-log"] == "x"
    assert letter.headers["dead-letter-offset"] == 1
    assert str(letter.headers["dead-letter-reason"]).startswith("damaged: log 'x': ")
    assert "offset 1" in str(letter.headers["dead-letter-damage"])


def test_a_letter_of_which_nothing_is_left_says_where_it_was(fragile: Fragile) -> None:
    batches(fragile, 2)
    queue = queue_on(fragile, dead_letter="dead")
    queue.peek(10)
    fragile.settle()
    fragile.spoil_entry("x", 3)
    queue = fragile.reopen().queue("q")

    assert drained(queue, 10) == [0, 1, 2]

    letters = list(fragile.ms.log("dead").read())
    assert [letter.headers["dead-letter-offset"] for letter in letters] == [3, 4, 5]
    assert {letter.value for letter in letters} == {b""}


def test_a_message_that_fails_while_it_is_damaged_has_a_letter(fragile: Fragile) -> None:
    """It was read, and then its row was damaged: the consumer's own ending counts."""
    singles(fragile, 1)
    queue = queue_on(fragile, dead_letter="dead", max_attempts=1)
    held = queue.claim()
    fragile.spoil("x", 0)

    queue.nack(held, reason="no such account")

    (letter,) = fragile.ms.log("dead").read()
    assert letter.headers["dead-letter-reason"] == "no such account"
    assert letter.value == b""


def test_an_expired_lease_of_a_damaged_message_ends(fragile: Fragile) -> None:
    singles(fragile, 2)
    queue = queue_on(fragile, dead_letter="dead", max_attempts=1, lease=5)
    queue.claim(2)
    fragile.spoil("x", 0)
    fragile.clock.advance(6)

    assert queue.claim(2) == []

    assert counts(queue) == {"failed": 2}
    assert [letter.value for letter in fragile.ms.log("dead").read()] == [b"", b"1"]


def test_claims_that_are_made_together_lose_only_the_damaged_one(fragile: Fragile) -> None:
    singles(fragile, 40)
    queue = queue_on(fragile)
    queue.peek(1)
    fragile.spoil("x", 7, 21)
    found: list[int] = []

    def consume() -> None:
        held: list[Message] = []
        while held := queue.claim(1, ack=held):
            found.append(held[0].offset)

    threads = [threading.Thread(target=consume) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert sorted(found) == [n for n in range(40) if n not in (7, 21)]
    assert sorted(failures(queue)) == [7, 21]


def test_a_worker_goes_on() -> None:
    fragile = Fragile(SystemClock())
    singles(fragile)
    queue = queue_on(fragile)
    fragile.spoil("x", 0, 4)
    seen: list[int] = []

    queue.worker(lambda message: seen.append(message.offset)).run(drain=True)

    assert seen == [1, 2, 3, 5, 6, 7, 8, 9]
    assert counts(queue) == {"done": 8, "failed": 2}
    fragile.ms.close()


def test_coroutines_get_the_rest(fragile: Fragile) -> None:
    singles(fragile, 5)
    queue_on(fragile)
    fragile.spoil("x", 0, 2, 4)
    fragile.ms.close()

    async def claim() -> list[list[int]]:
        store = open_store(fragile.engine.reopen(), clock=fragile.clock)
        async with AsyncMillstream(AsyncEmbeddedSession(store)) as ms:
            queue = await ms.queue("q")
            await queue.peek(1)
            return [[one.offset for one in await queue.claim(1)] for _ in range(3)]

    assert asyncio.run(claim()) == [[1], [3], []]


def test_a_server_gives_the_rest(fragile: Fragile) -> None:
    singles(fragile, 5)
    queue_on(fragile, dead_letter="dead")
    fragile.spoil("x", 0, 2)
    fragile.ms.close()

    async def ask() -> None:
        async with serving(engine=fragile.engine.reopen()) as rest:
            page = (await rest.post("/queues/q/claims", json={"n": 4})).json()
            assert [one["offset"] for one in page["messages"]] == [1, 3]
            page = (await rest.post("/queues/q/pop", json={"n": 4})).json()
            assert [one["offset"] for one in page["messages"]] == [4]
            page = (await rest.get("/queues/q/messages?state=failed&limit=10")).json()
            assert [one["offset"] for one in page["messages"]] == [0, 2]
            assert all("damaged" in one["reason"] for one in page["messages"])
            assert [one["damage"] for one in page["messages"]] == ["value", "value"]
            info = (await rest.get("/queues/q")).json()
            assert (info["failed"], info["damaged"], info["skipped"]) == (2, 0, [])

    asyncio.run(ask())
