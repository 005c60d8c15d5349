"""A producer's decisions against a store in plain Python, through every way in which a sending can end.

The machine hands in messages for several logs, lets the senders take steps, and lets each sending end:
stored, stored with a lost answer, not stored with an unknown outcome, failed for a while, refused
because of a message, refused for all, or failed for good. Two sendings may be on their way, and end
in any order. Promises:

- A message whose handle reports an offset is stored at that offset, once, in the order of the calls.
- A message whose handle reports a refusal is not stored, and fails alone.
- After a failure no later message is stored, and only the messages of the failed sending may have an
  unknown outcome.
- Every handle is settled once the producer has ended, and the bounds hold at any time.
"""

from __future__ import annotations

import random
from typing import Any

import hypothesis
import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from millstream.errors import (
    Closed,
    Denied,
    InvalidInput,
    MillstreamError,
    OutcomeUnknown,
    OutOfSequence,
    Overloaded,
    Poisoned,
    WriteFailed,
)
from millstream.format.packing import Single
from millstream.log.model.producer import Produced, ProducerState
from millstream.record import Producer
from millstream.streaming.gathered_block import BlockPortion, GatheredMessage, MessageHandle
from millstream.streaming.gathering import Gathering
from millstream.streaming.options import ProducerOptions
from millstream.streaming.transmission import IDLE_S, SenderRest, Transmission
from tests.property.examples import examples

LANES = st.integers(0, 2)
PICKS = st.integers(0, 1)
RETRY_S = 30.0
BAD = b"bad"


def values_of(portion: BlockPortion) -> list[bytes]:
    """Return the values of a portion; all its messages must have a timestamp, or none."""
    assert len({isinstance(message, bytes) for message in portion.messages}) == 1
    return [
        message if isinstance(message, bytes) else message.record.value or b""
        for message in portion.messages
    ]


class Store:
    """Logs that remember the appends of a producer, as real logs do."""

    def __init__(self) -> None:
        self.logs: dict[int, list[bytes]] = {}
        self._producers: dict[int, ProducerState] = {}

    def execute(self, portions: list[BlockPortion]) -> list[int]:
        """Store all portions, or none; return the offset of the first message of each portion."""
        for portion in portions:
            if any(value.startswith(BAD) for value in values_of(portion)):
                raise InvalidInput("a bad message")
        return [self._append(portion) for portion in portions]

    def _append(self, portion: BlockPortion) -> int:
        log = self.logs.setdefault(portion.block.lane, [])
        state = self._producers.setdefault(portion.block.lane, ProducerState())
        assert portion.producer is not None
        repeated = state.repeated(portion.producer, now_ms=0)
        if repeated is not None:
            assert repeated[1] == portion.count, "a repeat has other messages"
            return repeated[0]
        first = len(log)
        log.extend(values_of(portion))
        state.apply(Produced(0, portion.producer.sequence, first, portion.count, 0, 1_024, 10**12))
        return first


