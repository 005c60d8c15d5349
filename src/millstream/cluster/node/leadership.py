"""Leadership: which node leads, and when to campaign. Pure: entries, reports and time come in.

Safety rests on the shared log alone. The latest epoch entry names the leader, and an append
succeeds only behind everything that its writer has read. The timers here merely decide when a node
tries: a node that tries too early or too late, or has a wrong clock, does no harm.
"""

from __future__ import annotations

import random
from typing import Literal

from millstream.cluster.entry import EpochBody
from millstream.errors import NotLeader

Action = Literal["campaign", "beat"]

CLOSED = (
    "its shared log was closed, so nothing is written; `millstream cluster move` begins another one "
    "behind this store"
)
"""Why a node with a closed log has stopped."""

RETRY_S = (0.1, 0.3)
"""How long a campaign is postponed that did not reach the shared log: its servers elect their own
leader meanwhile, and a campaign just afterwards costs the cluster no extra time."""


class Leadership:
    """A node's view of the leader, and its timers."""

    def __init__(
        self,
        name: str,
        *,
        beat_s: float,
        silence_s: float,
        jitter_s: float,
        chance: random.Random,
    ) -> None:
        self.name = name
        self.epoch = 0
        """The newest epoch that this node has read."""
        self.leader: str | None = None
        """The node that leads; None if it is unknown, or has stepped down."""
        self.address: str | None = None
        self.leads = False
        """Whether this node leads, as far as it knows."""
        self.yields = False
        """Whether this node campaigns only if no other node does."""
        self._beat_s, self._silence_s, self._jitter_s = beat_s, silence_s, jitter_s
        self._chance = chance
        self._beat_due = 0.0
        self._campaign_due = 0.0

    def start(self, now: float, *, epoch: int, leader: str, address: str) -> None:
        """Begin as a follower, from the state of the store."""
        self.epoch, self.leads = epoch, False
        self.leader, self.address = leader or None, address or None
        self.wait(now, quick=not epoch)

    def wait(self, now: float, *, quick: bool = False) -> None:
        """Postpone the campaign by a time of silence; if no node has led yet, almost not at all."""
        self._campaign_due = now + self._chance.uniform(0, self._jitter_s)
        if not quick:
            self._campaign_due += self._patience_s

    def retry(self, now: float) -> None:
        """Campaign again soon, because the shared log was unreachable for every node."""
        self._campaign_due = now + self._chance.uniform(*RETRY_S)

    def lost(self, now: float) -> None:
        """Campaign soon: the leader itself reports that it has stepped down."""
        self.leader = self.address = None
        self.wait(now, quick=True)

    def heard(self, now: float) -> None:
        """Postpone the campaign: the leader sent an entry or a report."""
        if not self.leads and self._campaign_due < now + self._patience_s:
            self.wait(now)

    @property
    def _patience_s(self) -> float:
        """Return the shortest silence before a campaign."""
        return self._silence_s + (self._jitter_s if self.yields else 0.0)

    def began(self, now: float, epoch: int, body: EpochBody, *, is_own: bool) -> None:
        """Begin an epoch; `is_own` for an entry of this process."""
        self.epoch, self.leads = epoch, is_own
        self.leader, self.address = body.node, body.address
        self.sent(now)
        if not is_own:
            self.wait(now)

    def sent(self, now: float) -> None:
        """Postpone the heartbeat: an append of this node succeeded."""
        self._beat_due = now + self._beat_s

    def step_down(self, now: float, *, successor: EpochBody | None = None) -> None:
        """Stop leading: another node has taken over, or an append's outcome is unknown."""
        self.leads = False
        self.leader = None if successor is None else successor.node
        self.address = None if successor is None else successor.address
        self.wait(now)

    def due(self, now: float) -> Action | None:
        """Return the action that is due now."""
        if self.leads:
            return "beat" if now >= self._beat_due else None
        return "campaign" if now >= self._campaign_due else None

    def next_s(self, now: float) -> float:
        """Return the seconds until the next action is due."""
        return max(0.0, (self._beat_due if self.leads else self._campaign_due) - now)

    def not_leader(self, *, stopped: str) -> NotLeader:
        """Return the error of a node that does not lead; `stopped` is why it never can."""
        if stopped:
            text = f"node {self.name} has halted: {stopped}"
        elif self.leader is None or self.leader == self.name:
            text = f"node {self.name} does not lead, and knows no node that does; try again soon"
        else:
            text = f"node {self.name} does not lead: {self.leader} does, at {self.address}"
        address = None if self.leader == self.name else self.address
        return NotLeader(text, leader=address, epoch=self.epoch)
