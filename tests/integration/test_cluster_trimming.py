"""Real servers and nodes: the shared log stays small under load, and no node is left without its rows.

The bounds are those of the program, divided by 32, so that a test reaches them in seconds.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from millstream import Millstream
from millstream.cluster.node import trimmer as trimming
from millstream.cluster.node.snapshots import copy
from millstream.cluster.reports import NodeReport
from millstream.embedded.session import EmbeddedSession, open_over
from millstream.errors import OutcomeUnknown
from millstream.store.store import Store
from tests.conformance.kits import all_rows
from tests.conformance.nats_kit import PATIENCE_S, until
from tests.integration.own_nats import OwnNats, own_nats

if TYPE_CHECKING:
    from millstream.cluster.membership import Membership
    from millstream.cluster.nats.jetstream_answer import StreamState
    from millstream.cluster.node.node import Node

pytestmark = [
    pytest.mark.requires("nats"),
    pytest.mark.slow,
    pytest.mark.faults,
    pytest.mark.timeout(600),
]

TRIM, URGENT, FULL = (mib << 20 for mib in (2, 5, 8))
BATCH = [b"x" * 1000] * 100


class Seated:
    """A node in this process, and its store."""

    def __init__(self, group: Group, name: str) -> None:
        from millstream.cli.cluster_options import ClusterPlace
        from millstream.cluster.membership import Membership

        plan = ClusterPlace(cluster=group.nats.address()).plan(name, f"http://{name}:1")
        self.membership: Membership = Membership(
            group.folder / f"{name}.db", plan, fetch=group.fetch
        )
        self.node: Node = self.membership.prepare()
        self.node.start()
        self.node.wait_readable(PATIENCE_S)
        self.store: Store = open_over(lambda: self.node.engine, clock=self.node.clock)
        self.ms = Millstream(EmbeddedSession(self.store))

    def stop(self) -> None:
        self.store.close()
        self.membership.stop()


class Group:
    """Nodes on one NATS."""

    def __init__(self, nats: OwnNats, folder: Path) -> None:
        self.nats, self.folder = nats, folder
        self.seated: dict[str, Seated] = {}
        self.largest = 0
        """The most bytes that the shared log was seen to have."""

    def fetch(self, source: NodeReport, path: Path) -> None:
        path.unlink(missing_ok=True)
        copy(self.seated[source.node].node.engine, path)

    def start(self, *names: str) -> None:
        for name in names:
            self.seated[name] = Seated(self, name)

    def stop(self, *names: str) -> None:
        for name in names:
            self.seated.pop(name).stop()

    def leader(self) -> Seated:
        def leading() -> list[Seated]:
            found = self.seated.values()
            return [one for one in found if one.node.state().role == "leader"]

        until(leading, "a node leads")
        return leading()[0]

    def write(self, size: int) -> None:
        """Append so many bytes, and look meanwhile that nothing goes that a majority lacks."""
        from millstream.cluster.admin import ClusterAdmin

        plan = self.leader().membership.plan
        with ClusterAdmin(plan) as visit:
            for _ in range(size // 100_000):
                self.leader().ms.log("orders").append_many(BATCH)
                span = visit.log.span(timeout_s=PATIENCE_S)
                self.largest = max(self.largest, span.bytes)
                stored = sorted(one.node.member.noted.sequence for one in self.seated.values())
                if len(stored) >= 2:
                    assert span.held.first <= stored[-2] + 1, "a majority lacks what was trimmed"

    def span(self) -> StreamState:
        """What the shared log holds."""
        from millstream.cluster.admin import ClusterAdmin

        with ClusterAdmin(self.leader().membership.plan) as visit:
            return visit.log.span(timeout_s=PATIENCE_S)

    def settle(self) -> None:
        """Wait until every node has the same rows."""

        def is_same() -> bool:
            rows = [all_rows(one.node.member.engine) for one in self.seated.values()]
            return all(one == rows[0] for one in rows)

        until(is_same, "every node has the same rows")


@pytest.fixture
def group(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Group]:
    monkeypatch.setattr(trimming, "TRIM_BYTES", TRIM)
    monkeypatch.setattr(trimming, "URGENT_BYTES", URGENT)
    monkeypatch.setattr(trimming, "LOOK_S", 0.05)
    monkeypatch.setattr("millstream.cluster.nats.jetstream.STREAM_BYTES_MAX", FULL)
    with own_nats(tmp_path) as nats:
        found = Group(nats, tmp_path)
        try:
            found.start("a", "b", "c")
            yield found
        finally:
            found.stop(*list(found.seated))


def test_the_log_stays_small_while_followers_come_and_go(group: Group) -> None:
    group.write(2 * FULL)
    group.settle()
    assert group.largest < FULL
    away = next(name for name, one in group.seated.items() if one is not group.leader())
    for size, snapshots in ((100_000, 0), (FULL, 1)):
        group.stop(away)
        group.write(size)
        group.start(away)
        group.settle()
        assert group.seated[away].node.state().snapshots == snapshots
    assert group.largest < FULL


def test_a_log_that_nobody_may_trim_takes_nothing_more_and_goes_on_with_a_majority(
    group: Group,
) -> None:
    leader = group.leader()
    away = [name for name, one in group.seated.items() if one is not leader]
    group.write(100_000)
    group.settle()
    group.stop(*away)
    acknowledged, log = 1, leader.ms.log("orders")
    while group.span().bytes < FULL - 300_000:
        log.append_many(BATCH)
        acknowledged += 1
    with pytest.raises(OutcomeUnknown) as told:
        log.append_many(BATCH * 4)
    assert "maximum bytes" in str(told.value.cause)
    group.start(*away)
    group.write(FULL)
    group.settle()
    assert group.leader().ms.log("orders").end_offset() >= acknowledged * len(BATCH)