class ProducerModel(RuleBasedStateMachine):
    """A producer, its sender, and a store."""

    @initialize(
        in_flight=st.integers(1, 12),
        linger=st.sampled_from((0.0, 0.002)),
        singles_max=st.integers(0, 3),
        flight_max=st.sampled_from((2, 2, 1)),
        lanes=st.integers(1, 3),
    )
    def begin(
        self, in_flight: int, linger: float, singles_max: int, flight_max: int, lanes: int
    ) -> None:
        self.in_flight, self.lanes = in_flight, lanes
        self.gathering: Gathering[MessageHandle] = Gathering(
            ProducerOptions(in_flight=in_flight, linger=linger, retry_for=RETRY_S),
            Producer("p", 0),
            make_handle=MessageHandle,
            wake=self.wake,
            singles_max=singles_max,
            flight_max=flight_max,
        )
        self.flight_max = flight_max
        self.store = Store()
        self.handles: list[tuple[int, bytes, MessageHandle]] = []
        self.unknown: set[bytes] = set()
        self.now_s = 0.0
        self.sendings: list[Transmission] = []
        self.is_woken = self.is_over = self.has_failed = False
        self.rest: SenderRest | None = None
        self.called: list[MessageHandle] = []
        self.watched: list[MessageHandle] = []

    def wake(self) -> None:
        self.is_woken = True

    # Callers.

    @rule(lane=LANES, is_bad=st.sampled_from((False,) * 6 + (True,)), has_timestamp=st.booleans())
    def hand_in(self, lane: int, is_bad: bool, has_timestamp: bool) -> None:
        lane %= self.lanes
        value = b"%s%d" % (BAD if is_bad else b"m", len(self.handles))
        message = GatheredMessage(Single(value, None, b"", 5)) if has_timestamp else value
        try:
            handle = self.gathering.add(lane, message, len(value))
        except MillstreamError:
            assert self.is_over or self.has_failed or self.is_closed
        else:
            if handle is None:
                assert self.open_count >= self.in_flight
            else:
                self.handles.append((lane, value, handle))

    @property
    def open_count(self) -> int:
        return sum(not handle.done for _, _, handle in self.handles)

    is_closed = False

    @precondition(lambda self: self.handles)
    @rule(pick=st.integers(0, 1_000))
    def wait_for(self, pick: int) -> None:
        handle = self.handles[pick % len(self.handles)][2]
        watches = self.gathering.watch(handle, lambda: self.called.append(handle))
        assert watches == (not handle.done)
        self.watched += [handle] * watches

    @rule()
    def close(self) -> None:
        self.gathering.close()
        self.is_closed = True

    # The sender.

    @precondition(lambda self: len(self.sendings) < self.flight_max and not self.is_over)
    @rule()
    def step(self) -> None:
        if self.rest is not None and not self.is_woken:
            if self.rest.seconds == IDLE_S:
                assert self.sendings or self.open_count == 0, (
                    "messages wait, and the sender was not woken"
                )
                return
            self.now_s += self.rest.seconds
            self.gathering.rested()
        self.is_woken, self.rest = False, None
        step = self.gathering.next(self.now_s)
        if step is None:
            assert not self.sendings or self.has_failed
            self.is_over = True
        elif isinstance(step, SenderRest):
            self.rest = step
        else:
            self.sendings.append(step)

    def _take(self, pick: int) -> Transmission:
        """Return one of the sendings: their answers come in any order."""
        return self.sendings.pop(pick % len(self.sendings))

    def _failed(self, sending: Transmission, error: MillstreamError) -> None:
        self.gathering.failed(sending, error, now_s=self.now_s)

    @precondition(lambda self: self.sendings)
    @rule(pick=PICKS)
    def store_it(self, pick: int) -> None:
        sending = self._take(pick)
        try:
            firsts = self.store.execute(sending.portions)
        except OutOfSequence as error:
            assert sending.follows, "only a sending behind another leaves a gap"
            self._failed(sending, error)
        except InvalidInput as error:
            self.has_failed = self.has_failed or sending.is_unknown
            self._failed(sending, error)
        else:
            self.gathering.stored(sending, firsts)

    @precondition(lambda self: self.sendings)
    @rule(is_stored=st.booleans(), pick=PICKS)
    def lose_the_answer(self, is_stored: bool, pick: int) -> None:
        sending = self._take(pick)
        if is_stored:
            try:
                self.store.execute(sending.portions)
            except (InvalidInput, OutOfSequence):
                pass
        self._failed(sending, OutcomeUnknown("the connection was lost"))

    @precondition(lambda self: self.sendings)
    @rule(error=st.sampled_from((Overloaded("slow down"), WriteFailed("for now"))), pick=PICKS)
    def fail_for_now(self, error: MillstreamError, pick: int) -> None:
        self._failed(self._take(pick), error)

    @precondition(lambda self: self.sendings)
    @rule(error=st.sampled_from((Closed("closed"), Poisoned("ended"))), pick=PICKS)
    def fail_for_good(self, error: MillstreamError, pick: int) -> None:
        self.has_failed = True
        self._failed(self._take(pick), error)

    @precondition(lambda self: self.sendings)
    @rule(pick=PICKS)
    def run_out_of_patience(self, pick: int) -> None:
        self.now_s += RETRY_S
        self.has_failed = True
        self._failed(self._take(pick), OutcomeUnknown("the server stays away"))

    @precondition(lambda self: self.sendings)
    @rule(pick=PICKS)
    def deny(self, pick: int) -> None:
        sending = self._take(pick)
        self.has_failed = self.has_failed or sending.is_unknown
        self._failed(sending, Denied("not allowed"))

    @precondition(lambda self: self.sendings)
    @rule()
    def break_a_sender(self) -> None:
        """A sender ends by an interrupt; the other sender hears of it later."""
        self.has_failed = True
        self.sendings.pop()
        self.gathering.fail(OutcomeUnknown("broken off"))

    # Promises.

    @invariant()
    def promises(self) -> None:
        expected: dict[int, int] = {}
        for lane, message, handle in self.handles:
            log = self.store.logs.get(lane, [])
            if not handle.done:
                continue
            try:
                offset = handle.result()
            except OutcomeUnknown:
                assert self.has_failed
                assert log.count(message) <= 1
            except MillstreamError:
                assert message not in log
            else:
                assert log[offset] == message
                assert log.count(message) == 1
                assert offset >= expected.get(lane, 0), "messages are stored in another order"
                expected[lane] = offset + 1
        assert self.open_count <= self.in_flight

    def teardown(self) -> None:
        if not hasattr(self, "gathering"):
            return
        self.gathering.close()
        for _ in range(10_000):
            if self.is_over:
                break
            if self.sendings:
                self.store_it(0)
            else:
                self.step()
        assert self.is_over
        assert self.open_count == 0
        self.promises()
        assert {*map(id, self.called)} == {*map(id, self.watched)}
        for lane, log in self.store.logs.items():
            mine = [message for number, message, _ in self.handles if number == lane]
            assert [message for message in mine if message in log] == log


