"""The administration of a cluster: it reads the reports of nodes, and rebuilds the shared log.

The shared log gets a new beginning after a loss (`repair`), or on other servers (`move`). The new
stream begins behind the longest store, so that every store of that length goes on, and shorter
stores take a snapshot. An entry that no node has shown is never rebuilt.
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
from millstream.cluster.nats.reports import NatsReportChannel
from millstream.cluster.reports import NodeReport
from millstream.cluster.shared_log import Gone, Held, Overtaken, Unreachable, Unsure
from millstream.cluster.state import ClusterState, Reports, state_of
from millstream.errors import Conflict, NoQuorum

PAUSE_S = 0.05
LOOK_S = 8.0
"""How long the log may take to answer: a stream must be missing for 3 s to count as gone."""
STREAM_S = 30.0
HEAR_S = 3.0
"""How long to listen for reports: each node sends two per second."""


class ClusterAdmin:
    """A connection to a cluster's NATS, used as a context manager."""

    def __init__(self, plan: Plan, *, clock: Clock | None = None) -> None:
        """Connect."""
        self.plan = plan
        self._clock = clock or SystemClock()
        self._connection = plan.connect("visitor")
        self._channel = NatsReportChannel(self._connection, plan.cluster, clock=self._clock)
        self.log = JetStreamLog(self._connection, plan.cluster, replicas=plan.replicas)

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
        """Return the reports that arrive within a time, or earlier if `enough` accepts them."""
        deadline, pause = self._clock.seconds() + timeout_s, threading.Event()
        while True:
            reports = self._channel.reports()
            if enough(reports) or self._clock.seconds() > deadline:
                return reports
            pause.wait(PAUSE_S)

    @property
    def place(self) -> str:
        """Return the NATS servers, for messages."""
        return self._connection.place

    @property
    def trouble(self) -> str:
        """Return why NATS does not answer; otherwise its last error."""
        return self._connection.refusal or self._connection.trouble

    def held(self) -> Held | None:
        """Return the extent of the shared log; None without a log."""
        try:
            return self.log.held(timeout_s=STREAM_S)
        except Gone:
            return None

    def state(self, reports: Reports) -> ClusterState:
        """Return the state of the cluster; the log is asked only if no node leads."""
        members = self.plan.members
        state = state_of(reports, members=members)
        if state not in ("no leader", "halted"):
            return state
        try:
            held = self.log.held(timeout_s=LOOK_S)
        except Gone:
            return state
        except Unreachable:
            return state_of(reports, members=members, answers=False)
        answers = self.log.servers.has_quorum
        return state_of(reports, members=members, held=held, answers=answers)

    def close(self, *, timeout_s: float) -> int:
        """Close the shared log: no node writes behind the returned sequence.

        Raises `Conflict` if the log is empty, and `NoQuorum` after the timeout.
        """
        deadline = self._clock.seconds() + timeout_s
        while self._clock.seconds() < deadline:
            try:
                if (last := self._close()) is not None:
                    return last
            except (Overtaken, Unsure):
                continue  # the last entry is read again
            except Unreachable as error:
                raise NoQuorum(f"nothing was closed: {error}") from error
        raise NoQuorum(f"the shared log was not closed within {timeout_s:g} s: stop clients first")

    def _close(self) -> int | None:
        held = self.held()
        if held is None or held.first > held.last:
            raise Conflict("the shared log holds nothing, so there is nothing to close")
        last_entries = self.log.read(held.last - 1, bytes_max=1, timeout_s=STREAM_S)
        if not last_entries or last_entries[0].sequence != held.last:
            return None
        if entries.decode(*last_entries[0]).kind == entries.CLOSED:
            return held.last
        entry = entries.closing(*last_entries[0])
        return self.log.append(entries.encode(entry), after=held.last, timeout_s=STREAM_S)

    def rebuild(self, *, accept_loss: bool = False) -> int:
        """Rebuild the shared log behind the longest store, and return that store's sequence.

        The old log is deleted first: then no store grows, and the longest store is determined
        again. After an interruption, a second call repeats everything. Raises `Conflict` if a node
        still leads, a node is missing, two nodes differ, or the log is complete.
        """
        try:
            self.log.rehearse(timeout_s=STREAM_S)
            before = self.listen(self._is_complete, timeout_s=HEAR_S)
            longest(before, members=self.plan.members, accept_loss=accept_loss)
            check_broken(before, self._shown())
            self.log.drop(timeout_s=STREAM_S)
            reports = self._settled(before)
            last = longest(reports, members=self.plan.members, accept_loss=accept_loss)
            behind = next(report.hash for report, _ in reports.values() if report.sequence == last)
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
        """Return the extent of the shared log; None if it is gone, or does not answer."""
        try:
            return self.log.held(timeout_s=HEAR_S)
        except (Gone, Unreachable):
            return None

    def _is_complete(self, reports: Reports) -> bool:
        return len(reports) >= self.plan.members

    def _settled(self, before: Reports) -> Reports:
        """Return the reports of the nodes after the last node has lost its right to write."""
        since_s = self._clock.seconds()

        def is_settled(reports: Reports) -> bool:
            passed_s = self._clock.seconds() - since_s
            heard = {name for name, (_, age_s) in reports.items() if age_s < passed_s}
            leading = any(report.role == "leader" for report, _ in reports.values())
            return heard >= set(before) and not leading

        return self.listen(is_settled, timeout_s=STREAM_S)


def longest(reports: Reports, *, members: int, accept_loss: bool = False) -> int:
    """Return the sequence of the longest store. Every store must report: any may be the longest."""
    all_reports = [report for report, _ in reports.values()]
    leading = [report.node for report in all_reports if report.role == "leader"]
    if leading:
        raise Conflict(
            f"node {leading[0]} leads, so the shared log is whole: nothing is to be repaired. To move it, "
            "close it first: `millstream cluster close`"
        )
    if len(all_reports) < members and not accept_loss:
        raise Conflict(
            f"{len(all_reports)} of {members} nodes were heard of ({_names(all_reports)}): one that "
            "is missing may have what the others do not. Start it, or say --accept-loss if its store is lost"
        )
    if not all_reports:
        raise Conflict("no node was heard of: start them first")
    by_sequence: dict[int, NodeReport] = {}
    for report in all_reports:
        same_sequence = by_sequence.setdefault(report.sequence, report)
        if same_sequence.hash != report.hash:
            raise Conflict(
                f"nodes {same_sequence.node} and {report.node} differ in entry {report.sequence}: "
                "decide which one is right, and remove the other's file; it then takes a snapshot"
            )
    return max(by_sequence)


def check_broken(reports: Reports, held: Held | None) -> None:
    """Raise `Conflict` for a complete log that nodes follow: it only lacks a leader."""
    following = {
        report.node: report.sequence for report, _ in reports.values() if report.role == "follower"
    }
    last_followed = max(following.values(), default=0)
    if held is not None and last_followed and held.last >= last_followed:
        raise Conflict(
            f"node {min(following)} follows, and the shared log has all that it has: nothing is to be "
            "repaired. Wait until a node leads, then look at `millstream cluster status`"
        )


def closed_behind(reports: Reports, last: int) -> list[str]:
    """Return the nodes that have stopped behind the entry that closed their log."""
    all_reports = [report for report, _ in reports.values()]
    return sorted(
        report.node for report in all_reports if report.role == "halted" and report.sequence == last
    )


def _names(reports: list[NodeReport]) -> str:
    return ", ".join(sorted(report.node for report in reports)) or "none"
