"""Whatever happens to the nodes of a cluster, what was acknowledged stays, and all nodes agree.

Promises, for every seed, once the faults are over:

- one node leads, and the rows of all nodes are equal, byte for byte;
- every write that was acknowledged is in them, and is in the shared log once;
- no write of which the caller was told that nothing was stored is in them;
- no strong read was stale.

`make sim SEEDS=1000` tries that many; MILLSTREAM_SEED says which comes first.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from millstream.cluster import entry as entries
from millstream.format import keys
from tests.simulation.world import ELECTION_S, World

SEEDS = int(os.environ.get("MILLSTREAM_SIM_SEEDS", "200"))
FIRST = int(os.environ.get("MILLSTREAM_SIM_FIRST", "0"))
STEPS = 300


def outcome_of(world: World) -> str:
    """Checks what was promised; answers the run in one line."""
    rows = dict(world.machines[0].rows())
    outcome, divergent = world.outcome, world.divergent()
    stored = {keys.number(key) for key in rows if key[1] == keys.PAYLOAD}
    lost = sorted(set(outcome.acknowledged) - stored)
    ghosts = sorted(outcome.refused & stored)
    ids = [entries.decode(0, data).id for data in world.every_entry if is_commit(data)]
    duplicated = len(ids) - len(set(ids))
    counted = int.from_bytes(rows[keys.STORE_KEY], "big")
    reasons = [one.node.state().reason for one in world.machines]
    text = (
        f"attempted {outcome.attempted} acknowledged {len(outcome.acknowledged)} lost {len(lost)} "
        f"duplicated {duplicated} stale strong reads {outcome.stale} of {outcome.strong_reads} "
        f"divergent nodes {divergent} snapshots {outcome.snapshots} faults {dict(outcome.faults)}"
    )
    assert not any(reasons), reasons
    assert [one.node.state().role for one in world.machines].count("leader") == 1, text
    assert (divergent, lost, ghosts, duplicated, outcome.stale) == (0, [], [], 0, 0), text
    assert counted == len(stored), text
    return text


def is_commit(data: bytes) -> bool:
    return entries.decode(0, data).kind in (entries.COMMIT, entries.CHUNKED)


def test_without_faults_every_write_is_acknowledged_or_refused(tmp_path: Path) -> None:
    world = World(0, tmp_path)
    world.run(STEPS, faulty=False, election_s_max=0)
    world.heal()
    print("healthy", outcome_of(world))
    assert not world.outcome.unknown
    assert not world.outcome.faults
    assert len(world.outcome.acknowledged) > 20


@pytest.mark.parametrize("seed", range(20))
def test_an_election_of_the_log_refuses_no_write_and_costs_no_leader_its_lead(
    seed: int, tmp_path: Path
) -> None:
    """If it is no longer than leaders wait; clocks differ by 5 % here."""
    world = World(seed, tmp_path)
    world.run(3 * STEPS, faulty=False, election_s_max=0.9 * ELECTION_S)
    world.heal()
    print("seed", seed, outcome_of(world))
    assert world.outcome.faults["election"] > 2
    assert not world.outcome.unknown
    assert not world.outcome.without_quorum
    assert len(world.outcome.acknowledged) > 20


@pytest.mark.faults
@pytest.mark.parametrize("seed", range(FIRST, FIRST + SEEDS))
def test_nothing_acknowledged_is_lost_and_all_nodes_agree(seed: int, tmp_path: Path) -> None:
    world = World(seed, tmp_path)
    world.run(STEPS)
    world.heal()
    print("seed", seed, outcome_of(world))


@pytest.mark.faults
def test_the_world_is_the_same_for_the_same_seed(tmp_path: Path) -> None:
    found = []
    for _ in range(2):
        world = World(7, tmp_path)
        world.run(STEPS)
        world.heal()
        found.append((outcome_of(world), len(world.every_entry), world.now_s))
    assert found[0] == found[1]