ProducerModel.TestCase.settings = hypothesis.settings(
    max_examples=examples(100), stateful_step_count=40
)
TestProducerModel = ProducerModel.TestCase


@pytest.mark.parametrize("seed", range(40))
def test_two_sendings_on_their_way_keep_the_promises(seed: int) -> None:
    """Long runs in which endings for good are rare; the machine above prefers short runs."""
    source = random.Random(seed)
    model = ProducerModel()
    model.begin(
        in_flight=source.choice((3, 8, 30)),
        linger=0.0,
        singles_max=source.choice((0, 2)),
        flight_max=2,
        lanes=source.choice((1, 1, 2, 3)),
    )
    followers = 0
    for _ in range(400):
        if model.is_over:
            break
        choice = source.random()
        pick = source.randrange(2)
        if choice < 0.4:
            is_bad = source.random() < 0.05
            model.hand_in(source.randrange(3), is_bad=is_bad, has_timestamp=source.random() < 0.1)
        elif choice < 0.7 and len(model.sendings) < 2:
            model.step()
            followers += sum(sending.follows for sending in model.sendings[1:])
        elif not model.sendings:
            continue
        elif choice < 0.93:
            model.store_it(pick)
        elif choice < 0.96:
            model.lose_the_answer(is_stored=source.random() < 0.5, pick=pick)
        elif choice < 0.997:
            model.fail_for_now(source.choice((Overloaded("slow down"), WriteFailed("now"))), pick)
        else:
            ending = source.choice(("good", "patience", "deny", "break"))
            if ending == "good":
                model.fail_for_good(Closed("closed"), pick)
            elif ending == "patience":
                model.run_out_of_patience(pick)
            elif ending == "deny":
                model.deny(pick)
            else:
                model.break_a_sender()
        model.promises()
    model.teardown()
    assert followers or model.has_failed


def test_a_large_block_is_split_until_the_bad_message_is_alone() -> None:
    calls: list[Any] = []
    gathering: Gathering[MessageHandle] = Gathering(
        ProducerOptions(),
        Producer("p", 0),
        make_handle=MessageHandle,
        wake=lambda: None,
    )
    store = Store()
    messages = [b"m%d" % number for number in range(1_000)]
    messages[700] = BAD
    handles = [gathering.add(0, message, 1) for message in messages]
    gathering.close()
    while (step := gathering.next(0.0)) is not None:
        assert isinstance(step, Transmission)
        calls.append(step)
        try:
            gathering.stored(step, store.execute(step.portions))
        except InvalidInput as error:
            gathering.failed(step, error, now_s=0.0)
    assert store.logs[0] == [message for message in messages if message != BAD]
    assert len(calls) <= 2 * 10 + 1
    assert all(handle is not None and handle.done for handle in handles)
    assert isinstance(gathering.first_failure(), InvalidInput)
    assert gathering.first_failure() is None
