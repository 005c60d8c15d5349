"""The attempts at the messages of a bucket, and the reasons why attempts ended.

A bucket keeps claims and ends as ranges of slots. This module joins the two, message by message.
"""

from __future__ import annotations

from millstream.queue.model.bucket import Bucket
from millstream.queue.model.slots import NOT_THERE, ClaimedSlots, End, Trial


def trials_of(bucket: Bucket, start: int, stop: int) -> list[list[Trial]]:
    """Return the attempts at the message of each slot of a range, oldest first.

    Attempts from before a redrive are included. A slot without a message has an empty list.
    """
    ended_slots: list[list[End]] = [[] for _ in range(start, stop)]
    for end in bucket.ends:
        for slot in range(max(start, end.start), min(stop, end.stop)):
            ended_slots[slot - start].append(end)
    ends_by_slot = [iter(ends) for ends in ended_slots]
    histories: list[list[Trial]] = [list(bucket.past.get(slot, ())) for slot in range(start, stop)]
    for claim in bucket.tries:
        for slot in range(max(start, claim.start), min(stop, claim.stop)):
            histories[slot - start].append(_trial(claim, next(ends_by_slot[slot - start], None)))
    states = bucket.states[start:stop]
    has_message = [at < len(states) and states[at] not in NOT_THERE for at in range(stop - start)]
    return [
        trials if is_there else [] for trials, is_there in zip(histories, has_message, strict=True)
    ]


def reasons_of(bucket: Bucket, start: int, stop: int) -> list[str]:
    """Return the reason for which the last attempt at each slot of a range ended."""
    reasons = [""] * (stop - start)
    for end in bucket.ends:
        first, last = max(start, end.start), min(stop, end.stop)
        if first < last:
            reasons[first - start : last - start] = [end.reason] * (last - first)
    return reasons


def _trial(claim: ClaimedSlots, end: End | None) -> Trial:
    if end is None:
        return Trial(claim.at_ms, claim.consumer)
    return Trial(claim.at_ms, claim.consumer, end.at_ms, end.state, end.reason)
