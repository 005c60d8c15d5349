"""The log of changes of a queue, against the states that the queue tells, through the model of queues.

Promises, after every step of any history: the last record of a message tells its state and its attempt;
no message has a record too many or too few; and a message that the queue has removed is told as removed.
"""

from __future__ import annotations

from typing import Any

import hypothesis
from hypothesis.stateful import invariant

from millstream import MessageChange
from millstream.queue.commands import PeekMessages
from millstream.queue.model.message import messages_of
from tests.property.background import at_rest
from tests.property.test_queue_model import QueueMachine

AFTER = {
    "put": (None,),
    "redriven": (None,),
    "claimed": ("available",),
    "done": ("in_flight",),
    "released": ("in_flight",),
    "expired": ("in_flight",),
    "failed": ("in_flight",),
    "cancelled": ("available", "in_flight"),
    "removed": ("available", "in_flight", "failed"),
}
"""The states in which a message can be before each change."""

STATES = ("available", "delayed", "in_flight", "done", "failed", "cancelled")


class ChangesMachine(QueueMachine):
    """The machine of queues, over a queue with a log of changes."""

    def __init__(self) -> None:
        super().__init__()
        self.read_to = 0
        self.latest: dict[int, MessageChange] = {}
        self.of_former_queue: set[int] = set()

    def make(self, handle: int, exponent: int) -> None:
        super().make(handle, exponent)
        if "changes" in {log.name for log in self.handles[handle].logs()}:
            self.read_on()  # the background may have changed the former queue since the last step
        self.of_former_queue = set(self.latest)
        self.handles[handle].queue("q").alter(changes="changes")

    @invariant()
    def the_log_tells_the_states(self) -> None:
        if not self.handles:
            return
        with at_rest(self.handles):
            self.read_on()
            stored = self.states()
        for message, state_and_attempt in stored.items():
            change = self.latest[message]
            assert (change.state, change.attempt) == state_and_attempt
        for message in self.latest.keys() - stored.keys() - self.of_former_queue:
            # What is done or cancelled is forgotten after a while, which changes no state.
            assert self.latest[message].state in ("removed", "done", "cancelled")

    def read_on(self) -> None:
        for record in self.handles[self.number % 2].log("changes").read(self.read_to):
            change = record.json(type=MessageChange)
            before = self.latest.get(change.message)
            assert (before.state if before else None) in AFTER[change.change]
            self.latest[change.message] = change
            self.read_to = record.offset + 1

    def states(self) -> dict[int, tuple[str, int]]:
        session: Any = self.handles[0].session
        found: dict[int, tuple[str, int]] = {}
        for state in STATES:
            told = "available" if state == "delayed" else state
            lots = session.execute(PeekMessages("q", state, 1_000, after=-1, route=False))
            found |= {one.claim_id: (told, one.attempt) for one in messages_of(lots)}
        return found


TestQueueChanges = ChangesMachine.TestCase
TestQueueChanges.settings = hypothesis.settings(
    stateful_step_count=30,
    max_examples=max(1, hypothesis.settings().max_examples // 5),
    suppress_health_check=[hypothesis.HealthCheck.too_slow, hypothesis.HealthCheck.data_too_large],
)
