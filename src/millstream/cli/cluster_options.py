"""The options of clusters: which cluster a command means, and which node a server is."""

from __future__ import annotations

import os
import platform
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from millstream.cli.declared import Fields
from millstream.engine.place import is_address, is_bucket
from millstream.errors import CannotOpen
from millstream.server.settings import Settings

if TYPE_CHECKING:
    from millstream.cluster.membership import Plan

SECRET = "MILLSTREAM_CLUSTER_SECRET"


@dataclass(frozen=True)
class ClusterPlace:
    """The options that name a cluster."""

    peers: Annotated[
        str | None,
        typer.Option(
            metavar="NAME=HOST[:PORT],…",
            help="All nodes. Each node runs a NATS server on the two ports after its own.",
        ),
    ] = None
    cluster: Annotated[
        str | None,
        typer.Option(
            metavar="nats://HOST:PORT,…",
            help="Existing NATS servers; USER:PASSWORD@ or TOKEN@ before HOST.",
        ),
    ] = None
    cluster_name: Annotated[
        str, typer.Option(metavar="NAME", help="The cluster's name, if NATS serves several.")
    ] = "main"
    cluster_secret_file: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="The secret that all nodes share.", show_default=f"${SECRET}"
        ),
    ] = None
    cluster_certificate: Annotated[
        str, typer.Option(metavar="FILE", help="PEM file of this machine, for TLS with NATS.")
    ] = ""
    cluster_key: Annotated[
        str, typer.Option(metavar="FILE", help="The key of the certificate, PEM.")
    ] = ""
    cluster_ca: Annotated[
        str,
        typer.Option(metavar="FILE", help="The CA that signed the certificates of the nodes, PEM."),
    ] = ""
    members: Annotated[
        int, typer.Option(metavar="N", min=1, help="With --cluster: how many nodes there are.")
    ] = 3
    replicas: Annotated[
        int,
        typer.Option(metavar="N", help="With --cluster: NATS servers that store the log: 1, 3, 5."),
    ] = 3

    @property
    def is_named(self) -> bool:
        """Whether the options name a cluster."""
        return bool(self.peers or self.cluster)

    def secret(self) -> str:
        """Return the shared secret of the nodes; empty without a secret."""
        if self.cluster_secret_file is None:
            return os.environ.get(SECRET, "")
        secret = self.cluster_secret_file.read_text(encoding="utf-8").strip()
        if not secret:
            raise CannotOpen(
                f"{self.cluster_secret_file} is empty: write a secret to it, the same for all nodes, "
                "such as the output of `openssl rand -hex 32`",
                path=str(self.cluster_secret_file),
            )
        return secret

    def plan(self, node: str = "", address: str = "") -> Plan:
        """Return the plan of the cluster for one of its nodes, or, without a name, for a
        visitor."""
        from millstream.cluster.membership import Plan, replicas_of
        from millstream.cluster.nats.access import ClusterTls, parse_nats
        from millstream.cluster.peers import own, parse_peers

        secret = self.secret()
        tls = ClusterTls(self.cluster_certificate, self.cluster_key, self.cluster_ca)
        if self.peers is None:
            return Plan(
                node or "visitor",
                address,
                nats=parse_nats(self.cluster or "", tls),
                tls=tls,
                cluster=self.cluster_name,
                secret=secret,
                members=self.members,
                replicas=self.replicas,
            )
        peers = parse_peers(self.peers)
        this_node = own(peers, node) if node else peers[0]
        return Plan(
            this_node.name,
            address or this_node.address,
            peers=peers,
            tls=tls,
            cluster=self.cluster_name,
            secret=secret,
            members=len(peers),
            replicas=replicas_of(len(peers)),
        )


