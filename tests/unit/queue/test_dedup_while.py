"""Repeats that are dropped while the first message waits or runs; and puts that report a repeat."""

from __future__ import annotations

from typing import Any

import pytest

from millstream import Millstream, PutResult
from millstream.errors import InvalidInput, NotFound
from millstream.format.encodings import encode_u64
from millstream.queue.rules.repeats import UNKNOWN_CLAIM, Seen, decode_seen, encode_seen
from millstream.testing import SimulatedClock

from .conftest import Reopen, counts, values


def test_a_repeat_is_dropped_while_the_first_waits(ms: Millstream, clock: SimulatedClock) -> None:
    queue = ms.create_queue("q", dedup_by="d", dedup_while="waiting")
    queue.put(b"0", dedup="x")
    clock.advance(86_400)
    queue.put(b"1", dedup="x")
    assert values(queue.claim(9)) == [b"0"]
    queue.put(b"2", dedup="x")
    queue.put(b"3", dedup="x")
    assert values(queue.claim(9)) == [b"2"]
    assert queue.info().duplicates == 2


def test_a_repeat_is_dropped_while_the_first_runs(ms: Millstream, clock: SimulatedClock) -> None:
    queue = ms.create_queue("q", dedup_by="d", dedup_while="running", lease=3600, backoff=5)
    queue.put(b"0", dedup="x")
    (first,) = queue.claim(9)
    queue.put(b"1", dedup="x")
    queue.nack(first)
    queue.put(b"2", dedup="x")
    clock.advance(5)
    (first,) = queue.claim(9)
    queue.put(b"3", dedup="x")
    queue.ack(first)
    assert queue.claim(9) == []
    queue.put(b"4", dedup="x")
    assert values(queue.claim(9)) == [b"4"]
    assert queue.info().duplicates == 3


@pytest.mark.parametrize("end", ["ack", "fail", "cancel"])
def test_an_ended_message_holds_its_id_no_more(ms: Millstream, end: str) -> None:
    queue = ms.create_queue("q", dedup_by="d", dedup_while="running")
    id = queue.put(b"0", dedup="x")
    if end == "cancel":
        queue.cancel(id)
    else:
        getattr(queue, end)(queue.claim())
    assert not queue.put(b"1", dedup="x", detail=True).repeated
    assert values(queue.claim(9)) == [b"1"]


def test_a_delayed_message_holds_its_id(ms: Millstream, clock: SimulatedClock) -> None:
    queue = ms.create_queue("q", dedup_by="d", dedup_while="waiting")
    id = queue.put(b"0", dedup="x", delay=3600)
    assert queue.put(b"1", dedup="x", detail=True) == PutResult(id=id, repeated=True)
    assert queue.put(b"1", dedup="x", delay=1, detail=True) == PutResult(id=id, repeated=True)
    assert counts(queue) == {"delayed": 1}
    clock.advance(3600)
    assert values(queue.claim(9)) == [b"0"]


def test_records_of_sources_are_judged_when_they_are_routed(ms: Millstream) -> None:
    queue = ms.create_queue("q", sources="a", dedup_by="_key", dedup_while="waiting")
    log = ms.log("a")
    log.append(b"0", key="x")
    log.append(b"1", key="x")
    log.append(b"2", key="y")
    assert values(queue.claim(9)) == [b"0", b"2"]
    log.append(b"3", key="x")
    assert values(queue.claim(9)) == [b"3"]


def test_what_holds_its_id_is_not_forgotten(ms: Millstream, clock: SimulatedClock) -> None:
    queue = ms.create_queue("q", dedup_by="d", dedup_while="waiting", dedup_window=1)
    queue.put(b"first", dedup="x", delay=100_000)
    for number in range(20):
        clock.advance(10)
        queue.put(b"%d" % number, dedup=str(number))
        queue.ack(queue.claim(9))
    assert queue.put(b"again", dedup="x", detail=True).repeated


def test_a_hold_survives_folding_and_opening_again(reopen: Reopen) -> None:
    queue = reopen().create_queue("q", dedup_by="d", dedup_while="running")
    id = queue.put(b"0", dedup="x")
    ms = reopen()
    ms.queue("q").claim()
    ms.fold()
    queue = reopen().queue("q")
    assert queue.put(b"1", dedup="x", detail=True) == PutResult(id=id, repeated=True)


