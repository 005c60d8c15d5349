"""A later loop over the same consumer, without I/O."""

from __future__ import annotations

from millstream.queue.model.message import Message
from millstream.streaming.prefetching import Prefetching, PrefetchPlan, Refill
from millstream.worker.effects import Over


def drained(timeout_s: float) -> Prefetching[Message]:
    """Return a machine whose first loop has ended after the timeout, because no message came."""
    plan = PrefetchPlan(prefetch=2, linger_s=1.0, wait_s=60.0, timeout_s=timeout_s)
    machine = Prefetching[Message](plan)
    machine.begin_loop()
    refill = machine.next_refill(0.0)
    assert isinstance(refill, Refill)
    assert refill.wait_s == timeout_s
    machine.refilled(refill, [])
    assert isinstance(machine.next_refill(timeout_s), Over)
    return machine


def test_a_loop_after_a_loop_that_found_no_message_asks_again() -> None:
    machine = drained(timeout_s=0.0)
    machine.begin_loop()
    assert isinstance(machine.next_refill(1.0), Refill)


def test_the_timeout_counts_from_the_beginning_of_a_loop() -> None:
    machine = drained(timeout_s=5.0)
    machine.begin_loop()
    refill = machine.next_refill(100.0)
    assert isinstance(refill, Refill)
    assert refill.wait_s == 5.0
