"""A visitor of a cluster: it hears what nodes say of themselves, and takes no part.

It can give the shared log a new beginning: after a loss (`repair`), or on other servers (`move`). A
new stream begins behind the longest store, so that every store of that length goes on, and shorter
ones take a snapshot. Nothing is rebuilt from what no node has shown.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from types import TracebackType
from typing import Self

from millstream.clock import Clock, SystemClock
from millstream.cluster import entry as entries
from millstream.cluster.membership import Plan
from millstream.cluster.nats.jetstream import JetStreamLog
from millstream.cluster.nats.reports import Reporting
from millstream.cluster.reports import NodeReport
from millstream.cluster.shared_log import Gone, Held, Overtaken, Unreachable, Unsure
from millstream.cluster.state import ClusterState, Reports, state_of
from millstream.errors import Conflict, NoQuorum

PAUSE_S = 0.05
LOOK_S = 8.0
"""How long the log may take to show itself: a stream must be missing for 3 s to be called gone."""
STREAM_S = 30.0
HEAR_S = 3.0
"""How long nodes are listened to: each reports twice a second."""


class Visit:
    """A connection to a cluster's NATS, while it is entered."""

    def __init__(self, plan: Plan, *, clock: Clock | None = None) -> None:
        """Connect."""
        self.plan = plan
        self._clock = clock or SystemClock()
        self._line = plan.connect("visitor")
        self._reporting = Reporting(self._line, plan.cluster, clock=self._clock)
        self.log = JetStreamLog(self._line, plan.cluster, replicas=plan.replicas)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.log.close()

    def listen(self, enough: Callable[[Reports], bool], *, timeout_s: float) -> Reports:
        """What nodes said within a time, or until it is enough."""
        deadline, pause = self._clock.seconds() + timeout_s, threading.Event()
        while True:
            reports = self._reporting.reports()
            if enough(reports) or self._clock.seconds() > deadline:
                return reports
            pause.wait(PAUSE_S)

    @property
    def place(self) -> str:
        """The NATS servers, for messages."""
        return self._line.place

    @property
    def trouble(self) -> str:
        """Why nothing is heard of NATS; what went wrong last, if something is."""
        return self._line.refusal or self._line.trouble

    def held(self) -> Held | None:
        """What the shared log holds; None if it is gone."""
        try:
            return self.log.held(timeout_s=STREAM_S)
        except Gone:
            return None

    def state(self, reports: Reports) -> ClusterState:
        """How the cluster stands; its log is asked only if no node leads."""
        members = self.plan.members
        found = state_of(reports, members=members)
        if found not in ("no leader", "halted"):
            return found
        try:
            held = self.log.held(timeout_s=LOOK_S)
        except Gone:
            return found
        except Unreachable:
            return state_of(reports, members=members, answers=False)
        answers = self.log.servers.has_quorum
        return state_of(reports, members=members, held=held, answers=answers)

    def close(self, *, timeout_s: float) -> int:
        """End the shared log: no node writes behind the entry whose sequence is returned.

        Raises `Conflict` if it holds nothing, and `NoQuorum` if it cannot be done in time.
        """
        deadline = self._clock.seconds() + timeout_s
        while self._clock.seconds() < deadline:
            try:
                if (last := self._close()) is not None:
                    return last
            except (Overtaken, Unsure):
                continue  # what stands there now is looked at anew
            except Unreachable as error:
                raise NoQuorum(f"nothing was closed: {error}") from error
        raise NoQuorum(f"the shared log was not closed within {timeout_s:g} s: stop clients first")

    def _close(self) -> int | None:
        held = self.held()
        if held is None or held.first > held.last:
            raise Conflict("the shared log holds nothing, so there is nothing to close")
        found = self.log.read(held.last - 1, bytes_max=1, timeout_s=STREAM_S)
        if not found or found[0].sequence != held.last:
            return None
        if entries.decode(*found[0]).kind == entries.CLOSED:
            return held.last
        entry = entries.closing(*found[0])
        return self.log.append(entries.encode(entry), after=held.last, timeout_s=STREAM_S)

    def rebuild(self, *, accept_loss: bool = False) -> int:
        """Give the shared log a new beginning behind the longest store; returns its sequence.

        The old one is deleted first: from then on no store grows, so which one is the longest is
        asked anew. If this is broken off, a second call does all of it. Raises `Conflict` if a node
        still leads, not every node was heard of, two differ, or the log is whole.
        """
        try:
            self.log.rehearse(timeout_s=STREAM_S)
            before = self.listen(self._is_complete, timeout_s=HEAR_S)
            longest(before, members=self.plan.members, accept_loss=accept_loss)
            check_broken(before, self._shown())
            self.log.drop(timeout_s=STREAM_S)
            reports = self._settled(before)
            last = longest(reports, members=self.plan.members, accept_loss=accept_loss)
            behind = next(one.hash for one, _ in reports.values() if one.sequence == last)
            self.log.found(timeout_s=STREAM_S, first=last + 1, behind=behind if last else b"")
            held = self.log.held(timeout_s=STREAM_S)
        except Unreachable as error:
            raise NoQuorum(
                f"{error}. A majority of the NATS servers must run, and as many as the log has replicas: "
                "start them, then try again"
            ) from error
        except Gone as error:
            raise Conflict(
                f"another program has deleted it meanwhile ({error}): try again"
            ) from error
        if held.first != last + 1:
            raise Conflict(
                f"another program has made the shared log anew, from entry {held.first} on: stop nodes "
                "that are just starting, then try again"
            )
        return last

    def _shown(self) -> Held | None:
        """What the shared log holds; None if it is gone, or does not answer."""
        try:
            return self.log.held(timeout_s=HEAR_S)
        except (Gone, Unreachable):
            return None

    def _is_complete(self, reports: Reports) -> bool:
        return len(reports) >= self.plan.members

    def _settled(self, before: Reports) -> Reports:
        """What all nodes that were heard of say once none of them can write any more."""
        since_s = self._clock.seconds()

        def is_settled(reports: Reports) -> bool:
            passed_s = self._clock.seconds() - since_s
            heard = {name for name, (_, age_s) in reports.items() if age_s < passed_s}
            leading = any(report.role == "leader" for report, _ in reports.values())
            return heard >= set(before) and not leading

        return self.listen(is_settled, timeout_s=STREAM_S)


