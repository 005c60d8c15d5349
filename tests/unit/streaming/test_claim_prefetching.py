"""What a consumer yields after a lease was lost, without I/O."""

from __future__ import annotations

from millstream.errors import LeaseLost
from millstream.streaming.claim_prefetching import ClaimPrefetching
from millstream.streaming.prefetching import PrefetchPlan, Refill
from millstream.worker.effects import Idle, Renew
from tests.unit.worker.messages import message

LEASE_S = 40.0


def test_a_prefetched_message_whose_lease_is_lost_is_not_yielded() -> None:
    consumer = ClaimPrefetching(
        PrefetchPlan(prefetch=2, linger_s=1.0, wait_s=5.0), lease_s=LEASE_S, attempts_max=3
    )
    refill = consumer.next_refill(0.0)
    assert isinstance(refill, Refill)
    lost, kept = message(1), message(2)
    consumer.refilled(refill, [lost, kept])

    now_s, refused = 0.0, 0
    while refused < 3:  # both leases at once, then the lost one alone
        step = consumer.next_chore(now_s)
        if isinstance(step, Renew) and lost in step.messages:
            consumer.refused(step.messages, LeaseLost("late"), now_s=now_s)
            refused += 1 if len(step.messages) == 2 else 2
        elif isinstance(step, Renew):
            consumer.renewed(step.messages, since_s=now_s)
        else:
            assert isinstance(step, Idle)
            assert step.until_s is not None
            now_s = step.until_s
            assert now_s <= LEASE_S, "the leases ended, and nobody prolonged them"

    assert consumer.is_disturbed
    assert consumer.lost == 1
    assert consumer.take() is kept
    assert consumer.take() is None
