"""`millstream cluster`: a trial cluster on this machine, and how any cluster stands."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer

from millstream.cli.clustering import ClusterPlace
from millstream.cli.command import Consent, command
from millstream.cli.display import Printed, PrintedLine, Table, plural, rough
from millstream.errors import CannotOpen, Denied, NoQuorum

if TYPE_CHECKING:
    from millstream.cluster.membership import Plan
    from millstream.cluster.reports import NodeReport
    from millstream.cluster.state import ClusterState, Reports

cluster = typer.Typer(no_args_is_help=True, help="Nodes that have the same store.")

FOLDER = Path("millstream-cluster")
Folder = Annotated[
    Path,
    typer.Argument(metavar="[FOLDER]", help="The folder of a trial cluster.", show_default=True),
]
ASK_S = 20.0
HEAR_S = 3.0
"""Nodes report twice a second."""
UP_S = 120.0


@dataclass(frozen=True)
class AnyCluster(ClusterPlace):
    """A cluster by its nodes or its NATS, or else a trial cluster by its folder."""

    def meant(self, folder: Path) -> Plan:
        """The cluster as a visitor sees it."""
        from millstream.cluster.trial import TrialCluster

        if self.is_named:
            return self.plan()
        trial = TrialCluster(folder)
        return ClusterPlace(trial.peers_text, cluster_secret_file=trial.secret_file).plan()


@command(cluster, "cluster up", "cluster up trial --nodes 5 --json")
def up(
    folder: Folder = FOLDER,
    nodes: Annotated[int, typer.Option(metavar="N", help="How many nodes a new one has.")] = 3,
) -> Printed:
    """Start a trial cluster on this machine, or the nodes of one that do not run."""
    from millstream.cluster.admin import ClusterAdmin
    from millstream.cluster.trial import TrialCluster

    trial = TrialCluster(folder)
    if not trial.exists:
        trial.make(nodes)
    for one in trial.peers:
        trial.start(one.name)
    plan = AnyCluster().meant(folder)
    names = {one.name for one in plan.peers}
    with ClusterAdmin(plan) as visit:
        reports = visit.listen(lambda found: _is_up(found, names), timeout_s=UP_S)
        state = visit.state(reports)
    if not _is_up(reports, names):
        raise NoQuorum(
            f"no leader within {UP_S:g} s; the files `log` in {folder} say why: "
            f"{_lines(reports) or 'no node reported'}"
        )
    return _shown(plan, reports, state)


@command(cluster, "cluster status", "cluster status --peers a=h1,b=h2,c=h3 --json")
def status(place: AnyCluster, folder: Folder = FOLDER) -> Printed:
    """Show each node: its role, its epoch, and how far it is behind."""
    from millstream.cluster.admin import ClusterAdmin

    plan = place.meant(folder)
    with ClusterAdmin(plan) as visit:
        reports = visit.listen(lambda found: len(found) >= plan.members, timeout_s=HEAR_S)
        if not reports and not plan.peers:
            raise NoQuorum(f"no node was heard of on NATS at {visit.place}: {visit.trouble}")
        return _shown(plan, reports, visit.state(reports))


@command(cluster, "cluster down")
def down(folder: Folder = FOLDER) -> Printed:
    """End the nodes of a trial cluster; what they have stored stays."""
    from millstream.cluster.trial import TrialCluster

    stopped = TrialCluster(folder).stop()
    return Printed({"stopped": stopped}, f"{plural(len(stopped), 'node')} stopped")


@command(
    cluster,
    "cluster token ops --allow '*:admin' --peers a=h1,b=h2,c=h3 --cluster-secret-file secret",
)
def token(
    name: Annotated[str, typer.Argument(metavar="NAME", help="What it is known by.")],
    allow: Annotated[
        list[str],
        typer.Option(metavar="PERMISSION", help="As of `millstream token`; may be repeated."),
    ],
    place: AnyCluster,
    folder: Annotated[
        Path, typer.Option(metavar="FOLDER", help="The folder of a trial cluster.")
    ] = FOLDER,
    ca: Annotated[str | None, typer.Option(metavar="FILE", help="Whom TLS trusts.")] = None,
) -> Printed:
    """Create a token, by the cluster's secret; its text is shown once."""
    from millstream.cluster.admin import ClusterAdmin

    plan = place.meant(folder)
    with ClusterAdmin(plan) as visit:
        reports = visit.listen(lambda found: _leader(found) is not None, timeout_s=HEAR_S)
    leader = _leader(reports)
    if leader is None:
        raise NoQuorum(f"no node leads, so none can make a token: {_lines(reports) or 'silence'}")
    made = _make_token(
        leader.address,
        plan.node_key,
        {"name": name, "permissions": allow},
        ca=ca or plan.tls.ca or None,
    )
    told = "keep it: it is shown only this once, and the store has no copy"
    return Printed(made, made["token"], PrintedLine(told, note=True))


AcceptLoss = Annotated[
    bool, typer.Option("--accept-loss", help="A node that is missing has lost its store.")
]


@command(cluster, "cluster repair", "cluster repair --peers a=h1,b=h2,c=h3 --yes")
def repair(
    place: AnyCluster, consent: Consent, folder: Folder = FOLDER, accept_loss: AcceptLoss = False
) -> Printed:
    """Rebuild a shared log that is gone or damaged, from the longest store.

    All nodes run, and none leads: each has stopped with the reason. Those that have as much as the
    longest go on by themselves; restart the others.
    """
    told = (
        "nodes that have all of it go on by themselves within half a minute; restart those that stay "
        "halted: they take a copy"
    )
    return _rebuild(place.meant(folder), consent, accept_loss=accept_loss, told=told)


