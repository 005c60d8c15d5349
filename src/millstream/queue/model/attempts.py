"""The attempts at the messages of a bucket, and why they ended.

A bucket keeps claims and ends as ranges of slots; here they are put together, message by message.
"""

from __future__ import annotations

from millstream.queue.model.bucket import Bucket
from millstream.queue.model.slots import NOT_THERE, ClaimedSlots, End, Trial


def trials_of(bucket: Bucket, start: int, stop: int) -> list[list[Trial]]:
    """The attempts at the message of each slot of a range, those before it was driven again too.

    The first one is the first; there are none where the message is gone.
    """
    ended: list[list[End]] = [[] for _ in range(start, stop)]
    for end in bucket.ends:
        for slot in range(max(start, end.start), min(stop, end.stop)):
            ended[slot - start].append(end)
    rests = [iter(ends) for ends in ended]
    found: list[list[Trial]] = [list(bucket.past.get(slot, ())) for slot in range(start, stop)]
    for one in bucket.tries:
        for slot in range(max(start, one.start), min(stop, one.stop)):
            found[slot - start].append(_trial(one, next(rests[slot - start], None)))
    states = bucket.states[start:stop]
    there = [at < len(states) and states[at] not in NOT_THERE for at in range(stop - start)]
    return [trials if is_there else [] for trials, is_there in zip(found, there, strict=True)]


def reasons_of(bucket: Bucket, start: int, stop: int) -> list[str]:
    """Of each slot of a range, why its last attempt ended so."""
    found = [""] * (stop - start)
    for end in bucket.ends:
        first, last = max(start, end.start), min(stop, end.stop)
        if first < last:
            found[first - start : last - start] = [end.reason] * (last - first)
    return found


def _trial(claim: ClaimedSlots, end: End | None) -> Trial:
    if end is None:
        return Trial(claim.at_ms, claim.consumer)
    return Trial(claim.at_ms, claim.consumer, end.at_ms, end.state, end.reason)
