"""Random histories of a consumer without I/O, beside a queue that is a dictionary.

Refills and endings fail before or after they took effect, leases are lost, loops are slow, and the
consumer ends at any moment. Then no message is held, acknowledged messages are done, and messages that
the loop did not get were given back as such.
"""

from __future__ import annotations

from collections.abc import Callable

from hypothesis import given
from hypothesis import strategies as st

from millstream.errors import LeaseLost, MillstreamError, OutcomeUnknown
from millstream.queue.model.message import Message
from millstream.streaming.claim_prefetching import ClaimPrefetching
from millstream.streaming.prefetching import PrefetchPlan, Refill, Settle
from millstream.worker.effects import Idle, Over, Renew
from tests.unit.worker.messages import message

LINGER_S = 1.0
LEASE_S = 40.0
MESSAGES = 40
FAILURES = ("", "before", "after")


class ModelQueue:
    """A queue of numbered messages: waiting, in flight with an attempt, or done."""

    def __init__(self) -> None:
        self.waiting = list(range(MESSAGES))
        self.in_flight: dict[int, int] = {}
        self.attempts = dict.fromkeys(range(MESSAGES), 0)
        self.done: set[int] = set()
        self.stolen: set[int] = set()
        """Messages whose lease was lost at least once."""

    def claim(self, count: int) -> list[Message]:
        numbers, self.waiting = self.waiting[:count], self.waiting[count:]
        for number in numbers:
            self.attempts[number] += 1
            self.in_flight[number] = self.attempts[number]
        return [message(number, attempt=self.attempts[number]) for number in numbers]

    def holds(self, claimed: Message) -> bool:
        return self.in_flight.get(claimed.claim_id) == claimed.attempt

    def end(self, claimed: Message, how: str) -> bool:
        """End an attempt; False if its lease was lost. A repeated acknowledgement is a success."""
        if not self.holds(claimed):
            return claimed.claim_id in self.done and how == "ack"
        del self.in_flight[claimed.claim_id]
        if how == "ack":
            self.done.add(claimed.claim_id)
        else:
            self.waiting = sorted([*self.waiting, claimed.claim_id])
        return True

    def steal(self) -> None:
        """Let the oldest lease expire."""
        if self.in_flight:
            number = min(self.in_flight)
            del self.in_flight[number]
            self.stolen.add(number)
            self.waiting = sorted([*self.waiting, number])


