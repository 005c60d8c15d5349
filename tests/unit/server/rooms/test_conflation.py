"""Conflation: of each type and sender the latest in a tick, one batch per tick."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from millstream.server.rooms.live import Conflation


def test_the_latest_of_a_type_and_sender_wins() -> None:
    kept: Conflation[int] = Conflation()
    assert kept.put("pointer", "ann", 1) is None
    assert kept.put("pointer", "bob", 2) is None
    assert kept.put("cursor", "ann", 3) is None
    assert kept.put("pointer", "ann", 4) == 1
    assert kept.take(0.0) == [2, 3, 4]
    assert kept.take(1.0) == []


def test_the_first_leaves_at_once_and_the_next_a_tick_later() -> None:
    kept: Conflation[int] = Conflation()
    assert kept.due_s(10.0, 0.5) == 0
    kept.take(10.0)
    assert kept.due_s(10.0, 0.5) == 0.5
    assert kept.due_s(11.0, 0.5) == 0


KINDS = st.sampled_from(["pointer", "cursor"])
SENDERS = st.sampled_from(["ann", "bob", "cid"])


@given(st.lists(st.tuples(KINDS, SENDERS, st.integers(0, 40)), max_size=60), st.integers(1, 30))
def test_it_gives_what_a_simple_model_gives(puts: list[tuple[str, str, int]], tick_ms: int) -> None:
    """The model: a list of all that came since the last batch, of which the last of each counts."""
    kept: Conflation[int] = Conflation()
    waiting: list[int] = []
    batches_ms: list[int] = []

    def flush(due_ms: int) -> None:
        last = {puts[number][:2]: number for number in waiting}
        assert kept.take(due_ms / 1000) == sorted(last.values())
        waiting.clear()
        batches_ms.append(due_ms)

    now_ms, due_ms = 0, -1
    for number, (kind, sender, pause_ms) in enumerate(puts):
        now_ms += pause_ms
        if waiting and due_ms <= now_ms:
            flush(due_ms)
        kept.put(kind, sender, number)
        if not waiting:
            due_ms = now_ms + round(kept.due_s(now_ms / 1000, tick_ms / 1000) * 1000)
        waiting.append(number)
    if waiting:
        flush(due_ms)
    pauses = [later - earlier for earlier, later in pairwise(batches_ms)]
    assert all(pause_ms >= tick_ms for pause_ms in pauses)
