"""`millstream cluster repair`, killed at each of its steps: run once more, it does all of it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from tests.conformance.nats_kit import until
from tests.integration import broken_off
from tests.integration.own_nats import Nodes, nodes_on, own_nats

pytestmark = [
    pytest.mark.requires("nats"),
    pytest.mark.slow,
    pytest.mark.faults,
    pytest.mark.timeout(900),
]

LONG = int(os.environ.get("MILLSTREAM_CLUSTER_ROUNDS", "1")) > 1
"""Whether every step is tried: `make faults` says so."""

STEPS = {
    "before anything": 0,
    "a rehearsal of another time is deleted": 1,
    "a stream was rehearsed": 2,
    "the rehearsal is deleted": 3,
    "the log is deleted": 4,
    "the log is made": 5,
}
"""What is done when the command is killed, and how many streams it has made or deleted."""

TRIED = STEPS if LONG else ["a stream was rehearsed", "the log is deleted"]


@pytest.fixture(scope="module")
def nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nodes]:
    folder = tmp_path_factory.mktemp("repair")
    with (
        own_nats(folder, servers=1) as nats,
        nodes_on(folder, cluster=nats.address(), replicas=1) as started,
    ):
        yield started


def append(nodes: Nodes, value: bytes) -> None:
    """Append, and wait until every node has it."""
    nodes.append(value)
    until(lambda: all(value in nodes.values(name) for name in nodes.ports), "it is everywhere")


def lose_the_log(nodes: Nodes) -> None:
    from millstream.cluster.admin import ClusterAdmin

    with ClusterAdmin(nodes.plan) as visit:
        visit.log.drop(timeout_s=60.0)
    nodes.until("halted", "halted", "halted")


def repair(nodes: Nodes, *, killed_after: int | None = None) -> subprocess.CompletedProcess[str]:
    if killed_after is None:
        return nodes.ask("repair", "--yes")
    command = [sys.executable, broken_off.__file__, str(killed_after), "cluster", "repair", "--yes"]
    return subprocess.run([*command, *nodes.options], capture_output=True, text=True, check=False)


def until_well(nodes: Nodes) -> None:
    """Nodes go on by themselves; one that says that it wants a restart gets it."""

    def is_well() -> bool:
        found = nodes.reports()
        for name, one in found.items():
            if "Restart this node" in one.reason:
                nodes.stop(name)
                nodes.start(name)
        return sorted(one.role for one in found.values()) == ["follower", "follower", "leader"]

    until(is_well, "one node leads and two follow")


@pytest.mark.parametrize("step", TRIED)
def test_a_repair_that_was_killed_is_done_by_the_next_one(nodes: Nodes, step: str) -> None:
    append(nodes, step.encode())
    lose_the_log(nodes)
    killed = repair(nodes, killed_after=STEPS[step])
    assert killed.returncode == -9, killed.stderr
    done = repair(nodes)
    if step == "the log is made":
        assert done.returncode == 0 or "leads" in done.stderr or "follows" in done.stderr
    else:
        assert done.returncode == 0, done.stderr
    until_well(nodes)
    append(nodes, f"after: {step}".encode())


@pytest.mark.parametrize(
    "step", ["the log is deleted", "the log is made"] if LONG else ["the log is made"]
)
def test_nodes_that_are_restarted_in_between_do_no_harm(nodes: Nodes, step: str) -> None:
    append(nodes, f"restarted: {step}".encode())
    lose_the_log(nodes)
    repair(nodes, killed_after=STEPS[step])
    before = {name: nodes.values(name) for name in nodes.ports}
    nodes.stop("a")
    nodes.start("a")
    until(lambda: len(nodes.reports()) == 3, "all nodes are heard of")
    if step == "the log is deleted":
        nodes.until("halted", "halted", "halted")
        done = repair(nodes)
        assert done.returncode == 0, done.stderr
    until_well(nodes)
    append(nodes, f"after a restart: {step}".encode())
    for name, had in before.items():
        assert nodes.values(name)[: len(had)] == had


def test_a_log_that_is_whole_is_not_replaced(nodes: Nodes) -> None:
    append(nodes, b"whole")
    refused = repair(nodes)
    assert "nothing is to be repaired" in refused.stderr
    assert state(nodes) == "healthy"


def test_each_state_of_a_repair_is_shown(nodes: Nodes) -> None:
    from millstream.cluster.admin import ClusterAdmin

    append(nodes, b"shown")
    until(lambda: state(nodes) == "healthy", "all is well")
    lose_the_log(nodes)
    assert state(nodes) == "halted"
    most = max(one.sequence for one in nodes.reports().values())
    with ClusterAdmin(nodes.plan) as visit:  # it does not say behind which store it begins
        visit.log.found(timeout_s=60.0, first=most + 1)
    assert state(nodes) == "repairing"
    done = repair(nodes)
    assert done.returncode == 0, done.stderr
    until_well(nodes)
    until(lambda: state(nodes) == "healthy", "all is well again")


def state(nodes: Nodes) -> str:
    """As `cluster status --json` says it."""
    done = nodes.ask("status")
    assert done.returncode == 0, done.stderr
    found: Any = json.loads(done.stdout)
    return str(found["state"])
