"""After a take-over: readers that had passed the difference go back, and nothing is mixed up.

- The old owner's tail becomes a fork, and its copy is the new owner's log.
- Cursors and queues go on where the two differ, and it is told.
- What was claimed, acknowledged, tried or remembered of the tail counts for nothing that took its
  place.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import millstream
from millstream import Message, Millstream, aio
from millstream.doctor import examine
from millstream.errors import Conflict, LeaseLost
from millstream.queue.rules.dead_letter import send_owed
from millstream.server.serving import running
from millstream.server.settings import Settings
from tests.unit.replica.copies import Cut, store_id, through, values
from tests.unit.replica.stores import store_of

COMMON, OLD, NEW = 4, 12, 9
OPEN = Settings(port=0, stop_s=1.0)
KINDS: dict[str, dict[str, Any]] = {
    "plain": {},
    "priorities": {"priority_by": "p"},
    "ordered groups": {"group_by": "g"},
    "shared groups": {"group_by": "g", "group_in_flight": 0},
    "groups of two": {"group_by": "g", "group_in_flight": 2, "priority_by": "p"},
    "delayed": {"delay": 0.001},
    "small buckets": {"bucket_exponent": 1},
    "payloads kept": {"keep_payloads": True, "bucket_exponent": 1},
}


@pytest.fixture
def paths(tmp_path: Path) -> tuple[Path, Path]:
    return tmp_path / "a.db", tmp_path / "b.db"


@pytest.fixture
def pair(paths: tuple[Path, Path]) -> Iterator[tuple[Millstream, Millstream]]:
    with millstream.open(paths[0]) as a, millstream.open(paths[1]) as b:
        yield a, b


def append(ms: Millstream, log: str, name: str, count: int) -> None:
    """Some records side by side, and some by themselves, with headers that queues look at."""
    headers = [{"p": n % 3, "g": f"g{n % 4}"} for n in range(count)]
    half = count // 2
    found = [b"%s%d" % (name.encode(), n) for n in range(count)]
    ms.log(log).append_many(found[:half], headers=headers[:half])
    for value, one in zip(found[half:], headers[half:], strict=True):
        ms.log(log).append(value, headers=one)


def common(a: Millstream, b: Millstream, log: str = "x") -> None:
    append(a, log, "common", COMMON)
    a.sync(b, logs=log)


def parted(a: Millstream, b: Millstream, log: str = "x") -> None:
    """The log was taken over by b, and both have written since."""
    common(a, b, log)
    b.log(log).take_over()
    append(a, log, "old", OLD)
    append(b, log, "new", NEW)


def worked_off(queue: Any) -> list[bytes]:
    """Everything that the queue still delivers."""
    found: list[bytes] = []
    for _ in range(200):
        messages = queue.claim(5, wait=0.05)
        if not messages and not queue.info().available and not queue.info().delayed:
            return found
        found += [message.value for message in messages]
        queue.ack(messages)
    raise AssertionError("the queue never ends")


def healthy(*paths: Path) -> None:
    for path in paths:
        assert examine(path).problems == []


@pytest.mark.parametrize("direction", ["both", "pull"])
def test_a_cursor_that_had_passed_the_difference_goes_back(
    pair: tuple[Millstream, Millstream], direction: Any
) -> None:
    a, b = pair
    parted(a, b)
    cursor = a.log("x").cursor("reader")
    cursor.ack(cursor.take(COMMON + 2))
    cursor.ack(COMMON + 6)
    (log,) = a.sync(b, direction=direction).logs
    (fork,) = log.set_aside
    assert len(values(a, fork)) == COMMON + OLD
    (back,) = log.set_back
    assert (back.kind, back.name, back.store) == ("cursor", "reader", store_id(a))
    assert (back.passed, back.offset) == (COMMON + 7, COMMON)
    info = a.log("x").cursors()[0]
    assert (info.floor, info.ranges, info.set_back) == (COMMON, [], 1)
    assert [r.value for r in cursor.take(99)] == [b"new%d" % n for n in range(NEW)]
    assert a.sync(b).logs == []


def test_what_was_taken_before_is_not_acknowledged_afterwards(
    pair: tuple[Millstream, Millstream],
) -> None:
    a, b = pair
    parted(a, b)
    cursor = a.log("x").cursor("reader")
    held = cursor.take(99)
    a.sync(b)
    for named in (held[-3:], held[COMMON], COMMON + 1):
        with pytest.raises(Conflict, match="set aside"):
            cursor.ack(named)
    cursor.ack(held[:COMMON])
    again = cursor.take(3)
    assert [r.value for r in again] == [b"new0", b"new1", b"new2"]
    with pytest.raises(Conflict, match="set aside"):
        cursor.ack(held[COMMON])
    cursor.ack(again)
    assert cursor.floor() == COMMON + 3
    assert [r.value for r in cursor.take(99)] == [b"new%d" % n for n in range(3, NEW)]


@pytest.mark.parametrize("section", [1, 4])
def test_a_cursor_in_memory_goes_back_as_well(
    pair: tuple[Millstream, Millstream], section: int
) -> None:
    a, b = pair
    parted(a, b)
    cursor = a.log("x").cursor("memory", durable=False, section=section)
    held = cursor.take(COMMON + 5)
    cursor.ack(held)
    cursor.flush()
    late = cursor.take(2)
    a.sync(b)
    with pytest.raises(Conflict, match="set aside"):
        cursor.ack(late)
    assert cursor.flush() <= COMMON
    assert [r.value for r in cursor.take(99)] == [b"new%d" % n for n in range(NEW)]


def test_a_waiting_cursor_is_woken_by_what_takes_the_place(
    pair: tuple[Millstream, Millstream],
) -> None:
    """The log ends earlier than before: what is awaited is not the old end."""
    a, b = pair
    common(a, b)
    b.log("x").take_over()
    b.log("x").append(b"new")
    append(a, "x", "old", OLD)
    cursor = a.log("x").cursor("reader")
    cursor.ack(cursor.take(99))
    extent = a.log("x").extent()
    a.sync(b)
    assert a.log("x").wait(extent.end, timeout=60, log_id=extent.id)
    assert [r.value for r in cursor.take(1, wait=60)] == [b"new"]


@pytest.mark.parametrize("folded", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_a_queue_that_had_passed_the_difference_goes_back(
    pair: tuple[Millstream, Millstream], paths: tuple[Path, Path], kind: str, folded: bool
) -> None:
    a, b = pair
    parted(a, b)
    append(a, "y", "other", 7)
    queue = a.queue("q", sources=["x", "y"], start="earliest", backoff=0.001, **KINDS[kind])
    chance = random.Random(kind)
    held: list[Message] = []
    finished: list[bytes] = []
    for _ in range(6):
        for message in queue.claim(3, wait=0.05):
            fate = chance.choice(["ack", "nack", "fail", "hold"])
            if fate == "hold":
                held.append(message)
                continue
            getattr(queue, fate)(message)
            finished += [message.value] * (fate != "nack")
    if folded:
        a.fold()
    unfinished = queue.info().available + queue.info().in_flight + queue.info().delayed
    (log,) = a.sync(b, logs="x").logs
    healthy(*paths)
    (back,) = log.set_back
    assert (back.kind, back.name, back.offset) == ("queue", "q", COMMON)
    assert (queue.info().set_back, queue.info().withdrawn) == (1, back.withdrawn)
    assert 0 < back.withdrawn <= unfinished
    lost = [message for message in held if message.value.startswith(b"old")]
    for message in lost:
        with pytest.raises(LeaseLost):
            queue.ack(message)
    kept = [message for message in held if message not in lost]
    queue.ack(kept)
    a.fold()
    healthy(paths[0])
    wanted = {b"common%d" % n for n in range(COMMON)} | {b"other%d" % n for n in range(7)}
    wanted |= {b"new%d" % n for n in range(NEW)}
    wanted -= set(finished) | {message.value for message in kept}
    assert sorted(worked_off(queue)) == sorted(wanted)
    done_or_failed = [*queue.peek(99, state="done"), *queue.peek(99, state="failed")]
    of_tail = [one for one in done_or_failed if one.value.startswith(b"old")]
    assert {one.value for one in of_tail} == {v for v in finished if v.startswith(b"old")}
    assert {one.log for one in of_tail} <= {log.set_aside[0]}
    a.fold()
    healthy(*paths)


def test_failed_messages_of_the_tail_can_be_redriven_from_the_fork(
    pair: tuple[Millstream, Millstream], paths: tuple[Path, Path]
) -> None:
    a, b = pair
    parted(a, b)
    queue = a.queue("q", sources=["x"], start="earliest")
    messages = queue.claim(99)
    queue.fail(messages[-1], reason="broken")
    queue.ack(messages[:-1])
    (log,) = a.sync(b).logs
    a.log("x").truncate(before=COMMON + 2)
    a.fold()
    assert queue.redrive() == 1
    found = {(one.log, one.value) for one in queue.claim(99)}
    assert (log.set_aside[0], b"old%d" % (OLD - 1)) in found
    assert ("x", b"new%d" % (NEW - 1)) in found
    healthy(*paths)


def test_a_dead_letter_that_is_still_to_be_written_tells_of_the_tail(
    pair: tuple[Millstream, Millstream], paths: tuple[Path, Path]
) -> None:
    a, b = pair
    parted(a, b)
    queue = a.queue("q", sources=["x"], start="earliest", dead_letter="letters")
    messages = queue.claim(99)
    with a.log("letters").stage():
        queue.fail(messages[-1], reason="broken")
        (log,) = a.sync(b, logs="x").logs
    assert queue.purge(state="failed") == 1
    store_of(a).run(lambda tx: send_owed(tx, "q"))
    (letter,) = a.log("letters").read()
    assert letter.value == b"old%d" % (OLD - 1)
    assert letter.headers["dead-letter-log"] == log.set_aside[0]
    healthy(*paths)


def test_a_repeat_of_what_was_withdrawn_is_no_repeat(
    pair: tuple[Millstream, Millstream], paths: tuple[Path, Path]
) -> None:
    a, b = pair
    common(a, b)
    b.log("x").take_over()
    for ms, value in ((a, b"old"), (b, b"new")):
        for key in ("unfinished", "done"):
            ms.log("x").append(value, headers={"d": key})
    queue = a.queue("q", sources=["x"], start=COMMON, dedup_by="d")
    messages = queue.claim(9)
    queue.ack(messages[1])
    a.sync(b)
    found = queue.claim(9)
    assert [(one.value, one.headers["d"]) for one in found] == [(b"new", "unfinished")]
    assert queue.info().duplicates == 1
    healthy(*paths)


def test_a_queue_that_begins_at_an_offset_does_not_go_back_before_it(
    pair: tuple[Millstream, Millstream],
) -> None:
    a, b = pair
    parted(a, b)
    queue = a.queue("q", sources=["x"], start=COMMON + 3)
    assert len(queue.claim(99)) == OLD - 3
    a.sync(b)
    assert [one.value for one in queue.claim(99)] == [b"new%d" % n for n in range(3, NEW)]


def test_it_happens_again_and_again(
    pair: tuple[Millstream, Millstream], paths: tuple[Path, Path]
) -> None:
    a, b = pair
    common(a, b)
    readers = {ms: (ms.log("x").cursor("r"), ms.queue("q", sources=["x"])) for ms in (a, b)}
    for turn in range(6):
        new, old = (b, a) if turn % 2 == 0 else (a, b)
        new.log("x").take_over()
        append(new, "x", f"new{turn}-", 3 + turn)
        append(old, "x", f"old{turn}-", 5)
        for ms in (a, b):
            cursor, queue = readers[ms]
            cursor.ack(cursor.take(99))
            queue.ack(queue.claim(99)[:3])
        (log,) = (old if turn % 3 else new).sync(old if not turn % 3 else new).logs
        assert {one.name for one in log.set_back} == {"r", "q"}
        assert {one.store for one in log.set_back} == {store_id(old)}
        assert values(a, "x") == values(b, "x")
        assert a.sync(b).logs == []
        assert [r.value for r in readers[old][0].take(99)] == values(new, "x")[-3 - turn :]
        healthy(*paths)
    a.fold()
    b.fold()
    healthy(*paths)


def test_several_logs_and_the_tail_of_a_fork(
    pair: tuple[Millstream, Millstream], paths: tuple[Path, Path]
) -> None:
    a, b = pair
    for log in ("x", "y", "z"):
        parted(a, b, log)
    queue = a.queue("q", sources=["*"], start="earliest")
    held = queue.claim(30)
    outcome = a.sync(b)
    assert {one.log: len(one.set_back) for one in outcome.logs} == {"x": 1, "y": 1, "z": 1}
    with pytest.raises(LeaseLost):
        queue.ack(held)
    kept = [one for one in held if one.value.startswith(b"common")]
    queue.ack(kept)
    assert len(worked_off(queue)) == 3 * (COMMON + NEW) - len(kept)
    healthy(*paths)


@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("cut_at", range(12))
def test_cut_off_anywhere_it_converges_the_next_time(
    pair: tuple[Millstream, Millstream], paths: tuple[Path, Path], cut_at: int, after: bool
) -> None:
    a, b = pair
    parted(a, b)
    queue = a.queue("q", sources=["x"], start="earliest")
    cursor = a.log("x").cursor("r")
    cursor.ack(cursor.take(99))
    queue.ack(queue.claim(99))
    own, line = through(a)
    line.cut_at, line.cut_after = cut_at, after
    try:
        own.sync(b)
    except Cut:
        healthy(*paths)
    a.sync(b)
    assert values(a, "x") == values(b, "x")
    assert [r.value for r in cursor.take(99)] == [b"new%d" % n for n in range(NEW)]
    assert worked_off(queue) == [b"new%d" % n for n in range(NEW)]
    assert cursor.info().set_back == queue.info().set_back == 1
    healthy(*paths)


def test_a_push_sets_readers_of_the_peer_back(pair: tuple[Millstream, Millstream]) -> None:
    a, b = pair
    parted(a, b)
    queue = a.queue("q", sources=["x"], start="earliest")
    queue.ack(queue.claim(99))
    (log,) = b.sync(a, direction="push").logs
    assert [(one.kind, one.store) for one in log.set_back] == [("queue", store_id(a))]
    assert worked_off(queue) == [b"new%d" % n for n in range(NEW)]


def test_a_running_follow_goes_on(pair: tuple[Millstream, Millstream]) -> None:
    a, b = pair
    parted(a, b)
    cursor = a.log("x").cursor("r")
    cursor.ack(cursor.take(99))
    outcomes = a.follow(b)
    assert [one.name for one in next(outcomes).logs[0].set_back] == ["r"]
    b.log("x").append(b"more")
    assert next(outcomes).pulled == 1
    outcomes.close()  # type: ignore[attr-defined]
    assert cursor.take(99)[-1].value == b"more"


@pytest.mark.parametrize("direction", ["both", "pull", "push"])
def test_it_is_the_same_over_a_server(tmp_path: Path, direction: Any) -> None:
    """The server has the old owner's copy, and consumers that work on it over the socket."""
    with (
        running(tmp_path / "server.db", OPEN) as server,
        millstream.open(server.url) as a,
        millstream.open(tmp_path / "b.db") as b,
    ):
        parted(a, b)
        cursor, queue = a.log("x").cursor("r"), a.queue("q", sources=["x"], start="earliest")
        held = cursor.take(99)
        cursor.ack(held[-1])
        queue.ack(queue.claim(3))
        message = queue.claim(9)[-1]
        one, other = (a, b) if direction == "pull" else (b, a)
        (log,) = one.sync(other, direction=direction).logs
        assert [(one.kind, one.name, one.store) for one in log.set_back] == [
            ("cursor", "r", store_id(a)),
            ("queue", "q", store_id(a)),
        ]
        with pytest.raises(Conflict, match="set aside"):
            cursor.ack(held)
        with pytest.raises(LeaseLost):
            queue.ack(message)
        cursor.ack(held[:COMMON])
        assert [r.value for r in cursor.take(99)] == [b"new%d" % n for n in range(NEW)]
        assert values(a, "x") == values(b, "x")


def test_it_is_the_same_for_coroutines(paths: tuple[Path, Path]) -> None:
    with millstream.open(paths[0]) as a, millstream.open(paths[1]) as b:
        parted(a, b)

    async def work() -> None:
        async with await aio.open(paths[0]) as a, await aio.open(paths[1]) as b:
            log = a.log("x")
            cursor = await log.cursor("r")
            memory = await log.cursor("m", durable=False)
            held = await cursor.take(99)
            await cursor.ack(held[: COMMON + 2])
            await memory.ack(await memory.take(99))
            (found,) = (await a.sync(b)).logs
            assert [one.name for one in found.set_back] == ["r"]
            with pytest.raises(Conflict, match="set aside"):
                await cursor.ack(held[-1])
            again = await cursor.take(99)
            assert [r.value for r in again] == [b"new%d" % n for n in range(NEW)]
            assert await memory.take(99) == again
            with pytest.raises(Conflict, match="set aside"):
                await cursor.ack(held[COMMON])
            await cursor.ack(again)
            assert await cursor.is_empty()

    asyncio.run(work())
    healthy(*paths)
