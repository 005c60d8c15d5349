"""Losing a node, whatever its role: callers with `retry_for=30` see a pause, and no error.

Each node has one of three roles: it leads the cluster; its NATS server leads the stream; or neither.
`make test` loses each role once, `make faults` as often as MILLSTREAM_CLUSTER_ROUNDS says.
"""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest

from millstream.cluster.admin import ClusterAdmin
from tests.conformance.nats_kit import until
from tests.integration.cluster_callers import BUSY_S, QUIET_S, Callers
from tests.integration.cluster_run import Run, running

pytestmark = [
    pytest.mark.requires("nats"),
    pytest.mark.slow,
    pytest.mark.faults,
    pytest.mark.crash,
    pytest.mark.timeout(3600),
]

SEED = int(os.environ["MILLSTREAM_SEED"])
ROUNDS = int(os.environ.get("MILLSTREAM_CLUSTER_ROUNDS", "1"))
ROLES = ("leader", "stream", "neither")


def roles_of(run: Run, visit: ClusterAdmin) -> dict[str, str]:
    """Which node has which role, once these are three nodes."""
    found: dict[str, str] = {}

    def is_apart() -> bool:
        leader, stream = run.leader(), visit.log.look(timeout_s=60.0).leader
        if leader is None or stream in ("", leader):
            return False
        (neither,) = set(run.names) - {leader, stream}
        found.update(leader=leader, stream=stream, neither=neither)
        return True

    until(is_apart, "another server than the leader's leads the stream")
    return found


def go_on(callers: Callers, *, calls: int = 10) -> float:
    """Wait until every caller has succeeded some more times; answers how many seconds that took."""
    began_s, before = time.monotonic(), callers.counts()

    def have_all() -> bool:
        counts = callers.counts()
        return all(counts[name] >= before[name] + calls for name in before)

    until(have_all, "every caller goes on")
    return time.monotonic() - began_s


@pytest.mark.parametrize("fault", ["kill", "stop"])
def test_losing_a_node_of_any_role_is_a_pause_for_callers_and_no_error(
    tmp_path: Path, fault: str
) -> None:
    with running(tmp_path, SEED) as run, ClusterAdmin(run.plan) as visit:
        callers = Callers([one.address for one in run.trial.peers])
        callers.start()
        pauses: list[str] = []
        try:
            for _ in range(ROUNDS):
                for role in run.chance.sample(ROLES, len(ROLES)):
                    until(lambda: len(callers.seen) == 6, "every caller has begun")
                    go_on(callers)
                    name = roles_of(run, visit)[role]
                    run.account.faults[f"{fault} {role}"] += 1
                    if fault == "kill":
                        run.kill(name)
                        pauses.append(f"{role} {go_on(callers, calls=3):.1f} s")
                        run.start(name)
                    else:
                        run.send(name, signal.SIGSTOP)
                        run.send_nats(name, signal.SIGSTOP)
                        pauses.append(f"{role} {go_on(callers, calls=3):.1f} s")
                        run.send_nats(name, signal.SIGCONT)
                        run.send(name, signal.SIGCONT)
                    run.until_well()
        finally:
            callers.stop()
            print(f"until every caller went on: {', '.join(pauses)}; {callers}")
        urls = [one.address for one in run.trial.peers]
        assert callers.complaints(urls, may_be_unknown=True) == []


@pytest.mark.parametrize("pause_s", [QUIET_S, BUSY_S], ids=["quiet", "busy"])
def test_losing_the_follower_whose_server_leads_the_stream_leaves_no_outcome_unknown(
    tmp_path: Path, pause_s: float
) -> None:
    """No node that carries out a call is lost, so every call is answered: also those that repeat nothing."""
    with running(tmp_path, SEED) as run, ClusterAdmin(run.plan) as visit:
        leader = run.leader()
        at = [one.address for one in run.trial.peers if one.name == leader]
        callers = Callers(at, pause_s=pause_s)
        callers.start()
        try:
            for _ in range(ROUNDS):
                until(lambda: len(callers.seen) == 6, "every caller has begun")
                go_on(callers)
                found = roles_of(run, visit)
                run.account.faults["kill stream"] += 1
                run.kill(found["stream"])
                go_on(callers, calls=3)
                run.start(found["stream"])
                run.until_well()
        finally:
            callers.stop()
            print(callers)
        urls = [one.address for one in run.trial.peers]
        assert callers.complaints(urls, may_be_unknown=False) == []
