"""The state of a queue: what a change leaves of the messages that wait."""

from __future__ import annotations

import pytest

from millstream.queue.model.queue_changes import SourceReplaced
from millstream.queue.model.slots import Slots
from millstream.queue.model.state import QueueState

WAITING = [(3, 7), (12, 14), (20, 21)]


@pytest.mark.parametrize(
    ("gone", "left"),
    [
        ([(6, 7)], [(3, 6), (12, 14), (20, 21)]),
        ([(3, 4)], [(4, 7), (12, 14), (20, 21)]),
        ([(4, 5)], [(3, 4), (5, 7), (12, 14), (20, 21)]),
        ([(12, 14)], [(3, 7), (20, 21)]),
        ([(4, 5), (6, 7), (13, 14)], [(3, 4), (5, 6), (12, 13), (20, 21)]),
        ([(5, 7), (20, 21)], [(3, 5), (12, 14)]),
        (WAITING, None),
    ],
)
def test_messages_that_are_withdrawn_wait_no_more_and_all_others_do(
    gone: list[Slots], left: list[Slots] | None
) -> None:
    queue = QueueState(lanes={0: list(WAITING)}, positions={1: 9}, skipped=[(1, 2, 3), (1, 6, 7)])

    queue.apply(
        SourceReplaced(
            log_id=1,
            at=4,
            end=-1,
            new_id=2,
            position=4,
            goes_back=True,
            lanes=[(0, *slots) for slots in gone],
            withdrawn=len(gone),
        )
    )

    assert queue.lanes.get(0) == left
    assert (queue.positions, queue.skipped) == ({2: 4}, [(2, 2, 3), (1, 6, 7)])
    assert (queue.set_back, queue.withdrawn) == (1, len(gone))
