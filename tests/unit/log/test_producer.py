"""Producers: a repeat stores nothing and is answered as the first time."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta

import pytest

from millstream import Limits, Log, Millstream, Producer
from millstream.errors import Fenced, InvalidInput, OutOfSequence
from millstream.testing import SimulatedClock

Reopen = Callable[..., Millstream]


@pytest.fixture
def log(ms: Millstream) -> Log:
    return ms.log("x")


def append(log: Log, sequence: int, *, epoch: int = 0, name: str = "p") -> int:
    return log.append(str(sequence), producer=Producer(name, sequence, epoch))


def test_a_repeat_is_answered_with_the_first_offset_and_stores_nothing(log: Log) -> None:
    log.append(b"other")
    assert [append(log, 0), append(log, 1)] == [1, 2]
    log.append(b"other")

    assert [append(log, 0), append(log, 1), append(log, 1)] == [1, 2, 2]
    assert len(log) == 4


def test_a_batch_is_one_sequence(log: Log) -> None:
    producer = Producer("p", 7)
    assert log.append_many([b"a", b"b"], producer=producer) == range(2)
    assert log.append_many([b"a", b"b"], producer=producer) == range(2)

    assert len(log) == 2
    with pytest.raises(InvalidInput):
        log.append_many([b"a", b"b", b"c"], producer=producer)
    assert append(log, 8) == 2


def test_a_repeat_survives_a_reopen_and_a_fold(reopen: Reopen) -> None:
    append(reopen().log("x"), 3)
    ms = reopen()
    assert append(ms.log("x"), 3) == 0
    append(ms.log("x"), 4)
    ms.fold()
    assert [append(reopen().log("x"), n) for n in (3, 4)] == [0, 1]


def test_the_first_sequence_may_be_any(log: Log) -> None:
    assert append(log, 1_000) == 0
    assert append(log, 1_001) == 1


@pytest.mark.parametrize("sequence", [0, 4, 7, 100])
def test_a_gap_or_an_unknown_past_is_refused(log: Log, sequence: int) -> None:
    append(log, 5)
    with pytest.raises(OutOfSequence) as refused:
        append(log, sequence)

    assert refused.value.expected == 6
    assert len(log) == 1
    assert append(log, 6) == 1


def test_the_last_1024_are_remembered(log: Log) -> None:
    assert Limits().producer_sequences_kept == 1_024
    for sequence in range(1_025):
        append(log, sequence)

    assert append(log, 1) == 1
    assert append(log, 1_024) == 1_024
    with pytest.raises(OutOfSequence):
        append(log, 0)
    assert len(log) == 1_025


def test_a_higher_epoch_fences_the_lower(log: Log) -> None:
    append(log, 5, epoch=1)
    assert append(log, 0, epoch=2) == 1

    with pytest.raises(Fenced) as fenced:
        append(log, 6, epoch=1)
    assert fenced.value.epoch == 2
    with pytest.raises(Fenced):
        append(log, 5, epoch=1)
    assert append(log, 1, epoch=2) == 2
    assert len(log) == 3


def test_producers_and_logs_do_not_know_each_other(ms: Millstream, log: Log) -> None:
    append(log, 5, name="p")

    assert append(log, 0, name="q") == 1
    assert append(ms.log("other"), 0, name="p") == 0


def test_seven_idle_days_are_forgotten(log: Log, clock: SimulatedClock) -> None:
    append(log, 5, epoch=3)
    clock.advance(timedelta(days=7))
    assert append(log, 5, epoch=3) == 0
    clock.advance(timedelta(milliseconds=1))

    assert append(log, 5, epoch=0) == 1
    assert append(log, 6, epoch=0) == 2


def test_an_append_starts_the_seven_days_anew(log: Log, clock: SimulatedClock) -> None:
    for sequence in range(4):
        append(log, sequence)
        clock.advance(timedelta(days=6))

    assert append(log, 0) == 0


def test_a_wall_clock_that_jumps_forgets_nothing(log: Log, clock: SimulatedClock) -> None:
    append(log, 5)
    clock.jump(timedelta(days=365))

    assert append(log, 5) == 0


def test_a_refused_append_is_no_sequence(log: Log) -> None:
    append(log, 0)
    with pytest.raises(OutOfSequence):
        append(log, 2)
    assert append(log, 1) == 1
    with pytest.raises(InvalidInput):
        log.append(object(), producer=Producer("p", 2))
    assert append(log, 2) == 2


def test_a_repeat_with_an_expected_end_is_still_a_repeat(log: Log) -> None:
    producer = Producer("p", 0)
    log.append(b"x", expect_end=0, producer=producer)

    assert log.append(b"x", expect_end=0, producer=producer) == 0
