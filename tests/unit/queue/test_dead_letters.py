"""Dead letters: one for each failure, with every attempt, and none is lost."""

from __future__ import annotations

import asyncio
from datetime import datetime
from typing import Any

import msgspec
import pytest

from millstream import Limits, Millstream
from millstream.errors import InvalidInput
from millstream.format import keys
from millstream.queue.model.slots import FAILED, Trial
from millstream.queue.rules.dead_letter import ATTEMPTS_BYTES_MAX, LETTERS_PER_COMMIT, Owed
from millstream.record import Record, moment
from millstream.testing import SimulatedClock
from millstream.threads.queue import Queue
from tests.unit.queue.conftest import Reopen, counts, upkeep
from tests.unit.server.asking import serving

pytestmark = pytest.mark.embedded


def letters(ms: Millstream) -> list[Record]:
    return list(ms.log("dead").read())


def attempts(letter: Record) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = msgspec.json.decode(str(letter.headers["dead-letter-attempts"]))
    return found


def owed(queue: Queue) -> int:
    info = queue.info()
    assert info is not None
    return info.letters


def test_what_is_owed_is_written_as_the_format_says() -> None:
    assert keys.letter(2, (1 << 60) + 22).hex(" ") == (
        "01 1f 00 00 00 00 00 00 00 02 10 00 00 00 00 00 00 16"
    )
    owed = Owed(1, 5, "no", [Trial(1_000, "me", 2_000, FAILED, "no")])
    assert msgspec.msgpack.encode(owed).hex(" ") == (
        "94 01 05 a2 6e 6f 91 95 cd 03 e8 a2 6d 65 cd 07 d0 04 a2 6e 6f"
    )


def test_a_letter_tells_of_every_attempt(ms: Millstream, clock: SimulatedClock) -> None:
    queue = ms.queue("q", dead_letter="dead", max_attempts=3, backoff=0, lease=10)
    queue.put(b"a")
    begun = clock.wall_ms()
    queue.nack(queue.claim(consumer="ann"), reason="busy")
    queue.claim(consumer="bob")
    clock.advance(10)
    queue.nack(queue.claim(consumer="eve"), reason="no such account")

    (letter,) = letters(ms)

    told = attempts(letter)
    assert [(one["consumer"], one["outcome"], one["reason"]) for one in told] == [
        ("ann", "again", "busy"),
        ("bob", "again", "lease expired"),
        ("eve", "failed", "no such account"),
    ]
    assert [one["attempt"] for one in told] == [1, 2, 3]
    ended = [datetime.fromisoformat(one["ended"]) for one in told]
    assert ended == [moment(begun), moment(begun + 10_000), moment(begun + 10_000)]
    assert letter.headers["dead-letter-reason"] == "no such account"


def test_a_letter_keeps_repeated_headers_and_bytes(ms: Millstream) -> None:
    queue = ms.queue("q", dead_letter="dead", max_attempts=1, priority_by="p")
    queue.put(b"a", headers=[("x", 1), ("x", b"\xff"), ("p", 1), ("p", 2)], priority=7)
    (message,) = queue.claim()
    assert message.headers == [("x", 1), ("x", b"\xff"), ("p", 7)]
    queue.nack(message, reason="no")
    (letter,) = letters(ms)
    assert letter.headers.pairs()[:3] == message.headers.pairs()


@pytest.mark.parametrize("count", [20, 300])
def test_what_is_told_of_many_attempts_is_bounded(ms: Millstream, count: int) -> None:
    queue = ms.queue("q", dead_letter="dead", max_attempts=count, backoff=0)
    queue.put(b"a", headers={"mine": 1})
    for _ in range(count):
        queue.nack(queue.claim(), reason="x" * 1_000)

    (letter,) = letters(ms)

    told = attempts(letter)
    left_out = letter.headers.get("dead-letter-attempts-left-out", 0)
    assert len(str(letter.headers["dead-letter-attempts"])) <= ATTEMPTS_BYTES_MAX
    assert isinstance(left_out, int)
    assert len(told) + left_out == count
    assert (told[0]["attempt"], told[-1]["attempt"]) == (1, count)
    assert {one["outcome"] for one in told[:-1]} == {"again"}
    assert letter.headers["dead-letter-reason"] == "x" * 1_000
    assert letter.headers["mine"] == 1


