"""`millstream cluster`: start a trial cluster on this machine, and manage any cluster."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer

from millstream.cli.cluster_options import ClusterPlace
from millstream.cli.command import Consent, command
from millstream.cli.display import Printed, PrintedLine, Table, plural, rough
from millstream.errors import CannotOpen, Denied, NoQuorum

if TYPE_CHECKING:
    from millstream.cluster.membership import Plan
    from millstream.cluster.reports import NodeReport
    from millstream.cluster.state import ClusterState, Reports

cluster = typer.Typer(no_args_is_help=True, help="Nodes that share a store.")

FOLDER = Path("millstream-cluster")
Folder = Annotated[
    Path,
    typer.Argument(metavar="[FOLDER]", help="The folder of a trial cluster.", show_default=True),
]
ASK_S = 20.0
HEAR_S = 3.0
"""How long reports are awaited; nodes report twice a second."""
UP_S = 120.0


@dataclass(frozen=True)
class AnyCluster(ClusterPlace):
    """A cluster by its nodes or its NATS servers, or a trial cluster by its folder."""

    def meant(self, folder: Path) -> Plan:
        """Return the plan of the cluster, as a visitor sees it."""
        from millstream.cluster.trial import TrialCluster

        if self.is_named:
            return self.plan()
        trial = TrialCluster(folder)
        return ClusterPlace(trial.peers_text, cluster_secret_file=trial.secret_file).plan()


@command(cluster, "cluster up", "cluster up trial --nodes 5 --json")
def up(
    folder: Folder = FOLDER,
    nodes: Annotated[int, typer.Option(metavar="N", help="How many nodes a new cluster has.")] = 3,
) -> Printed:
    """Start a trial cluster on this machine. Nodes that run already are left alone."""
    from millstream.cluster.admin import ClusterAdmin
    from millstream.cluster.trial import TrialCluster

    trial = TrialCluster(folder)
    if not trial.exists:
        trial.make(nodes)
    for peer in trial.peers:
        trial.start(peer.name)
    plan = AnyCluster().meant(folder)
    names = {peer.name for peer in plan.peers}
    with ClusterAdmin(plan) as admin:
        reports = admin.listen(lambda heard: _is_up(heard, names), timeout_s=UP_S)
        state = admin.state(reports)
    if not _is_up(reports, names):
        raise NoQuorum(
            f"no leader within {UP_S:g} s; the files `log` in {folder} show why: "
            f"{_lines(reports) or 'no node reported'}"
        )
    return _shown(plan, reports, state)


@command(cluster, "cluster status", "cluster status --peers a=h1,b=h2,c=h3 --json")
def status(place: AnyCluster, folder: Folder = FOLDER) -> Printed:
    """Show each node: role, epoch, and lag."""
    from millstream.cluster.admin import ClusterAdmin

    plan = place.meant(folder)
    with ClusterAdmin(plan) as admin:
        reports = admin.listen(lambda heard: len(heard) >= plan.members, timeout_s=HEAR_S)
        if not reports and not plan.peers:
            raise NoQuorum(f"no node reported through NATS at {admin.place}: {admin.trouble}")
        return _shown(plan, reports, admin.state(reports))


@command(cluster, "cluster down")
def down(folder: Folder = FOLDER) -> Printed:
    """Stop the nodes of a trial cluster; their data stays."""
    from millstream.cluster.trial import TrialCluster

    stopped = TrialCluster(folder).stop()
    return Printed({"stopped": stopped}, f"{plural(len(stopped), 'node')} stopped")


@command(
    cluster,
    "cluster token ops --allow '*:admin' --peers a=h1,b=h2,c=h3 --cluster-secret-file secret",
)
def token(
    name: Annotated[str, typer.Argument(metavar="NAME", help="The token's name.")],
    allow: Annotated[
        list[str],
        typer.Option(metavar="PERMISSION", help="As for `millstream token`; may be repeated."),
    ],
    place: AnyCluster,
    folder: Annotated[
        Path, typer.Option(metavar="FOLDER", help="The folder of a trial cluster.")
    ] = FOLDER,
    ca: Annotated[str | None, typer.Option(metavar="FILE", help="Certificates to trust.")] = None,
) -> Printed:
    """Create a token with the cluster's secret. Its text is shown once."""
    from millstream.cluster.admin import ClusterAdmin

    plan = place.meant(folder)
    with ClusterAdmin(plan) as admin:
        reports = admin.listen(lambda heard: _leader(heard) is not None, timeout_s=HEAR_S)
    leader = _leader(reports)
    if leader is None:
        raise NoQuorum(f"no node leads, so no token can be made: {_lines(reports) or 'no reports'}")
    answer = _make_token(
        leader.address,
        plan.node_key,
        {"name": name, "permissions": allow},
        ca=ca or plan.tls.ca or None,
    )
    advice = "keep it: it is shown only now, and the store has no copy"
    return Printed(answer, answer["token"], PrintedLine(advice, note=True))


AcceptLoss = Annotated[
    bool, typer.Option("--accept-loss", help="A missing node has lost its store.")
]


