"""The state of a cluster as a whole, from what its nodes report and what its shared log shows: pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from millstream.cluster.node import refusal
from millstream.cluster.reports import NodeReport
from millstream.cluster.shared_log import Held

Reports = Mapping[str, tuple[NodeReport, float]]

ClusterState = Literal[
    "healthy", "degraded", "no leader", "no quorum", "halted", "closed", "repairing", "silent"
]

HEARD_S = 5.0
"""A node whose last report is older says nothing of how it stands now."""


def state_of(
    reports: Reports, *, members: int, held: Held | None = None, answers: bool = True
) -> ClusterState:
    """How a cluster stands; what the shared log shows counts only if no node leads.

    `held` is None if the log is gone, and `answers` False if its servers do not say.
    """
    found = [report for report, age_s in reports.values() if age_s < HEARD_S]
    roles = [one.role for one in found]
    if not found:
        return "silent"
    leading = [one for one in found if one.role == "leader"]
    if any(not one.reason for one in leading):
        is_whole = len(found) >= members and roles.count("follower") == len(found) - 1
        return "healthy" if is_whole and not any(one.reason for one in found) else "degraded"
    if leading or not answers:
        return "no quorum"
    if any(role != "halted" for role in roles):
        return "no leader"
    longest = max(one.sequence for one in found)
    is_new = held is not None and held.last == longest and held.first == longest + 1
    if is_new:
        return "repairing"
    return "closed" if all(one.reason == refusal.CLOSED for one in found) else "halted"


TOLD: dict[ClusterState, str] = {
    "healthy": "",
    "degraded": "a node leads, and not every other one follows it",
    "no leader": "no node leads just now: one is elected within seconds",
    "no quorum": "too few NATS servers answer: nothing can be written until more of them are back",
    "halted": "every node has halted, and says why: `millstream cluster repair`, unless the log comes back",
    "closed": "the log was closed: `millstream cluster move` begins another one behind the stores",
    "repairing": "the log was begun anew behind the longest store, and its nodes go on within half a minute",
    "silent": "no node was heard of: are they running?",
}
"""What a person is told of each state."""
