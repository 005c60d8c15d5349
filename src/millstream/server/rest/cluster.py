"""The cluster over HTTP: the status of its nodes, and copies of a node's store for other nodes."""

from __future__ import annotations

import asyncio

import msgspec
from msgspec import Struct
from starlette.responses import Response

from millstream.cluster.node.status import NodeState
from millstream.cluster.pair import EntriesAsked, Superseded
from millstream.cluster.reports import Role
from millstream.errors import Conflict, Denied, InvalidInput, NotFound
from millstream.server.auth.access import NODE
from millstream.server.auth.need import Need
from millstream.server.cluster.copy_download import DIGEST_HEADER
from millstream.server.cluster.pair import Pairing
from millstream.server.cluster.role import ClusterRole
from millstream.server.rest.ask import Ask
from millstream.server.rest.endpoint import JSON, Endpoints
from millstream.server.rest.logs import Existed

BYTES = "application/octet-stream"
MSGPACK = "application/msgpack"
_entries_request = msgspec.msgpack.Decoder(EntriesAsked)

endpoint = Endpoints("cluster")


class NodeStatus(Struct, kw_only=True):
    """A node, as of its last report."""

    node: str
    address: str
    role: Role
    epoch: int
    """The newest epoch that the node has applied."""
    sequence: int
    """The last entry of the shared log that the node has applied."""
    lag: int
    """How many entries the node is behind the furthest node."""
    heard_s: float
    """Seconds since the node's last report."""
    reason: str
    """Why the node has halted, cannot lead, or leads and cannot write."""
    resumed: str
    """Why the node had halted, before it resumed by itself."""
    version: str


class ClusterStatus(NodeState, frozen=True, kw_only=True):
    """The state of a node, and the reports that it has received from other nodes."""

    handed_on: int
    """Requests and commands that the leader answered for this node."""
    nodes: list[NodeStatus]


class SnapshotQuery(Struct, frozen=True, forbid_unknown_fields=True):
    """The copy and the chunk to download; without `copy`, a new copy is made and described."""

    copy: str = ""
    chunk: int = 0


@endpoint("GET /cluster/status", errors=(404,))
async def get_cluster_status(ask: Ask) -> ClusterStatus:
    """Show the status of the node that answers, and the last reports of all nodes."""
    ask.principal.require(Need("store", "read", ""))
    return status_of(_seat(ask))


@endpoint("GET /cluster/snapshot", media_types=(BYTES,), errors=(404, 416))
async def get_snapshot(ask: Ask, query: SnapshotQuery) -> Response:
    """Download a copy of a node's store in chunks, each with a digest.

    Without `copy`, the node makes a copy and answers with its name and size. Only nodes of the
    cluster may use this endpoint.
    """
    _check_node(ask)
    _seat(ask)
    copies = ask.core.copies
    if not query.copy:
        return Response(msgspec.json.encode(await copies.offer()), media_type=JSON)
    if query.chunk < 0:
        raise InvalidInput(f"chunk is a number from 0 on, not {query.chunk}")
    data, digest = await copies.chunk(query.copy, query.chunk)
    return Response(data, headers={DIGEST_HEADER: digest}, media_type=BYTES)


@endpoint("POST /cluster/entries", raw=(MSGPACK,), errors=(404, 409))
async def give_entries(ask: Ask) -> Response:
    """Send entries of a primary's log to its standby. Only nodes may use this endpoint."""
    pairing = _pairing(ask)
    try:
        request = _entries_request.decode(ask.data)
    except (msgspec.MsgspecError, ValueError) as error:
        raise InvalidInput(f"the body is not a standby's request for entries: {error}") from error
    return Response(msgspec.msgpack.encode(await pairing.give(request)), media_type=MSGPACK)


@endpoint("POST /cluster/supersede", errors=(404, 409))
async def supersede(ask: Ask, body: Superseded) -> Existed:
    """Stop a primary whose standby was promoted. Only nodes may use this endpoint."""
    await asyncio.to_thread(_pairing(ask).supersede, body)
    return Existed(deleted=True)


@endpoint("POST /cluster/promote", errors=(404, 409))
async def promote_standby(ask: Ask) -> ClusterStatus:
    """Promote the standby that answers to primary, in a new epoch.

    Records that the former primary had not yet shipped are in its own file only. The former primary
    is refused when it comes back, and says so.
    """
    ask.principal.require(Need("store", "admin", ""))
    seat = _seat(ask)
    if ask.core.pairing is None:
        raise Conflict(
            "this node is not a standby: nodes of a cluster elect their leader themselves"
        )
    await ask.core.pairing.promote()
    seat.look()
    return status_of(seat)


def _pairing(ask: Ask) -> Pairing:
    _check_node(ask)
    if ask.core.pairing is None:
        raise NotFound("this server neither has a standby nor is one", name="cluster")
    return ask.core.pairing


def status_of(seat: ClusterRole) -> ClusterStatus:
    """Return the state of this node, and the reports that it has received from other nodes."""
    stance = seat.node.state()
    reports = sorted(seat.node.reports().values(), key=lambda entry: entry[0].node)
    furthest = max((report.sequence for report, _ in reports), default=stance.sequence)
    return ClusterStatus(
        **msgspec.structs.asdict(stance),
        handed_on=seat.handed_on,
        nodes=[
            NodeStatus(
                node=report.node,
                address=report.address,
                role=report.role,
                epoch=report.epoch,
                sequence=report.sequence,
                lag=max(0, furthest - report.sequence),
                heard_s=age_s,
                reason=report.reason,
                resumed=report.resumed,
                version=report.version,
            )
            for report, age_s in reports
        ],
    )


def _check_node(ask: Ask) -> None:
    if ask.principal is not NODE:
        raise Denied(
            "only a node of the cluster may use this endpoint: it concerns the complete store",
            noun="store",
            action="admin",
            name="",
        )


def _seat(ask: Ask) -> ClusterRole:
    if ask.core.seat is None:
        raise NotFound(
            "this server is not a node of a cluster; `millstream serve --node` starts a node",
            name="cluster",
        )
    return ask.core.seat