@dataclass(frozen=True)
class NodePlace(ClusterPlace):
    """The options that make a server a node of a cluster."""

    node: Annotated[str | None, typer.Option(metavar="NAME", help="Be this node of a cluster.")] = (
        None
    )
    address: Annotated[
        str | None,
        typer.Option(
            metavar="URL",
            help="The address of this node for others.",
            show_default="from --peers, or --host",
        ),
    ] = None

    primary: Annotated[bool, typer.Option("--primary", help="Let a standby copy all commits.")] = (
        False
    )
    standby_of: Annotated[
        str | None,
        typer.Option(metavar="URL", help="Follow the primary at this address, and serve reads."),
    ] = None

    @property
    def is_node(self) -> bool:
        """Whether the options make the server a node of a cluster, or one of a pair."""
        return bool(self.is_named or self.node or self.primary or self.standby_of)

    def settings(self, port: int | None, fields: Fields) -> Settings:
        """Return the server's settings; a node in --peers listens at its address there."""
        from millstream.cluster.peers import PORT, own, parse_peers

        if self.node is None or self.peers is None:
            return Settings(port=PORT if port is None else port, **fields)
        peers = parse_peers(self.peers)
        this_node = own(peers, self.node)
        if port not in (None, this_node.port):
            raise typer.BadParameter(
                f"--peers gives node {this_node.name} the port {this_node.port}, but --port is {port}"
            )
        scheme = "https" if fields.get("certificate") else "http"
        peer_origins = [
            peer.address.replace("http", scheme, 1) for peer in peers if peer is not this_node
        ]
        # A page that loses its node continues with another node, and needs the permission.
        origins = (*fields.get("origins", ()), *peer_origins)
        settings = {
            "host": this_node.host.strip("[]"),
            **fields,
            "port": this_node.port,
            "origins": origins,
        }
        return Settings(**settings)

    def node_plan(self, settings: Settings) -> Plan | None:
        """Return the plan of a node; None for a server without a cluster."""
        if not self.is_named and (self.node is None or self.primary or self.standby_of):
            return None
        if self.node is None or not self.is_named:
            raise typer.BadParameter(
                "a node needs a name and a cluster: --node NAME, and --peers or --cluster"
            )
        scheme = "https" if settings.certificate else "http"
        plain = "" if self.peers or self.address else _advertised_address(settings, scheme)
        plan = self.plan(self.node, self.address or plain)
        if self.peers and not self.address and scheme == "https":
            plan = self.plan(self.node, plan.address.replace("http:", "https:", 1))
        if not plan.secret and not _is_on_this_machine(plan, settings):
            raise typer.BadParameter(
                "nodes on several machines need a shared secret: write it to a file, the same on all of "
                f"them, and name the file with --cluster-secret-file, or set {SECRET}"
            )
        return plan


@contextmanager
def member_of(plan: Plan | None, file: str | Path, *, file_mode: int) -> Iterator[dict[str, Any]]:
    """Yield the arguments that make a server a node; empty without a plan."""
    if plan is None:
        yield {}
        return
    from millstream import __version__
    from millstream.cluster.membership import Membership
    from millstream.server.cluster.copy_download import Fetcher
    from millstream.server.cluster.role import KEY_OF_THIS_MACHINE

    if is_bucket(file):
        raise typer.BadParameter("a node stores its rows in its own file, not in a bucket")
    try:
        membership = Membership(
            Path(file),
            plan,
            file_mode=file_mode,
            fetch=Fetcher(plan.node_key or KEY_OF_THIS_MACHINE, ca=plan.tls.ca or None),
            version=__version__,
        )
        node = membership.prepare()
    except ModuleNotFoundError as error:
        raise typer.BadParameter(
            f"a cluster needs the package {error.name}: pip install 'millstream[cluster]'"
        ) from error
    try:
        yield {
            "make_node": lambda _: node,
            "cluster_key": plan.node_key,
            "cluster_ca": plan.tls.ca,
        }
    finally:
        membership.stop()


def pair_of(
    cluster: NodePlace, settings: Settings, file: str | Path, *, file_mode: int
) -> dict[str, Any]:
    """Return the arguments that make a server a primary or a standby; empty for another server."""
    if not cluster.primary and cluster.standby_of is None:
        return {}
    if cluster.is_named or is_bucket(file):
        raise typer.BadParameter(
            "a pair has no quorum and stores its rows in files: --primary and --standby-of cannot be "
            "combined with --peers, --cluster or a bucket"
        )
    if cluster.standby_of is not None and not is_address(cluster.standby_of):
        raise typer.BadParameter("--standby-of must be the primary's address: http://HOST:PORT")
    from millstream.cluster.peers import derive
    from millstream.server.cluster.pair import Pairing
    from millstream.server.cluster.role import KEY_OF_THIS_MACHINE

    secret = cluster.secret()
    if not secret and not settings.is_loopback():
        raise typer.BadParameter(
            "servers on two machines need a shared secret: write it to a file, the same on both, "
            f"and name the file with --cluster-secret-file, or set {SECRET}"
        )
    return {
        "pairing": Pairing(
            Path(file),
            name=cluster.node or f"{platform.node()}:{settings.port}",
            key=derive(secret, "nodes") if secret else KEY_OF_THIS_MACHINE,
            standby_of=cluster.standby_of or "",
            address=cluster.address or "",
            ca=cluster.cluster_ca,
            file_mode=file_mode,
        )
    }


def _advertised_address(settings: Settings, scheme: str) -> str:
    """Derive the advertised address from the listening address."""
    host = settings.host
    if not settings.port or host in ("0.0.0.0", "::", ""):
        raise typer.BadParameter(
            f"other nodes cannot reach --host {host or chr(39) * 2} --port {settings.port}: name "
            f"the address for them with --address {scheme}://HOST:PORT"
        )
    return f"{scheme}://{f'[{host}]' if ':' in host else host}:{settings.port}"


def _is_on_this_machine(plan: Plan, settings: Settings) -> bool:
    return settings.is_loopback() and all(peer.is_here_only for peer in plan.peers)