class Run:
    """A consumer, its loop and its queue."""

    def __init__(self, prefetch: int, *, acks_apart: bool) -> None:
        plan = PrefetchPlan(prefetch=prefetch, linger_s=LINGER_S, wait_s=5.0, acks_apart=acks_apart)
        self.machine = ClaimPrefetching(plan, lease_s=LEASE_S, attempts_max=1_000)
        self.queue = ModelQueue()
        self.prefetch = prefetch
        self.held_max = MESSAGES if acks_apart else prefetch
        """The most messages whose ending is not stored."""
        self.now_s = 0.0
        self.yielded: list[Message] = []
        self.acked: list[Message] = []
        self.got: set[tuple[int, int]] = set()
        """Every claim that the loop got."""
        self.waiting_refill: Refill[Message] | None = None
        self.unanswered: set[int] = set()
        """Messages whose claim succeeded without an answer: they stay claimed until their lease ends."""

    # The loop.

    def take(self, _: int) -> None:
        found = self.machine.take()
        if found is None:
            return
        claim = (found.claim_id, found.attempt)
        assert claim not in self.got
        self.got.add(claim)
        self.yielded.append(found)

    def ack(self, choice: int) -> None:
        if self.yielded:
            message = self.yielded.pop(choice % len(self.yielded))
            self.machine.ack(message, b"result" if choice == 5 else None)
            self.acked.append(message)

    def nack(self, choice: int) -> None:
        if self.yielded:
            message = self.yielded.pop(choice % len(self.yielded))
            self.machine.finish(message, ("nack", "again", float(choice % 2), None))

    def refill(self, choice: int) -> None:
        if self.waiting_refill is not None:
            return
        step = self.machine.next_refill(self.now_s)
        assert not isinstance(step, Over)
        if isinstance(step, Refill) and step.wait_s is not None:
            assert not step.acks, "an acknowledgement would wait for a message"
            self.waiting_refill = step
        elif isinstance(step, Refill | Settle):
            self.carry_out(step, FAILURES[choice % 3])

    def end_wait(self, choice: int) -> None:
        if self.waiting_refill is not None:
            step, self.waiting_refill = self.waiting_refill, None
            self.carry_out(step, FAILURES[choice % 3])

    # The keeper and the world.

    def chore(self, choice: int) -> None:
        step = self.machine.next_chore(self.now_s)
        if isinstance(step, Renew):
            lost = [claimed for claimed in step.messages if not self.queue.holds(claimed)]
            if lost:
                self.machine.refused(step.messages, LeaseLost("late"), now_s=self.now_s)
            else:
                self.machine.renewed(step.messages, since_s=self.now_s)
        elif isinstance(step, Refill | Settle):
            self.carry_out(step, FAILURES[choice % 3])
        else:
            assert isinstance(step, Idle)

    def pass_time(self, choice: int) -> None:
        self.now_s += choice * LINGER_S / 2

    def steal(self, _: int) -> None:
        self.queue.steal()

    def carry_out(self, step: Refill[Message] | Settle[Message], failure: str) -> None:
        unknown = OutcomeUnknown("cut")
        if failure == "before":
            self.machine.failed(step, unknown, now_s=self.now_s)
        elif isinstance(step, Refill):
            self.claim(step, failure, unknown)
        else:
            lost = [claimed for claimed in step.messages if not self.queue.end(claimed, step.how)]
            if step.how == "return":
                assert not {(m.claim_id, m.attempt) for m in step.messages} & self.got
            if failure:
                self.machine.failed(step, unknown, now_s=self.now_s)
            else:
                self.machine.settled(len(lost))

    def claim(self, step: Refill[Message], failure: str, unknown: MillstreamError) -> None:
        assert 0 < step.n <= self.prefetch
        is_late = any(
            not self.queue.holds(claimed) and claimed.claim_id not in self.queue.done
            for claimed in step.acks
        )
        if is_late:
            self.machine.failed(step, LeaseLost("late"), now_s=self.now_s)
            return
        for claimed in step.acks:
            self.queue.end(claimed, "ack")
        found = self.queue.claim(step.n)
        if failure:
            self.unanswered |= {claimed.claim_id for claimed in found}
            self.machine.failed(step, unknown, now_s=self.now_s)
            return
        surplus = self.machine.refilled(step, found)
        held = len(self.queue.in_flight.keys() - self.unanswered)
        assert surplus is not None or held <= self.held_max
        if surplus is not None:
            self.carry_out(surplus, "")

    def finish(self, *, is_error: bool) -> None:
        """Close the consumer, as its shell does."""
        self.machine.close()
        assert isinstance(self.machine.next_chore(self.now_s), Over)
        self.end_wait(0)
        while steps := self.machine.waiting_endings():
            for step in steps:
                self.carry_out(step, "")
        for step in self.machine.endings(ValueError("broken") if is_error else None):
            self.carry_out(step, "")


ACTIONS: list[Callable[[Run, int], None]] = [
    Run.take,
    Run.take,
    Run.take,
    Run.ack,
    Run.ack,
    Run.nack,
    Run.refill,
    Run.refill,
    Run.end_wait,
    Run.chore,
    Run.chore,
    Run.pass_time,
    Run.steal,
]


@given(
    history=st.lists(st.tuples(st.sampled_from(ACTIONS), st.integers(0, 9)), max_size=150),
    prefetch=st.integers(1, 8),
    is_error=st.booleans(),
    acks_apart=st.booleans(),
)
def test_a_consumer_holds_nothing_after_its_end_and_loses_no_ending(
    history: list[tuple[Callable[[Run, int], None], int]],
    prefetch: int,
    is_error: bool,
    acks_apart: bool,
) -> None:
    run = Run(prefetch, acks_apart=acks_apart)
    for action, choice in history:
        action(run, choice)
    run.finish(is_error=is_error)
    queue = run.queue
    assert queue.in_flight.keys() <= run.unanswered
    acked = {claimed.claim_id for claimed in run.acked}
    assert acked - queue.stolen <= queue.done
    assert queue.done <= acked
    counts = len(queue.done) + len(queue.waiting) + len(queue.in_flight)
    assert counts == MESSAGES
    assert run.machine.lost == 0 or queue.stolen
    assert run.machine.error is None


@given(prefetch=st.integers(1, 8), turns=st.integers(0, 60), acks_apart=st.booleans())
def test_a_loop_gets_every_message_in_order_without_the_keeper(
    prefetch: int, turns: int, acks_apart: bool
) -> None:
    run = Run(prefetch, acks_apart=acks_apart)
    expected = iter(range(MESSAGES))
    for _ in range(turns):
        found = run.machine.take()
        if found is None:
            run.refill(0)
            run.end_wait(0)
        else:
            assert found.claim_id == next(expected)
            run.machine.ack(found)
    run.finish(is_error=False)
    assert not run.queue.in_flight
