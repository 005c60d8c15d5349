"""Leadership: which node leads, and when to campaign. Pure: entries, reports and time come in.

Safety rests on the shared log alone: the latest epoch entry says which node leads, and an append
succeeds only behind everything that its writer has seen. The timers here merely decide when a node
tries: one that tries too early, or too late, or is wrong about the time, does no harm.
"""

from __future__ import annotations

import random
from typing import Literal

from millstream.cluster.entry import EpochBody

Action = Literal["campaign", "beat"]

RETRY_S = (0.1, 0.3)
"""How long a campaign that did not reach the shared log is put off: its servers elect a leader of
their own then, and a campaign that comes just after costs the cluster nothing more."""


class Leadership:
    """One node's view of who leads, and its timers."""

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
        """The newest epoch that was seen."""
        self.leader: str | None = None
        """Which node it belongs to; None if it is not known, or has stepped down."""
        self.address: str | None = None
        self.leads = False
        """Whether this node leads, as far as it knows."""
        self.yields = False
        """Whether the other nodes are let go first: this one campaigns only if none of them does."""
        self._beat_s, self._silence_s, self._jitter_s = beat_s, silence_s, jitter_s
        self._chance = chance
        self._beat_due = 0.0
        self._campaign_due = 0.0

    def start(self, now: float, *, epoch: int, leader: str, address: str) -> None:
        """Begin as a follower, from what the store says."""
        self.epoch, self.leads = epoch, False
        self.leader, self.address = leader or None, address or None
        self.wait(now, quick=not epoch)

    def wait(self, now: float, *, quick: bool = False) -> None:
        """Campaign not before a time of silence; at once, or nearly, if nobody led yet."""
        self._campaign_due = now + self._chance.uniform(0, self._jitter_s)
        if not quick:
            self._campaign_due += self._patience_s

    def retry(self, now: float) -> None:
        """The shared log could not be reached: campaign again soon, since nobody else can either."""
        self._campaign_due = now + self._chance.uniform(*RETRY_S)

    def lost(self, now: float) -> None:
        """The leader says itself that it leads no more: nobody needs to wait for a silence."""
        self.leader = self.address = None
        self.wait(now, quick=True)

    def heard(self, now: float) -> None:
        """The leader gave a sign of life: an entry of its own, or a report."""
        if not self.leads and self._campaign_due < now + self._patience_s:
            self.wait(now)

    @property
    def _patience_s(self) -> float:
        """How long a silence is at least borne."""
        return self._silence_s + (self._jitter_s if self.yields else 0.0)

    def began(self, now: float, epoch: int, body: EpochBody, *, own: bool) -> None:
        """An epoch entry was applied; `own` says that this life of this node has sent it."""
        self.epoch, self.leads = epoch, own
        self.leader, self.address = body.node, body.address
        self.sent(now)
        if not own:
            self.wait(now)

    def sent(self, now: float) -> None:
        """An append of this node succeeded: the next sign of life is due later."""
        self._beat_due = now + self._beat_s

    def step_down(self, now: float, *, successor: EpochBody | None = None) -> None:
        """Lead no more: another node has taken over, or something could not be made certain."""
        self.leads = False
        self.leader = None if successor is None else successor.node
        self.address = None if successor is None else successor.address
        self.wait(now)

    def due(self, now: float) -> Action | None:
        """What this node should do now."""
        if self.leads:
            return "beat" if now >= self._beat_due else None
        return "campaign" if now >= self._campaign_due else None

    def next_s(self, now: float) -> float:
        """In how many seconds something is due."""
        return max(0.0, (self._beat_due if self.leads else self._campaign_due) - now)
