"""How a cluster stands as a whole."""

from __future__ import annotations

import pytest

from millstream.cluster.node.leadership import CLOSED
from millstream.cluster.reports import NodeReport, Role
from millstream.cluster.shared_log import Held
from millstream.cluster.state import TOLD, ClusterState, state_of


def heard(
    *roles: Role, age_s: float = 0.1, reason: str = ""
) -> dict[str, tuple[NodeReport, float]]:
    return {
        name: (NodeReport(name, "", role, 1, 9, b"9", reason), age_s)
        for name, role in zip("abc", roles, strict=False)
    }


@pytest.mark.parametrize(
    ("roles", "held", "answers", "state"),
    [
        (("leader", "follower", "follower"), None, True, "healthy"),
        (("leader", "follower"), None, True, "degraded"),
        (("leader", "follower", "joining"), None, True, "degraded"),
        (("leader", "halted", "follower"), None, True, "degraded"),
        (("follower", "follower", "follower"), Held(1, 9), True, "no leader"),
        (("follower", "halted", "follower"), None, True, "no leader"),
        (("follower",), None, False, "no quorum"),
        (("halted", "halted", "halted"), None, True, "halted"),
        (("halted", "halted", "halted"), Held(1, 5), True, "halted"),
        (("halted", "halted", "halted"), Held(10, 9), True, "repairing"),
        (("halted", "halted", "halted"), None, False, "no quorum"),
        ((), None, True, "silent"),
    ],
)
def test_reports_and_the_log_say_how_a_cluster_stands(
    roles: tuple[Role, ...], held: Held | None, answers: bool, state: ClusterState
) -> None:
    assert state_of(heard(*roles), members=3, held=held, answers=answers) == state
    assert bool(TOLD[state]) == (state != "healthy")


def test_a_node_that_was_heard_of_long_ago_says_nothing_of_now() -> None:
    assert state_of(heard("leader", "follower", "follower", age_s=60.0), members=3) == "silent"


def test_a_leader_that_cannot_write_has_no_quorum() -> None:
    found = heard("leader", "follower", "follower", reason="too few servers answer")
    assert state_of(found, members=3) == "no quorum"


def test_a_log_that_was_closed_is_to_be_moved_and_not_repaired() -> None:
    found = heard("halted", "halted", "halted", reason=CLOSED)
    assert state_of(found, members=3, held=Held(1, 9)) == "closed"
    assert state_of(found, members=3) == "closed"
    assert state_of(found, members=3, held=Held(10, 9)) == "repairing"