@pytest.mark.parametrize("size", [63_000, 65_000])
def test_large_headers_push_nothing_out(ms: Millstream, size: int) -> None:
    queue = ms.queue("q", dead_letter="dead")
    queue.put(b"a", headers={"large": "x" * size, "small": "y"})
    queue.fail(queue.claim(), reason="because")

    (letter,) = letters(ms)

    assert letter.value == b"a"
    assert letter.headers["dead-letter-reason"] == "because"
    assert letter.headers["dead-letter-log"] == "queue:q"
    assert letter.headers["dead-letter-offset"] == 0
    assert len(attempts(letter)) == 1
    assert letter.headers["small"] == "y"
    left_out = letter.headers.get("dead-letter-headers-left-out")
    assert ("large" in letter.headers) == (left_out is None)
    assert left_out in (None, '["large"]')


def test_many_headers_leave_room(ms: Millstream) -> None:
    queue = ms.queue("q", dead_letter="dead")
    headers = {f"name-{n:04}": "x" * 20 for n in range(2_110)}
    assert 65_000 < len(msgspec.msgpack.encode(headers)) <= 65_536
    queue.put(b"a", headers=headers)
    queue.fail(queue.claim(), reason="because")

    (letter,) = letters(ms)

    assert letter.headers["dead-letter-reason"] == "because"
    assert "dead-letter-headers-left-out" in letter.headers


def test_tight_limits_push_nothing_out(reopen: Reopen) -> None:
    queue = reopen().queue("q", dead_letter="dead")
    queue.put(b"a" * 100, key="k" * 50, headers={"n": 1})
    limits = Limits(headers_bytes_max=40, value_bytes_max=10, key_bytes_max=4)
    ms = reopen(limits)
    queue = ms.queue("q")
    queue.fail(queue.claim(), reason="because")

    (letter,) = letters(ms)

    assert letter.value == b""
    assert "100 bytes" in str(letter.headers["dead-letter-value-left-out"])
    assert letter.headers["dead-letter-reason"] == "because"
    assert letter.headers["dead-letter-offset"] == 0


def test_a_letter_that_cannot_be_written_is_written_later(
    reopen: Reopen, clock: SimulatedClock
) -> None:
    ms = reopen()
    queue = ms.queue("q", dead_letter="dead", max_attempts=1)
    queue.put_many([b"a", b"b", b"c"])
    with ms.log("dead").stage():
        queue.fail(queue.claim(2), reason="because")
        assert owed(queue) == 2
        assert counts(queue) == {"available": 1, "failed": 2}
        clock.advance(2)
        upkeep(ms)
        assert owed(queue) == 2
    queue = reopen().queue("q")
    assert owed(queue) == 2
    ms = reopen()
    queue = ms.queue("q")
    queue.fail(queue.claim(), reason="later")
    clock.advance(2)
    upkeep(ms)
    upkeep(ms)

    assert owed(queue) == 0
    assert [(one.value, one.headers["dead-letter-reason"]) for one in letters(ms)] == [
        (b"c", "later"),
        (b"a", "because"),
        (b"b", "because"),
    ]
    assert [len(attempts(one)) for one in letters(ms)] == [1, 1, 1]
    clock.advance(60)
    upkeep(ms)
    assert len(letters(ms)) == 3


def test_what_is_owed_survives_redriving(ms: Millstream, clock: SimulatedClock) -> None:
    queue = ms.queue("q", dead_letter="dead", max_attempts=1)
    queue.put(b"a")
    with ms.log("dead").stage():
        queue.fail(queue.claim(), reason="first")
        queue.redrive()
        queue.fail(queue.claim(), reason="second")
        assert owed(queue) == 2
    clock.advance(2)
    upkeep(ms)

    assert [one.headers["dead-letter-reason"] for one in letters(ms)] == ["first", "second"]


def test_a_copy_that_is_written_elsewhere_takes_no_letters(
    ms: Millstream, clock: SimulatedClock
) -> None:
    queue = ms.queue("q", dead_letter="dead", max_attempts=1)
    ms.log("dead").append(b"before")
    ms.log("dead").hand_over("somewhere else")
    queue.put(b"a")
    queue.fail(queue.claim(), reason="because")
    assert owed(queue) == 1
    queue.alter(dead_letter="other")
    clock.advance(2)
    upkeep(ms)
    assert owed(queue) == 0
    assert [one.value for one in ms.log("other").read()] == [b"a"]


