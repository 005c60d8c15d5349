"""Messages: values that know their lot, and stand alone when they must."""

from __future__ import annotations

import copy
import pickle

import pytest

from millstream import Message, Millstream
from millstream.errors import InvalidInput
from millstream.header import NO_HEADERS
from millstream.queue.model.message import Label, Lot, messages_of
from millstream.queue.runs import runs_of


@pytest.fixture
def claimed(ms: Millstream) -> list[Message]:
    queue = ms.queue("q", max_attempts=3)
    queue.put_many(
        [b"a", b"b", b"c"], keys=["k", None, "l"], headers=[{"n": 1}, None, {"n": 3, "t": "x"}]
    )
    return queue.claim(3, consumer="me")


def test_each_has_what_its_record_has(claimed: list[Message]) -> None:
    assert [message.value for message in claimed] == [b"a", b"b", b"c"]
    assert [message.key for message in claimed] == [b"k", None, b"l"]
    assert [dict(message.headers) for message in claimed] == [{"n": 1}, {}, {"n": 3, "t": "x"}]
    assert [message.offset for message in claimed] == [0, 1, 2]
    first = claimed[0]
    assert [message.claim_id - first.claim_id for message in claimed] == [0, 1, 2]
    assert {(message.log, message.queue, message.attempt) for message in claimed} == {
        ("queue:q", "q", 1)
    }


def test_timestamps_are_one_for_all_or_one_for_each(ms: Millstream) -> None:
    queue = ms.queue("q", sources="a")
    ms.log("a").append_many([b"x", b"y"], timestamps=[5, 6])
    ms.log("a").append_many([b"z", b"z"])
    times = [message.timestamp for message in queue.claim(4)]
    assert times[:2] == [5, 6]
    assert times[2] == times[3] > 6


def test_a_message_is_equal_to_itself_seen_again(ms: Millstream, claimed: list[Message]) -> None:
    again = ms.queue("q").peek(3, state="in_flight")
    assert again == claimed
    assert set(again) == set(claimed)
    assert claimed[0] != claimed[1]
    assert claimed[0] != "a"


def test_it_shows_what_it_is(claimed: list[Message]) -> None:
    shown = repr(claimed[2])
    assert shown.startswith(f"Message(queue='q', claim_id={claimed[2].claim_id}, attempt=1")
    assert "value=b'c'" in shown
    assert "headers={'n': 3, 't': 'x'}" in shown


def test_one_that_is_sent_elsewhere_takes_no_others_along(claimed: list[Message]) -> None:
    for message in claimed:
        data = pickle.dumps(message)
        other = pickle.loads(data)
        assert other == message
        assert len(other.label.headers) <= 1
    assert runs_of([pickle.loads(pickle.dumps(message)) for message in claimed], "q") == [
        (claimed[0].claim_id, 3, 1)
    ]


def test_headers_stay_packed_until_somebody_looks(claimed: list[Message]) -> None:
    label = claimed[0].label
    assert "headers" not in label.__dict__
    assert claimed[0].headers is claimed[0].headers
    assert "headers" in label.__dict__


def test_without_headers_and_keys_there_are_none(ms: Millstream) -> None:
    queue = ms.queue("q", max_attempts=3)
    queue.put(b"x")
    (message,) = queue.claim()
    assert (message.key, message.headers) == (None, NO_HEADERS)
    assert pickle.loads(pickle.dumps(message)) == copy.deepcopy(message) == message
    assert "headers={}" in repr(message)


def lot(first: int, values: list[bytes], *, attempt: int = 1, queue: str = "q") -> Lot:
    return Lot(Label(queue, "log", first, first, attempt, 0, None, b""), values)


def test_claims_are_the_fewest_runs() -> None:
    near, next_to, other = messages_of([lot(0, [b""] * 3), lot(3, [b""]), lot(9, [b""])])[2:]
    assert runs_of([near, next_to, other], "q") == [(2, 2, 1), (9, 1, 1)]
    five = messages_of([lot(0, [b""] * 5)])
    assert runs_of(five, "q") == [(0, 5, 1)]
    assert runs_of(five[1:3], "q") == [(1, 2, 1)]
    assert runs_of([five[0], five[2]], "q") == [(0, 1, 1), (2, 1, 1)]
    assert runs_of([five[1], five[1]], "q") == [(1, 1, 1), (1, 1, 1)]
    assert runs_of(five[3], "q") == [(3, 1, 1)]
    assert runs_of([], "q") == []
    mixed = messages_of([lot(0, [b""]), lot(1, [b""], attempt=2)])
    assert runs_of(mixed, "q") == [(0, 1, 1), (1, 1, 2)]


def test_messages_of_another_queue_are_refused() -> None:
    strangers = messages_of([lot(0, [b""] * 2, queue="other")])
    for chosen in (strangers, strangers[:1], strangers[0]):
        with pytest.raises(InvalidInput, match="'other'"):
            runs_of(chosen, "q")
