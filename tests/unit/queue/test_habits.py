"""What users expect of a queue: ids, types, states in words, delayed messages, help."""

from __future__ import annotations

import inspect
import pickle
from datetime import timedelta

import msgspec
import pytest

from millstream import Millstream
from millstream.errors import InvalidInput, NotFound
from millstream.queue.model.setting_help import MEANINGS
from millstream.queue.model.spec import QueueSettings
from millstream.record import moment
from millstream.testing import SimulatedClock

from .conftest import counts, values


class Mail(msgspec.Struct):
    to: str
    copies: int = 0


def test_a_message_has_the_id_that_put_returned(ms: Millstream) -> None:
    queue = ms.create_queue("q", sources="orders")
    ids = [queue.put(b"0"), *queue.put_many([b"1", b"2"]), queue.put(b"3", delay=0)]
    ms.log("orders").append(b"4")
    found = {message.value: message for message in queue.claim(9)}
    assert [found[b"%d" % number].id for number in range(5)] == [*ids, None]
    assert pickle.loads(pickle.dumps(found[b"3"])).id == ids[-1]
    queue.fail(found[b"0"])
    queue.redrive()
    assert [message.id for message in queue.claim(9)] == [ids[0]]


def test_json_is_decoded_as_a_type(ms: Millstream) -> None:
    queue = ms.create_queue("q")
    queue.put({"to": "ada", "copies": 2})
    queue.put({"copies": 2})
    queue.put(b"{")
    good, wrong, broken = queue.claim(3)
    mail: Mail = good.json(Mail)
    assert mail == good.json(type=Mail) == Mail("ada", 2)
    with pytest.raises(
        InvalidInput, match=r"offset 1 of log 'queue:q' .* does not fit Mail: .*`to`"
    ):
        wrong.json(type=Mail)
    with pytest.raises(InvalidInput, match=r"offset 2 of log 'queue:q' .* is not valid JSON"):
        broken.json()


def test_a_missing_queue_has_no_info(ms: Millstream) -> None:
    queue = ms.queue("q")
    assert not queue.exists()
    with pytest.raises(NotFound, match="there is no queue 'q'"):
        queue.info()
    ms.create_queue("q")
    assert queue.exists()
    assert queue.info().name == "q"


def test_a_peek_shows_delayed_messages_with_their_due_times(
    ms: Millstream, clock: SimulatedClock
) -> None:
    queue = ms.create_queue("q", backoff=50)
    now = moment(clock.wall_ms())
    queue.put(b"retry")
    queue.nack(queue.claim())
    queue.put(b"ready")
    queue.put(b"delay", delay=20)
    queue.put_many([b"at", b"at too"], at=now + timedelta(seconds=30))
    due = {message.value: message.until for message in queue.peek(9, state="delayed")}
    seconds = {b"retry": 50, b"delay": 20, b"at": 30, b"at too": 30}
    assert due == {value: now + timedelta(seconds=after) for value, after in seconds.items()}
    assert values(queue.peek(9)) == [b"ready"]
    assert (queue.info().available, queue.info().delayed) == (1, 4)
    clock.advance(25)
    assert set(values(queue.peek(9))) == {b"ready", b"delay"}
    assert len(queue.peek(9, state="delayed")) == 3
    assert len(queue.peek(2, state="delayed")) == 2


def test_a_peek_follows_a_wall_clock_that_was_set(ms: Millstream, clock: SimulatedClock) -> None:
    queue = ms.create_queue("q")
    due = moment(clock.wall_ms()) + timedelta(hours=1)
    queue.put(b"x", at=due)
    clock.jump(-600)
    (message,) = queue.peek(9, state="delayed")
    assert message.until == due
    clock.jump(3600 + 600)
    assert queue.peek(9, state="delayed") == []
    assert values(queue.peek(9)) == [b"x"]


def test_only_delayed_messages_have_no_age(ms: Millstream, clock: SimulatedClock) -> None:
    queue = ms.create_queue("q")
    queue.put(b"x", delay=60)
    queue.put(b"y", at=clock.wall_ms() + 60_000)
    clock.advance(30)
    assert queue.info().oldest_s is None


def test_help_shows_every_setting_with_its_default_and_meaning(ms: Millstream) -> None:
    assert set(MEANINGS) == set(QueueSettings.__annotations__)
    text, signature = str(Millstream.create_queue.__doc__), inspect.signature(ms.create_queue)
    for name, meaning in MEANINGS.items():
        assert f"{name}: {meaning[:40]}" in text
    assert signature.parameters["lease"].default == 30.0
    assert signature.parameters["dedup_while"].default == ""
    assert signature.parameters["max_attempts"].default == 5
    assert inspect.signature(ms.queue("q").alter).parameters["lease"].default is ...


def test_messages_that_were_put_are_available_at_once(ms: Millstream) -> None:
    queue = ms.create_queue("q", sources="orders", filter="region = 'eu'")
    queue.put_many([b"0", b"1"])
    assert counts(queue) == {"available": 2}
    ms.log("orders").append(b"2")
    assert counts(queue) == {"available": 2, "unrouted": 1}, "whether the filter matches is unknown"
    assert values(queue.claim(9)) == [b"0", b"1"]
    assert counts(queue) == {"in_flight": 2}


def test_messages_that_may_be_repeats_are_available_once_they_are_routed(ms: Millstream) -> None:
    queue = ms.create_queue("q", dedup_by="_key")
    queue.put(b"0", key="a")
    queue.put(b"again", key="a")
    assert counts(queue) == {"unrouted": 2}
    assert values(queue.peek(9)) == [b"0"]
    assert counts(queue) == {"available": 1}
