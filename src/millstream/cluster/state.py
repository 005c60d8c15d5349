"""The state of a complete cluster, from the reports of its nodes and its shared log: pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from millstream.cluster.node.leadership import CLOSED
from millstream.cluster.reports import NodeReport
from millstream.cluster.shared_log import Held

Reports = Mapping[str, tuple[NodeReport, float]]

ClusterState = Literal[
    "healthy", "degraded", "no leader", "no quorum", "halted", "closed", "repairing", "silent"
]

HEARD_S = 5.0
"""An older report says nothing about the present state of a node."""


def state_of(
    reports: Reports, *, members: int, held: Held | None = None, answers: bool = True
) -> ClusterState:
    """Return the state of a cluster; the shared log matters only if no node leads.

    `held` is None if the log is gone; `answers` is False if its servers do not answer.
    """
    recent = [report for report, age_s in reports.values() if age_s < HEARD_S]
    roles = [report.role for report in recent]
    if not recent:
        return "silent"
    leading = [report for report in recent if report.role == "leader"]
    if any(not report.reason for report in leading):
        is_whole = len(recent) >= members and roles.count("follower") == len(recent) - 1
        return "healthy" if is_whole and not any(report.reason for report in recent) else "degraded"
    if leading or not answers:
        return "no quorum"
    if any(role != "halted" for role in roles):
        return "no leader"
    longest = max(report.sequence for report in recent)
    is_new = held is not None and held.last == longest and held.first == longest + 1
    if is_new:
        return "repairing"
    return "closed" if all(report.reason == CLOSED for report in recent) else "halted"


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
"""The explanation of each state for people."""