def test_a_deleted_queue_owes_nothing(ms: Millstream, clock: SimulatedClock) -> None:
    queue = ms.queue("q", dead_letter="dead", max_attempts=1)
    queue.put(b"a")
    with ms.log("dead").stage():
        queue.fail(queue.claim())
        queue.delete()
    queue = ms.queue("q", dead_letter="dead")
    assert owed(queue) == 0
    clock.advance(2)
    upkeep(ms)
    assert letters(ms) == []


def test_many_letters_are_written_a_few_at_a_time(ms: Millstream, clock: SimulatedClock) -> None:
    queue = ms.queue("q", dead_letter="dead", max_attempts=1)
    queue.put_many([b"%d" % n for n in range(250)])
    with ms.log("dead").stage():
        queue.fail(queue.claim(250))
    clock.advance(2)
    upkeep(ms)
    assert sorted(int(one.value) for one in letters(ms)) == list(range(250))


@pytest.mark.parametrize(
    ("sources", "dead_letter"),
    [
        ("x", "x"),
        (["y", "x"], "x"),
        ("*", "dead"),
        ("or*", "orders"),
        ("orde?s", "orders"),
        ((), "queue:q"),
        ((), "queue-later:q"),
    ],
)
def test_a_queue_does_not_feed_on_its_own_letters(
    ms: Millstream, sources: Any, dead_letter: str
) -> None:
    with pytest.raises(InvalidInput, match="one of its own sources"):
        ms.queue("q", sources=sources, dead_letter=dead_letter)
    queue = ms.queue("q", sources=sources, lease=30)
    with pytest.raises(InvalidInput, match="one of its own sources"):
        queue.alter(dead_letter=dead_letter)
    info = queue.info()
    assert info is not None
    assert info.spec.dead_letter == ""


def test_the_same_is_refused_over_rest() -> None:
    async def ask() -> None:
        async with serving() as rest:
            body = {"sources": ["or*"], "dead_letter": "orders"}
            refused = await rest.put("/queues/q", json=body)
            assert refused.status_code == 422
            assert "one of its own sources" in refused.json()["detail"]

    asyncio.run(ask())


def test_a_source_that_is_added_later_is_not_the_letters(ms: Millstream) -> None:
    queue = ms.queue("q", sources="x", dead_letter="dead")
    with pytest.raises(InvalidInput, match="'dead' of queue 'q' is one of its own sources"):
        queue.alter(sources=("x", "de*"))


@pytest.mark.embedded
def test_a_letter_to_a_queue_that_is_not_there_is_written_once_it_is(
    ms: Millstream, clock: SimulatedClock
) -> None:
    queue = ms.create_queue("q", dead_letter="queue:hospital")
    queue.put(b"x")
    queue.fail(queue.claim(), reason="broken")
    assert owed(queue) == 1
    hospital = ms.create_queue("hospital")
    clock.advance(3600)
    upkeep(ms)
    assert owed(queue) == 0
    assert [letter.value for letter in hospital.claim(10)] == [b"x"]


@pytest.mark.parametrize("misfits", [1, LETTERS_PER_COMMIT])
def test_a_letter_that_does_not_fit_its_schema_holds_no_other_back(
    ms: Millstream, clock: SimulatedClock, misfits: int
) -> None:
    def needs(name: str) -> dict[str, Any]:
        return {"type": "object", "properties": {name: {"type": "integer"}}, "required": [name]}

    dead = ms.log("dead", schema=needs("a"))
    queue = ms.create_queue("q", dead_letter="dead")
    queue.put_many([{"x": 1}] * misfits + [{"b": 1}])
    queue.fail(queue.claim(misfits + 1), reason="broken")
    assert owed(queue) == misfits + 1
    dead.set_schema(needs("b"), force=True)
    for _ in range(2):
        clock.advance(3600)
        upkeep(ms)
    assert owed(queue) == misfits
    assert [letter.json() for letter in letters(ms)] == [{"b": 1}]