@pytest.mark.parametrize("options", [{}, {"dedup_while": "running"}, {"priority_by": "p"}])
def test_a_put_reports_a_repeat(ms: Millstream, options: dict[str, Any]) -> None:
    queue = ms.create_queue("q", dedup_by="d", **options)
    first = queue.put(b"0", dedup="x")
    assert queue.put(b"1", dedup="x", detail=True) == PutResult(id=first, repeated=True)
    other = queue.put(b"2", dedup="y", detail=True)
    assert not other.repeated
    third = queue.put(b"3", detail=True, delay=0)
    assert values(queue.claim(9)) == [b"0", b"2", b"3"]
    assert [queue.message(id or 0).state for id in (first, other.id, third.id)] == ["in_flight"] * 3
    assert queue.info().duplicates == 1


def test_a_put_with_detail_needs_no_dedup(ms: Millstream) -> None:
    queue = ms.create_queue("q")
    assert queue.put(b"0", detail=True) == PutResult(id=0)
    assert queue.put(b"1", key="k", detail=True) == PutResult(id=1)
    assert values(queue.claim(9)) == [b"0", b"1"]
    with pytest.raises(NotFound):
        ms.queue("other").put(b"0", detail=True)
    with pytest.raises(InvalidInput, match="producer"):
        queue.put(b"0", detail=True, producer=("p", 1))  # type: ignore[call-overload]


def test_a_repeat_is_seen_behind_many_unrouted_messages(ms: Millstream) -> None:
    queue = ms.create_queue("q", dedup_by="d")
    ids = queue.put_many([b"x"] * 5_000, headers=[{"d": str(number)} for number in range(5_000)])
    again = queue.put(b"x", dedup="4999", detail=True)
    assert again == PutResult(id=ids[-1], repeated=True)


def test_a_cancelled_message_may_be_put_again_within_the_window(ms: Millstream) -> None:
    queue = ms.create_queue("q", dedup_by="d", dedup_window=3600)
    queue.cancel(queue.put(b"monday", dedup="report", delay=600))
    assert not queue.put(b"tuesday", dedup="report", detail=True).repeated
    assert values(queue.claim(9)) == [b"tuesday"]


def test_any_states_hold_an_id(ms: Millstream, clock: SimulatedClock) -> None:
    queue = ms.create_queue("q", dedup_by="d", dedup_while="in_flight", dedup_window=1)
    for number in range(20):
        assert not queue.put(b"%d" % number, dedup="x", detail=True).repeated
    (first,) = queue.claim(1, lease=1_000)
    clock.advance(60)
    queue.put(b"other", dedup="y")
    assert queue.put(b"again", dedup="x", detail=True) == PutResult(id=first.id, repeated=True)
    queue.ack(first)
    assert not queue.put(b"again", dedup="x", detail=True).repeated

    later = ms.create_queue("later", dedup_by="d", dedup_while="delayed,in_flight")
    later.put(b"at once", dedup="x")
    assert not later.put(b"in a minute", dedup="x", delay=60, detail=True).repeated
    assert later.put(b"again", dedup="x", detail=True).repeated
    clock.advance(61)
    assert not later.put(b"all are due", dedup="x", detail=True).repeated
    later.claim(1)
    assert later.put(b"one runs", dedup="x", detail=True).repeated


def test_a_setting_that_makes_no_sense_is_refused(ms: Millstream) -> None:
    with pytest.raises(InvalidInput, match="dedup_while is 'waiting', 'running'"):
        ms.create_queue("q", dedup_by="d", dedup_while="sleeping")  # type: ignore[arg-type]


def test_rows_of_older_stores_are_read() -> None:
    older = encode_u64(5) + encode_u64(9)
    assert decode_seen(older) == [Seen(5, UNKNOWN_CLAIM), Seen(9, UNKNOWN_CLAIM)]
    assert decode_seen(encode_seen(decode_seen(older))) == decode_seen(older)
    assert decode_seen(None) == []
