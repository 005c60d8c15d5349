"""The cluster over HTTP: how its nodes stand, and copies of a node's store for other nodes."""

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
from millstream.server.cluster.fetching import DIGEST_HEADER
from millstream.server.cluster.pairing import Pairing
from millstream.server.cluster.role import Seat
from millstream.server.rest.ask import Ask
from millstream.server.rest.endpoint import JSON, Endpoints
from millstream.server.rest.logs import Existed

BYTES = "application/octet-stream"
MSGPACK = "application/msgpack"
_taken = msgspec.msgpack.Decoder(EntriesAsked)

endpoint = Endpoints("cluster")


class NodeStatus(Struct, kw_only=True):
    """A node, as its last report says."""

    node: str
    address: str
    role: Role
    epoch: int
    """The newest epoch that it has applied."""
    sequence: int
    """The last entry of the shared log that it has applied."""
    lag: int
    """Entries that the furthest node has more."""
    heard_s: float
    """Seconds since its last report."""
    reason: str
    """Why it has halted, cannot lead, or leads and cannot write."""
    resumed: str
    """Why it had halted last, before it went on by itself."""
    version: str


class ClusterStatus(NodeState, frozen=True, kw_only=True):
    """How a node stands, and what it has heard of the others."""

    handed_on: int
    """Requests and commands that the leading node answered for this one."""
    nodes: list[NodeStatus]


class SnapshotQuery(Struct, frozen=True, forbid_unknown_fields=True):
    """Which chunk of which copy; without a copy, one is made and described."""

    copy: str = ""
    chunk: int = 0


@endpoint("GET /cluster/status", errors=(404,))
async def get_cluster_status(ask: Ask) -> ClusterStatus:
    """How the node that is asked stands in its cluster, and what it has heard of the others."""
    ask.principal.require(Need("store", "read", ""))
    return status_of(_seat(ask))


@endpoint("GET /cluster/snapshot", media_types=(BYTES,), errors=(404, 416))
async def get_snapshot(ask: Ask, query: SnapshotQuery) -> Response:
    """A copy of a node's store, for another node, in chunks with a digest each.

    Without `copy` one is made, and its name and size are answered. Only nodes of the cluster may
    ask for it.
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
    """Entries of a primary's log, for its standby. Only nodes may ask for them."""
    pairing = _pairing(ask)
    try:
        taken = _taken.decode(ask.data)
    except (msgspec.MsgspecError, ValueError) as error:
        raise InvalidInput(f"this is no question of a standby: {error}") from error
    return Response(msgspec.msgpack.encode(await pairing.give(taken)), media_type=MSGPACK)


@endpoint("POST /cluster/supersede", errors=(404, 409))
async def supersede(ask: Ask, body: Superseded) -> Existed:
    """Tell a primary that its standby was promoted: it stops. Only nodes may tell it."""
    await asyncio.to_thread(_pairing(ask).supersede, body)
    return Existed(deleted=True)


@endpoint("POST /cluster/promote", errors=(404, 409))
async def promote_standby(ask: Ask) -> ClusterStatus:
    """Make the standby that is asked the primary, in a new epoch.

    What the former primary had not yet shipped is in its own file alone; it is refused when it comes
    back, and says so.
    """
    ask.principal.require(Need("store", "admin", ""))
    seat = _seat(ask)
    if ask.core.pairing is None:
        raise Conflict("this node is no standby: nodes of a cluster elect their leader themselves")
    await ask.core.pairing.promote()
    seat.look()
    return status_of(seat)


def _pairing(ask: Ask) -> Pairing:
    _check_node(ask)
    if ask.core.pairing is None:
        raise NotFound("this server has no standby, and is none", name="cluster")
    return ask.core.pairing


def status_of(seat: Seat) -> ClusterStatus:
    """What a seat knows."""
    stance = seat.node.state()
    reports = sorted(seat.node.reports().values(), key=lambda one: one[0].node)
    furthest = max((report.sequence for report, _ in reports), default=stance.sequence)
    return ClusterStatus(
        **msgspec.structs.asdict(stance),
        handed_on=seat.handed_on,
        nodes=[
            NodeStatus(
                node=one.node,
                address=one.address,
                role=one.role,
                epoch=one.epoch,
                sequence=one.sequence,
                lag=max(0, furthest - one.sequence),
                heard_s=age_s,
                reason=one.reason,
                resumed=one.resumed,
                version=one.version,
            )
            for one, age_s in reports
        ],
    )


def _check_node(ask: Ask) -> None:
    if ask.principal is not NODE:
        raise Denied(
            "only a node of the cluster may ask for this: it is about the whole store",
            noun="store",
            action="admin",
            name="",
        )


def _seat(ask: Ask) -> Seat:
    if ask.core.seat is None:
        raise NotFound(
            "this server is no node of a cluster; `millstream serve --node` makes one",
            name="cluster",
        )
    return ask.core.seat