@command(cluster, "cluster repair", "cluster repair --peers a=h1,b=h2,c=h3 --yes")
def repair(
    place: AnyCluster, consent: Consent, folder: Folder = FOLDER, accept_loss: AcceptLoss = False
) -> Printed:
    """Rebuild a lost or damaged shared log from the longest store.

    All nodes must run, and none may lead: each has halted with a reason. Nodes that are as long as
    the longest resume by themselves; restart the others.
    """
    advice = (
        "nodes that have all entries resume by themselves within half a minute; restart nodes that "
        "stay halted: they copy the store of another node"
    )
    return _rebuild(place.meant(folder), consent, accept_loss=accept_loss, advice=advice)


@command(cluster, "cluster close", "cluster close --peers a=h1,b=h2,c=h3 --yes")
def close(place: AnyCluster, consent: Consent, folder: Folder = FOLDER) -> Printed:
    """Close the shared log before it is moved. No node writes from then on.

    Every node stops after the same entry. `cluster move` starts another log there, and `cluster
    repair` starts the log again at its old place.
    """
    from millstream.cluster.admin import ClusterAdmin, closed_behind

    plan = place.meant(folder)
    with ClusterAdmin(plan) as admin:
        consent.ask("Close the shared log, so that no node writes until it is moved?")
        last = admin.close(timeout_s=ASK_S)
        reports = admin.listen(
            lambda heard: len(closed_behind(heard, last)) >= plan.members, timeout_s=ASK_S
        )
    closed = closed_behind(reports, last)
    advice = f"{len(closed)} of {plan.members} nodes are there; the others take a snapshot later"
    if len(closed) == plan.members:
        advice = "every node is there: restart them with the new options, then `cluster move`"
    return Printed(
        {"last": last, "nodes": closed},
        f"the shared log ends with entry {last}",
        PrintedLine(advice, note=True),
    )


@command(cluster, "cluster move --replicas 5 --cluster nats://h1:4222 --members 5")
def move(place: AnyCluster, consent: Consent, folder: Folder = FOLDER) -> Printed:
    """Start a new shared log after the longest store. It may lie on other NATS servers, or on more of them.

    Run `cluster close` first. All nodes must run with the new options, and resume by
    themselves.
    """
    advice = "the nodes resume by themselves; nodes that are behind take a snapshot"
    return _rebuild(place.meant(folder), consent, accept_loss=False, advice=advice)


def _rebuild(plan: Plan, consent: Consent, *, accept_loss: bool, advice: str) -> Printed:
    from millstream.cluster.admin import ClusterAdmin, longest

    with ClusterAdmin(plan) as admin:
        reports = admin.listen(lambda heard: len(heard) >= plan.members, timeout_s=HEAR_S)
        last = longest(reports, members=plan.members, accept_loss=accept_loss)
        consent.ask(f"Replace the shared log by an empty one that starts after entry {last}?")
        last = admin.rebuild(accept_loss=accept_loss)
    return Printed(
        {"last": last, "nodes": sorted(reports)},
        f"the shared log starts after entry {last}",
        PrintedLine(advice, note=True),
    )


def _make_token(address: str, key: str, request: dict[str, Any], *, ca: str | None) -> Any:
    """Request a token from a node over HTTP, with the key of the nodes."""
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
    return max(leading, key=lambda report: report.epoch, default=None)


def _is_up(reports: Reports, names: set[str]) -> bool:
    roles = {name: report.role for name, (report, _) in reports.items()}
    return names <= set(roles) and "leader" in roles.values() and "joining" not in roles.values()


def _lines(reports: Reports) -> str:
    return "; ".join(
        f"{name} is {report.role}{f' ({report.reason})' if report.reason else ''}"
        for name, (report, _) in sorted(reports.items())
    )


def _reason(reason: str, resumed: str) -> str:
    return reason or (resumed and f"resumed by itself after a halt: {resumed}")


def _shown(plan: Plan, reports: Reports, state: ClusterState) -> Printed:
    from millstream.cluster.state import TOLD

    furthest = max((report.sequence for report, _ in reports.values()), default=0)
    names = sorted({peer.name for peer in plan.peers} | set(reports))
    nodes: list[dict[str, Any]] = []
    for name in names:
        if name not in reports:
            nodes.append({"node": name, "role": "silent"})
            continue
        report, age_s = reports[name]
        nodes.append(
            {
                "node": name,
                "role": report.role,
                "address": report.address,
                "epoch": report.epoch,
                "sequence": report.sequence,
                "lag": furthest - report.sequence,
                "heard_s": round(age_s, 3),
                "reason": report.reason,
                "resumed": report.resumed,
                "version": report.version,
            }
        )
    leader = next((node["node"] for node in nodes if node["role"] == "leader"), None)
    rows = [
        (
            node["node"],
            node["role"],
            node.get("address", "-"),
            node.get("epoch", "-"),
            node.get("sequence", "-"),
            node.get("lag", "-"),
            rough(node["heard_s"] * 1000) if "heard_s" in node else "-",
            _reason(node.get("reason", ""), node.get("resumed", "")),
        )
        for node in nodes
    ]
    columns = ("node", "role", "address", "epoch", "entry", "lag", "heard", "reason")
    lines = [PrintedLine(f"{state}: {TOLD[state]}", note=True)] if TOLD[state] else []
    return Printed(
        {"cluster": plan.cluster, "state": state, "leader": leader, "nodes": nodes},
        Table(columns, rows, none="no nodes"),
        *lines,
    )