@command(cluster, "cluster close", "cluster close --peers a=h1,b=h2,c=h3 --yes")
def close(place: AnyCluster, consent: Consent, folder: Folder = FOLDER) -> Printed:
    """End the shared log, so that it can be moved: from then on no node writes.

    Every node stops behind the same entry. `cluster move` begins another log there, and `cluster
    repair` begins it anew where it was.
    """
    from millstream.cluster.admin import ClusterAdmin, closed_behind

    plan = place.meant(folder)
    with ClusterAdmin(plan) as visit:
        consent.ask("Close the shared log, so that no node writes until it was moved?")
        last = visit.close(timeout_s=ASK_S)
        reports = visit.listen(
            lambda found: len(closed_behind(found, last)) >= plan.members, timeout_s=ASK_S
        )
    closed = closed_behind(reports, last)
    told = f"{len(closed)} of {plan.members} nodes are there; a node that is not takes a snapshot later"
    if len(closed) == plan.members:
        told = "every node is there: restart them with the new options, then `cluster move`"
    return Printed(
        {"last": last, "nodes": closed},
        f"the shared log ends with entry {last}",
        PrintedLine(told, note=True),
    )


@command(cluster, "cluster move --replicas 5 --cluster nats://h1:4222 --members 5")
def move(place: AnyCluster, consent: Consent, folder: Folder = FOLDER) -> Printed:
    """Begin a new shared log behind the longest store: on other servers, or more of them.

    `cluster close` comes first. All nodes run, with the new options, and then go on by themselves.
    """
    told = "the nodes go on by themselves; those that are behind take a snapshot"
    return _rebuild(place.meant(folder), consent, accept_loss=False, told=told)


def _rebuild(plan: Plan, consent: Consent, *, accept_loss: bool, told: str) -> Printed:
    from millstream.cluster.admin import ClusterAdmin, longest

    with ClusterAdmin(plan) as visit:
        reports = visit.listen(lambda found: len(found) >= plan.members, timeout_s=HEAR_S)
        last = longest(reports, members=plan.members, accept_loss=accept_loss)
        consent.ask(f"Replace the shared log by an empty one that begins after entry {last}?")
        last = visit.rebuild(accept_loss=accept_loss)
    return Printed(
        {"last": last, "nodes": sorted(reports)},
        f"the shared log begins after entry {last}",
        PrintedLine(told, note=True),
    )


def _make_token(address: str, key: str, request: dict[str, Any], *, ca: str | None) -> Any:
    """Ask a node over HTTP for a token, with the key that nodes show each other."""
    from millstream.remote.address import parse_address
    from millstream.remote.http import BrokenHttp, ask

    node = parse_address(address, token=key, ca=ca)
    kind = {"Content-Type": "application/json"}
    try:
        answer = ask(node, "POST", "/tokens", msgspec.json.encode(request), kind, timeout_s=ASK_S)
    except BrokenHttp as error:
        raise CannotOpen(f"cannot reach {node.shown}: {error}", path=node.shown) from None
    if not answer.is_good:
        raise Denied(f"{address} made no token: {answer.detail}")
    return msgspec.json.decode(answer.body)


def _leader(reports: Reports) -> NodeReport | None:
    leading = [report for report, _ in reports.values() if report.role == "leader"]
    return max(leading, key=lambda one: one.epoch, default=None)


def _is_up(reports: Reports, names: set[str]) -> bool:
    roles = {name: report.role for name, (report, _) in reports.items()}
    return names <= set(roles) and "leader" in roles.values() and "joining" not in roles.values()


def _lines(reports: Reports) -> str:
    return "; ".join(
        f"{name} is {report.role}{f' ({report.reason})' if report.reason else ''}"
        for name, (report, _) in sorted(reports.items())
    )


def _told(reason: str, resumed: str) -> str:
    return reason or (resumed and f"went on by itself after a halt: {resumed}")


def _shown(plan: Plan, reports: Reports, state: ClusterState) -> Printed:
    from millstream.cluster.state import TOLD

    most = max((report.sequence for report, _ in reports.values()), default=0)
    names = sorted({one.name for one in plan.peers} | set(reports))
    found: list[dict[str, Any]] = []
    for name in names:
        if name not in reports:
            found.append({"node": name, "role": "silent"})
            continue
        report, age_s = reports[name]
        found.append(
            {
                "node": name,
                "role": report.role,
                "address": report.address,
                "epoch": report.epoch,
                "sequence": report.sequence,
                "lag": most - report.sequence,
                "heard_s": round(age_s, 3),
                "reason": report.reason,
                "resumed": report.resumed,
                "version": report.version,
            }
        )
    leader = next((one["node"] for one in found if one["role"] == "leader"), None)
    rows = [
        (
            one["node"],
            one["role"],
            one.get("address", "-"),
            one.get("epoch", "-"),
            one.get("sequence", "-"),
            one.get("lag", "-"),
            rough(one["heard_s"] * 1000) if "heard_s" in one else "-",
            _told(one.get("reason", ""), one.get("resumed", "")),
        )
        for one in found
    ]
    columns = ("node", "role", "address", "epoch", "entry", "lag", "heard", "reason")
    lines = [PrintedLine(f"{state}: {TOLD[state]}", note=True)] if TOLD[state] else []
    return Printed(
        {"cluster": plan.cluster, "state": state, "leader": leader, "nodes": found},
        Table(columns, rows, none="no nodes"),
        *lines,
    )
