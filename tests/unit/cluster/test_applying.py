"""A follower applies each entry of the shared log once and in order, however its server hands them out."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from millstream.cluster.shared_log import Stored
from tests.unit.cluster.stepping import Group, Stepped

Twist = Callable[[list[Stored]], list[Stored]]


def reads_are_twisted(node: Stepped, twist: Twist, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the server hand out something else than what the node has asked for."""
    read = node.door.read

    def twisted(after: int, *, bytes_max: int, timeout_s: float) -> list[Stored]:
        return twist(read(after, bytes_max=bytes_max, timeout_s=timeout_s))

    monkeypatch.setattr(node.door, "read", twisted)


def test_entries_that_come_twice_are_applied_once(monkeypatch: pytest.MonkeyPatch) -> None:
    group = Group()
    a, b = group.node("a").lead(), group.node("b")
    a.put(1)
    a.put(2)
    reads_are_twisted(b, lambda found: [e for e in found for _ in range(2)], monkeypatch)

    b.follow(1)

    assert b.numbers() == [1, 2]
    assert b.node.state().replays == 2


def test_what_follows_a_missing_entry_waits_until_the_entry_is_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    group = Group()
    a, b = group.node("a").lead(), group.node("b").follow()
    for number in (1, 2, 3):
        a.put(number)
    with monkeypatch.context() as patch:
        reads_are_twisted(b, lambda found: [*found[:1], *found[2:]], patch)
        assert b.follow(1).numbers() == [1]
        assert b.role == "follower"

    assert b.follow().numbers() == [1, 2, 3]
