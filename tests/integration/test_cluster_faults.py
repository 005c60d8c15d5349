"""Clusters of real processes: what was acknowledged survives everything that is done to them here.

`make test` has a short run of each kind, `make faults` as many rounds as MILLSTREAM_CLUSTER_ROUNDS says.
"""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from millstream.cluster.admin import ClusterAdmin
from tests.conformance.nats_kit import until
from tests.integration.cluster_run import Account, Run, running

pytestmark = [
    pytest.mark.requires("nats"),
    pytest.mark.slow,
    pytest.mark.faults,
    pytest.mark.crash,
    pytest.mark.timeout(3600),
]

SEED = int(os.environ["MILLSTREAM_SEED"])
ROUNDS = int(os.environ.get("MILLSTREAM_CLUSTER_ROUNDS", "1"))
KINDS = (
    "kill_leader",
    "kill_follower",
    "stop_leader",
    "stop_follower",
    "lose_nats",
    "stop_nats",
    "kill_two",
    "lose_store",
)


def assert_sound(account: Account) -> None:
    assert account.acknowledged > 0, account
    assert account.lost == 0, account
    assert account.duplicated == 0, account
    assert account.stale_strong_reads == 0, account
    assert account.divergent_nodes == 0, account


def test_a_healthy_cluster_has_everything_everywhere(tmp_path: Path) -> None:
    with running(tmp_path, SEED) as run:
        with run.load():
            run.until_acknowledged(100)
        assert_sound(run.judge())
        assert run.account.unknown == run.account.refused == 0


def test_nodes_are_restarted_one_by_one_as_for_an_upgrade(tmp_path: Path) -> None:
    """Followers first, the leader last, under load: clients notice a pause and nothing more."""
    with running(tmp_path, SEED) as run:
        with run.load():
            leader = run.leader()
            for name in sorted(run.names, key=lambda name: name == leader):
                run.until_acknowledged()
                run.account.faults["restart"] += 1
                run.send(name, signal.SIGTERM)
                until(lambda name=name: run.trial.process(name) is None, f"{name} has stopped")
                run.until_acknowledged()
                run.start(name)
                run.until_well()
        assert_sound(run.judge())


def test_what_was_acknowledged_survives_kills_and_stops(tmp_path: Path) -> None:
    with running(tmp_path, SEED) as run:
        with run.load():
            for _ in range(ROUNDS):
                for kind in run.chance.sample(KINDS, len(KINDS)):
                    run.until_acknowledged()
                    run.inject(kind)
        assert_sound(run.judge())


def test_the_server_that_leads_the_stream_is_never_for_long_that_of_the_leading_node(
    tmp_path: Path,
) -> None:
    with running(tmp_path, SEED) as run, ClusterAdmin(run.plan) as visit:
        with run.load():
            for _ in range(max(2, ROUNDS)):
                until(lambda: is_apart(run, visit), "another server leads the stream")
                run.inject("kill_leader")
        assert_sound(run.judge())


def is_apart(run: Run, visit: ClusterAdmin) -> bool:
    """Whether a machine that is lost takes either the leading node or the stream's lead with it."""
    leader = run.leader()
    return leader is not None and visit.log.look(timeout_s=60.0).leader not in ("", leader)


def delete_stream(run: Run, name: str) -> None:
    """The stream's directory of one NATS server, as its disk has it."""
    for place in run.nats_folder(name).glob("jetstream/*/streams/*"):
        shutil.rmtree(place)


def delete_everything(run: Run, name: str) -> None:
    """All that one NATS server has."""
    shutil.rmtree(run.nats_folder(name) / "jetstream")


@pytest.mark.parametrize("delete", [delete_stream, delete_everything])
def test_a_stream_that_was_deleted_on_two_of_three_servers_costs_nothing_that_was_acknowledged(
    tmp_path: Path, delete: Callable[[Run, str], None]
) -> None:
    with running(tmp_path, SEED) as run:
        with run.load():
            run.until_acknowledged(50)
        two = run.chance.sample(run.names, 2)
        run.kill(*two)
        for name in two:
            delete(run, name)
        run.account.faults[delete.__name__] += 1
        run.start(*two)
        run.heal()
        with run.load():
            run.until_acknowledged(50)
        assert_sound(run.judge())


def test_a_stream_that_is_gone_stops_every_node_and_is_rebuilt_from_the_longest_store(
    tmp_path: Path,
) -> None:
    with running(tmp_path, SEED) as run:
        with run.load():
            run.until_acknowledged(50)
        run.kill(*run.names)
        for name in run.names:
            delete_everything(run, name)
        run.account.faults["delete_on_all"] += 1
        run.start()
        run.heal()
        assert run.account.faults["repair"] == 1
        with run.load():
            run.until_acknowledged(50)
        assert_sound(run.judge())


def test_a_bit_flipped_in_a_stream_costs_nothing_that_was_acknowledged(tmp_path: Path) -> None:
    with running(tmp_path, SEED) as run:
        for _ in range(ROUNDS):
            with run.load():
                run.until_acknowledged(50)
            name = run.chance.choice(run.names)
            run.kill(name)
            run.flip(name)
            run.start(name)
            run.heal()
            with run.load():
                run.until_acknowledged(50)
        assert_sound(run.judge())