def longest(reports: Reports, *, members: int, accept_loss: bool = False) -> int:
    """Where the longest store stands; every store must be known, since any may be the longest."""
    found = [report for report, _ in reports.values()]
    leading = [one.node for one in found if one.role == "leader"]
    if leading:
        raise Conflict(
            f"node {leading[0]} leads, so the shared log is whole: nothing is to be repaired. To move it, "
            "close it first: `millstream cluster close`"
        )
    if len(found) < members and not accept_loss:
        raise Conflict(
            f"{len(found)} of {members} nodes were heard of ({_names(found)}): one that is missing may "
            "have what the others do not. Start it, or say --accept-loss if its store is lost"
        )
    if not found:
        raise Conflict("no node was heard of: start them first")
    seen: dict[int, NodeReport] = {}
    for one in found:
        other = seen.setdefault(one.sequence, one)
        if other.hash != one.hash:
            raise Conflict(
                f"nodes {other.node} and {one.node} differ in entry {one.sequence}: decide which one is "
                "right, and remove the other's file; it then takes a snapshot"
            )
    return max(seen)


def check_broken(reports: Reports, held: Held | None) -> None:
    """Raises `Conflict` for a log that nodes follow, and that has all they have: it only lacks a leader."""
    following = {one.node: one.sequence for one, _ in reports.values() if one.role == "follower"}
    most = max(following.values(), default=0)
    if held is not None and most and held.last >= most:
        raise Conflict(
            f"node {min(following)} follows, and the shared log has all that it has: nothing is to be "
            "repaired. Wait until a node leads, then look at `millstream cluster status`"
        )


def closed_behind(reports: Reports, last: int) -> list[str]:
    """The nodes that have stopped behind the entry which closed their log."""
    found = [report for report, _ in reports.values()]
    return sorted(one.node for one in found if one.role == "halted" and one.sequence == last)


def _names(reports: list[NodeReport]) -> str:
    return ", ".join(sorted(one.node for one in reports)) or "none"
