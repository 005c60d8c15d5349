"""The plan of a claim: what a claim does before its commit, and whether another round follows.

Both decisions are pure functions of a few facts. `service.claims` collects the facts, carries out
the plans and keeps the time limits; the event loop uses the same plans for its own commits.
"""

from __future__ import annotations

from collections.abc import Collection
from enum import Enum

from msgspec import Struct

from millstream.queue.model.grants import Granted

OVERTAKEN_MAX = 3
"""The most rounds in which a claim routes again because other callers routed meanwhile."""


class ClaimPlan(Enum):
    """The work of a claim before and inside its commit."""

    ROUTED_AHEAD = "claim messages that earlier routing has placed"
    ARRIVALS = "let the commit place new records and claim them"
    ROUTE = "route first, then claim"
    PLACED_ONLY = "claim placed messages, whatever the logs hold"


ROUTED_AHEAD, ARRIVALS, ROUTE, PLACED_ONLY = ClaimPlan
"""The members as globals: to get a member from its class takes ten times as long."""


class ClaimFacts(Struct, frozen=True, gc=False):
    """The facts that decide the plan of a claim."""

    missing: int
    """The number of messages that the claim still needs."""
    routed_ahead: int
    """The number of fresh messages that the last claim of this process left."""
    keeps_up: bool
    """Whether consumers keep up with the producers of a queue without a filter."""
    overtaken: int
    """The number of rounds in which other callers routed before this claim's commit."""


def plan_claim(facts: ClaimFacts) -> ClaimPlan:
    """Choose the cheapest plan that can get the missing messages.

    | missing | routed ahead | keeps up | overtaken | plan           |
    |---------|--------------|----------|-----------|----------------|
    | 0       | any          | any      | any       | `PLACED_ONLY`  |
    | n > 0   | at least n   | any      | any       | `ROUTED_AHEAD` |
    | n > 0   | fewer        | yes      | any       | `ARRIVALS`     |
    | n > 0   | fewer        | no       | < max     | `ROUTE`        |
    | n > 0   | fewer        | no       | max       | `PLACED_ONLY`  |
    """
    # Routing reads logs outside the write lock and costs several times a claim, so it comes last. The
    # first two plans rely on memory that may be outdated: `next_step` then asks for a second round.
    if facts.missing <= 0:
        return PLACED_ONLY
    if facts.missing <= facts.routed_ahead:
        return ROUTED_AHEAD
    if facts.keeps_up:
        return ARRIVALS
    return ROUTE if facts.overtaken < OVERTAKEN_MAX else PLACED_ONLY


class NextStep(Enum):
    """The step after a round of a claim."""

    DONE = "answer the claim"
    OVERTAKEN = "route and claim again, because other callers routed meanwhile"
    DAMAGED = "claim again, because every granted message was damaged"
    UNROUTED = "route, because the commit could not place all new records"
    BLOCKED = "claim again, because too many messages of blocked groups were passed over"
    MORE = "claim again, because routing or expired leases may have made messages claimable"


DONE, OVERTAKEN, DAMAGED, UNROUTED, BLOCKED, MORE = NextStep


class ClaimRound(Struct, frozen=True, gc=False):
    """The outcome of a round of a claim."""

    plan: ClaimPlan
    missing: int
    """The number of messages that the claim still needs after this round."""
    granted: Granted
    relied_on_ahead: bool
    """Whether the round expected enough fresh messages and therefore placed none."""
    has_progress: bool
    """Whether routing advanced or leases expired."""
    is_all_damaged: bool
    """Whether messages were granted, and every one was damaged."""
    has_messages: bool
    """Whether the claim has any message, from this round or an earlier one."""


def next_step(ended: ClaimRound, exhausted: Collection[NextStep] = ()) -> NextStep:
    """Choose the step after a round; steps in `exhausted` have used up their time.

    The first row that applies decides. Rows from the third on need missing messages.

    | the round                                                      | next step   |
    |----------------------------------------------------------------|-------------|
    | another caller routed before the commit                        | `OVERTAKEN` |
    | every granted message was damaged                              | `DAMAGED`   |
    | plan `ARRIVALS`, and some new records were not placed          | `UNROUTED`  |
    | the claim passed over too many messages                        | `BLOCKED`   |
    | it relied on fresh messages, and other claims took the last    | `MORE`      |
    | routing advanced or leases expired, and the claim has nothing  | `MORE`      |
    | any other                                                      | `DONE`      |
    """
    granted = ended.granted
    if granted.is_overtaken:
        return OVERTAKEN
    if ended.is_all_damaged and DAMAGED not in exhausted:
        return DAMAGED
    if ended.missing <= 0:
        return DONE
    if ended.plan is ARRIVALS and not granted.is_fully_routed:
        return UNROUTED
    if granted.is_cut_short and BLOCKED not in exhausted:
        return BLOCKED
    if ended.plan is ARRIVALS:
        return DONE
    lost_race = ended.relied_on_ahead and not granted.fresh
    if lost_race or (ended.has_progress and not ended.has_messages):
        return MORE
    return DONE
