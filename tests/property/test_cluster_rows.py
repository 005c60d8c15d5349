"""What a store does on the leader of a cluster is in the rows of the other nodes, and goes on there.

A long random history (that of `test_same_rows`) runs on a store over a leader's engine, with pieces
small enough that many commits travel in several. Promises:

- A node that follows has the same rows, byte for byte, however many entries it applies at once.
- A store over its rows reads as the leader's does, also one that was open all the time.
- The node goes on as the leader: the same history runs on, and the first one follows.
"""

from __future__ import annotations

import random

import hypothesis
import pytest
from hypothesis import strategies as st

from millstream import Millstream
from millstream.cluster import entry as entries
from millstream.embedded.session import EmbeddedSession, open_store
from tests.conformance.kits import all_rows
from tests.property.test_same_rows import LIMITS, QUEUES, History, seen
from tests.unit.cluster.stepping import Group

STEPS = 60


@hypothesis.settings(max_examples=8)
@hypothesis.given(seed=st.integers(0, 2**32))
def test_a_node_that_follows_has_the_rows_of_the_leader_and_can_go_on(seed: int) -> None:
    chance = random.Random(seed)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(entries, "CHUNK_BYTES_MAX", 2_000)
        group = Group()
        first, second = group.node("a").lead(), group.node("b")
        history = History(first.node.engine, chance)
        for queue, settings in QUEUES.items():
            history.ms.create_queue(queue, **settings)
        second.follow()
        watching = open_store(second.node.engine, limits=LIMITS, clock=history.clock)
        for number in range(STEPS):
            history.step()
            if chance.random() < 0.2:
                second.follow()
                assert all_rows(second.inner) == all_rows(first.inner)
            if number % 20 == 0:
                watching.refresh()
        history.fold()
        second.follow()
        assert all_rows(second.inner) == all_rows(first.inner)
        expected = seen(history.ms)
        assert seen(Millstream(EmbeddedSession(watching))) == expected
        history.store.close()
        watching.close()

        second.lead()
        onward = History(second.node.engine, chance)
        assert seen(onward.ms)[0] == expected[0]  # its clock is another, so queues look otherwise
        for _ in range(STEPS):
            onward.step()
        first.follow()
        assert all_rows(second.inner) == all_rows(first.inner)
        onward.store.close()
