"""Behind which store a new shared log begins, and when none may."""

from __future__ import annotations

import pytest

from millstream.cluster.reports import NodeReport, Role
from millstream.cluster.shared_log import Held
from millstream.errors import Conflict

pytestmark = pytest.mark.requires("nats")


def heard(*said: tuple[str, int, Role, bytes]) -> dict[str, tuple[NodeReport, float]]:
    return {
        name: (NodeReport(name, "", role, 1, sequence, hash), 0.1)
        for name, sequence, role, hash in said
    }


def longest(*said: tuple[str, int, Role, bytes], accept_loss: bool = False) -> int:
    from millstream.cluster.admin import longest

    return longest(heard(*said), members=3, accept_loss=accept_loss)


def test_the_longest_store_counts_whatever_became_of_the_shared_log() -> None:
    assert (
        longest(("a", 5, "halted", b"5"), ("b", 9, "halted", b"9"), ("c", 9, "halted", b"9")) == 9
    )


def test_every_node_must_be_heard_of_unless_its_store_is_said_to_be_lost() -> None:
    said = ("a", 5, "halted", b"5"), ("b", 9, "halted", b"9")
    with pytest.raises(Conflict, match="2 of 3"):
        longest(*said)
    assert longest(*said, accept_loss=True) == 9
    with pytest.raises(Conflict, match="no node"):
        longest(accept_loss=True)


def test_nothing_is_rebuilt_under_a_leader() -> None:
    with pytest.raises(Conflict, match="leads"):
        longest(("a", 9, "leader", b"9"), ("b", 9, "halted", b"9"), ("c", 9, "halted", b"9"))


def test_stores_that_differ_are_for_people_to_judge() -> None:
    with pytest.raises(Conflict, match="a and c differ in entry 9"):
        longest(("a", 9, "halted", b"9"), ("b", 8, "halted", b"8"), ("c", 9, "halted", b"other"))


def test_a_log_that_only_lacks_a_leader_is_not_replaced() -> None:
    from millstream.cluster.admin import check_broken

    said = heard(("a", 9, "follower", b"9"), ("b", 7, "halted", b"7"), ("c", 0, "follower", b""))
    with pytest.raises(Conflict, match="a follows"):
        check_broken(said, Held(1, 9))
    check_broken(said, Held(1, 8))  # what the node has is not there
    check_broken(said, None)
    check_broken(heard(("a", 9, "halted", b"9"), ("c", 0, "follower", b"")), Held(1, 9))
