"""When a node campaigns: timers, which decide nothing else."""

from __future__ import annotations

import random

import pytest

from millstream.cluster.entry import EpochBody
from millstream.cluster.node.leadership import RETRY_S, Leadership

SEEDS = range(20)


def following(seed: int, *, yields: bool = False) -> Leadership:
    """A follower that has just heard of its leader, for a long time."""
    found = Leadership("b", beat_s=0.5, silence_s=2.5, jitter_s=1.0, chance=random.Random(seed))
    found.yields = yields
    found.began(0.0, 1, EpochBody("a", "http://a", 1), is_own=False)
    for tenth in range(100):
        found.heard(tenth / 10)
    return found


@pytest.mark.parametrize("seed", SEEDS)
def test_a_follower_campaigns_after_a_silence(seed: int) -> None:
    assert 2.5 <= following(seed).next_s(9.9) <= 3.5


@pytest.mark.parametrize("seed", SEEDS)
def test_a_follower_that_yields_lets_all_others_go_first(seed: int) -> None:
    assert following(seed, yields=True).next_s(9.9) >= 3.5


@pytest.mark.parametrize("seed", SEEDS)
def test_a_campaign_that_did_not_reach_the_shared_log_is_repeated_at_once(seed: int) -> None:
    view = following(seed)
    view.retry(20.0)
    assert RETRY_S[0] <= view.next_s(20.0) <= RETRY_S[1]
