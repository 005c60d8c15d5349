"""Two transmissions of a producer on their way: what a failure of the first means for the second."""

from __future__ import annotations

import pytest

from millstream.errors import (
    MillstreamError,
    OutcomeUnknown,
    OutOfSequence,
    Overloaded,
    WriteFailed,
)
from millstream.record import Producer
from millstream.streaming.gathered_block import MessageHandle
from millstream.streaming.gathering import Gathering
from millstream.streaming.options import ProducerOptions
from millstream.streaming.transmission import SenderRest, Transmission

RETRY_S = 30.0


class Flying:
    """A producer with two transmissions on their way, each with one message."""

    def __init__(self) -> None:
        self.gathering: Gathering[MessageHandle] = Gathering(
            ProducerOptions(linger=0, retry_for=RETRY_S),
            Producer("p", 0),
            make_handle=MessageHandle,
            wake=lambda: None,
            flight_max=2,
        )
        self.add()
        self.gathering.stored(self.launched(), [0])
        self.first_handle = self.add()
        self.first = self.launched()
        self.second_handle = self.add()
        self.second = self.launched()

    def add(self) -> MessageHandle:
        handle = self.gathering.add(0, b"m", 1)
        assert handle is not None
        return handle

    def launched(self) -> Transmission:
        step = self.gathering.next(0.0)
        assert isinstance(step, Transmission)
        return step

    def rests(self) -> bool:
        return isinstance(self.gathering.next(0.0), SenderRest)


@pytest.fixture
def flying() -> Flying:
    return Flying()


def sequence_of(transmission: Transmission) -> int:
    producer = transmission.portions[0].producer
    assert producer is not None
    return producer.sequence


def error_of(handle: MessageHandle) -> MillstreamError:
    with pytest.raises(MillstreamError) as caught:
        handle.result()
    return caught.value


def test_a_second_transmission_has_the_next_sequence_and_a_third_waits(flying: Flying) -> None:
    assert (sequence_of(flying.first), sequence_of(flying.second)) == (1, 2)
    flying.add()
    assert flying.rests()


def test_the_first_messages_of_a_log_are_not_followed() -> None:
    gathering: Gathering[MessageHandle] = Gathering(
        ProducerOptions(linger=0),
        Producer("p", 0),
        make_handle=MessageHandle,
        wake=lambda: None,
        flight_max=2,
    )
    gathering.add(0, b"m", 1)
    assert isinstance(gathering.next(0.0), Transmission)
    gathering.add(0, b"m", 1)
    assert isinstance(gathering.next(0.0), SenderRest)


def test_answers_count_in_the_order_of_sending(flying: Flying) -> None:
    flying.gathering.stored(flying.second, [2])
    assert not flying.second_handle.done
    flying.gathering.stored(flying.first, [1])
    assert (flying.first_handle.result(), flying.second_handle.result()) == (1, 2)


def test_a_second_that_arrived_first_is_sent_again_under_its_sequence(flying: Flying) -> None:
    flying.gathering.failed(flying.second, OutOfSequence("a gap"), now_s=0.0)
    assert not flying.second_handle.done
    flying.gathering.stored(flying.first, [1])
    again = flying.launched()
    assert sequence_of(again) == 2
    flying.gathering.stored(again, [2])
    assert flying.second_handle.result() == 2


def test_nothing_is_sent_beside_a_repeat(flying: Flying) -> None:
    flying.gathering.failed(flying.first, Overloaded("slow down"), now_s=0.0)
    assert flying.rests(), "the second may still be stored"
    flying.gathering.failed(flying.second, OutOfSequence("a gap"), now_s=0.0)
    assert flying.rests(), "a pause comes before the repeat"
    flying.gathering.rested()
    assert flying.launched() is flying.first
    assert flying.rests()
    flying.gathering.stored(flying.first, [1])
    assert flying.launched() is flying.second


def test_callers_that_wait_do_not_put_a_repeat_off(flying: Flying) -> None:
    flying.gathering.failed(flying.first, Overloaded("slow down"), now_s=0.0)
    flying.gathering.failed(flying.second, OutOfSequence("a gap"), now_s=0.0)
    rest = flying.gathering.next(0.0)
    assert isinstance(rest, SenderRest)
    handle = flying.add()
    assert flying.gathering.watch(handle, lambda: None)  # this wakes the sender
    assert flying.gathering.next(rest.seconds / 2) == SenderRest(rest.seconds / 2)
    assert flying.gathering.next(rest.seconds) is flying.first


def test_a_second_that_was_stored_proves_that_the_first_was(flying: Flying) -> None:
    flying.gathering.failed(flying.first, OutcomeUnknown("lost"), now_s=0.0)
    flying.gathering.stored(flying.second, [2])
    assert not flying.second_handle.done
    flying.gathering.rested()
    flying.gathering.stored(flying.launched(), [1])
    assert (flying.first_handle.result(), flying.second_handle.result()) == (1, 2)


def test_a_second_that_was_stored_keeps_its_offset_if_the_producer_ends(flying: Flying) -> None:
    flying.gathering.failed(flying.first, OutcomeUnknown("lost"), now_s=0.0)
    flying.gathering.stored(flying.second, [2])
    flying.gathering.rested()
    flying.gathering.failed(flying.launched(), Overloaded("away"), now_s=RETRY_S)
    assert isinstance(error_of(flying.first_handle), OutcomeUnknown)
    assert flying.second_handle.result() == 2


def test_two_lost_answers_leave_both_outcomes_unknown(flying: Flying) -> None:
    flying.gathering.failed(flying.first, OutcomeUnknown("lost"), now_s=0.0)
    flying.gathering.failed(flying.second, OutcomeUnknown("lost"), now_s=0.0)
    flying.gathering.rested()
    flying.gathering.failed(flying.launched(), Overloaded("away"), now_s=RETRY_S)
    assert isinstance(error_of(flying.first_handle), OutcomeUnknown)
    assert isinstance(error_of(flying.second_handle), OutcomeUnknown)


def test_a_second_behind_a_failure_was_not_stored(flying: Flying) -> None:
    flying.gathering.failed(flying.second, OutOfSequence("a gap"), now_s=0.0)
    flying.gathering.failed(flying.first, WriteFailed("disk"), now_s=RETRY_S)
    assert isinstance(error_of(flying.first_handle), WriteFailed)
    assert "not stored" in error_of(flying.second_handle).message


def test_a_broken_sender_leaves_the_answer_of_the_other_open(flying: Flying) -> None:
    flying.gathering.fail(WriteFailed("broken off"))
    assert isinstance(error_of(flying.second_handle), OutcomeUnknown)
    flying.gathering.stored(flying.second, [2])  # too late: the outcome was told
    assert isinstance(error_of(flying.second_handle), OutcomeUnknown)
