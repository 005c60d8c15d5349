"""The membership of a server in a cluster: its node, and the services under the node.

The services start and stop together: the NATS server, if the node runs its own; the connection to
NATS; the shared log and the reports; the store's rows; and the trimming of the shared log.
"""

from __future__ import annotations

import logging
import threading
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import Struct

from millstream.clock import Clock, SystemClock
from millstream.cluster.nats.access import ClusterTls, NatsAccess
from millstream.cluster.nats.stream_leader import StreamLead
from millstream.cluster.node.catch_up import Fetch
from millstream.cluster.node.node import Node
from millstream.cluster.node.snapshots import open_member
from millstream.cluster.node.trimmer import Trimmer
from millstream.cluster.peers import NATS_USER, Peer, check_name, derive, own
from millstream.cluster.reports import ReportChannel
from millstream.cluster.settings import NodeSettings
from millstream.cluster.shared_log import Unreachable
from millstream.engine.protocol import Engine
from millstream.errors import CannotOpen, InvalidInput
from millstream.format import keys

if TYPE_CHECKING:
    from millstream.cluster.nats.connection import NatsConnection
    from millstream.cluster.nats.jetstream import JetStreamLog
    from millstream.cluster.nats.reports import NatsReportChannel

_logger = logging.getLogger("millstream.cluster")

WAIT_S = 5.0
"""How long to wait for other nodes before a log line says so; the waiting goes on."""
LISTEN_S = 1.2
"""How long a new node listens for nodes with a history: each reports twice a second."""
GIVE_UP_S = 30.0
"""How long a new node waits for an external NATS. A service manager restarts it later."""
REPLICAS = (1, 3, 5)
PLAIN = (
    "commits cross the network unencrypted between NATS servers: use a private network, or give every "
    "node --cluster-certificate, --cluster-key and --cluster-ca"
)
CLUSTER = "main"
"""The default name of a cluster."""


class Plan(Struct, frozen=True):
    """The configuration of a node in its cluster."""

    node: str
    address: str
    """The address for clients and other nodes."""
    peers: tuple[Peer, ...] = ()
    """The nodes, if each runs its own NATS server."""
    nats: NatsAccess | None = None
    """The NATS servers, if they are external."""
    tls: ClusterTls = ClusterTls()
    """The certificates for the traffic with NATS servers, and between them."""
    cluster: str = CLUSTER
    secret: str = ""
    members: int = 3
    """The number of nodes; a majority must have an entry before it is trimmed."""
    replicas: int = 3
    """How many NATS servers store the shared log."""

    def check(self) -> None:
        """Raise `InvalidInput` for an impossible configuration."""
        check_name(self.node)
        check_name(self.cluster)
        if bool(self.peers) == bool(self.nats):
            raise InvalidInput("a node has either --peers or --cluster nats://HOST:PORT")
        self.tls.check(serves=bool(self.peers))
        if self.replicas not in REPLICAS:
            raise InvalidInput(f"the shared log has 1, 3 or 5 replicas, not {self.replicas}")
        if self.peers:
            own(self.peers, self.node)
            if len(self.peers) == 2:
                raise InvalidInput(
                    "two nodes have no majority when one is lost: name three in --peers, or run a "
                    "standby without a quorum: `millstream serve --standby-of URL`"
                )

    @property
    def is_open(self) -> bool:
        """Whether the nodes' NATS servers send commits to other machines unencrypted."""
        return not self.tls.is_given and not all(peer.is_here_only for peer in self.peers)

    @property
    def node_key(self) -> str:
        """Return the key of nodes for HTTP; empty without a secret."""
        return derive(self.secret, "nodes") if self.secret else ""

    def connect(self, name: str) -> NatsConnection:
        """Connect to the cluster's NATS servers, to this node's own server first."""
        from millstream.cluster.nats.connection import NatsConnection

        return NatsConnection(self.access(), name=name)

    def access(self) -> NatsAccess:
        """Return the cluster's NATS servers, this node's own first, and their credentials."""
        if self.nats is not None:
            return self.nats
        ordered = sorted(self.peers, key=lambda peer: peer.name != self.node)
        return NatsAccess(
            tuple(peer.nats_url for peer in ordered),
            user=NATS_USER if self.secret else "",
            password=derive(self.secret, "nats") if self.secret else "",
            tls=self.tls if self.tls.is_given else None,
            is_tls_first=True,
        )


def replicas_of(nodes: int) -> int:
    """Return the number of replicas of the shared log if each node can keep a replica."""
    return max(count for count in REPLICAS if count <= nodes)


class Membership:
    """The services under a node. Close the store over the node before stopping them."""

    def __init__(
        self,
        file: Path,
        plan: Plan,
        *,
        file_mode: int | None = None,
        clock: Clock | None = None,
        settings: NodeSettings | None = None,
        fetch: Fetch | None = None,
        version: str = "",
    ) -> None:
        """Prepare; nothing is started or opened yet."""
        plan.check()
        self.plan = plan
        self._file, self._file_mode = file, file_mode
        self._clock = clock or SystemClock()
        self._settings = settings or NodeSettings(yields_damaged=plan.members > 1)
        self._fetch, self._version = fetch, version
        self._stack = ExitStack()

    def prepare(self) -> Node:
        """Start the services of the node. The server then starts the node itself.

        A node without a history waits until a majority of the NATS servers is running. Raises
        `CannotOpen` if the file does not belong to a node.
        """
        try:
            return self._prepare()
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        """End everything, in the reverse order; a second call does nothing."""
        self._stack.close()

    def _prepare(self) -> Node:
        engine = self._open()
        opened = self._stack.enter_context(ExitStack())
        opened.callback(engine.close)
        if self.plan.peers:
            self._start_server()
        log, channel = self._join(is_new=_is_new(engine))
        node = Node(
            self.plan.node,
            self.plan.address,
            engine,
            log,
            channel,
            clock=self._clock,
            settings=self._settings,
            snapshots=self._fetch,
            stream_lead=self._stream_lead(log),
            version=self._version,
        )
        opened.pop_all()  # the node closes the engine
        trimmer = Trimmer(
            log, channel, members=self.plan.members, leads=lambda: not node.engine.read_only
        )
        self._stack.callback(trimmer.stop)
        self._stack.callback(node.stop)
        trimmer.start()
        return node

    def _stream_lead(self, log: JetStreamLog) -> StreamLead | None:
        """Return the placement of the stream's lead, for nodes with their own NATS servers.

        Which machines external servers share is unknown.
        """
        if len(self.plan.peers) < 2:
            return None
        return StreamLead(log, self.plan.node, clock=self._clock)

    def _open(self) -> Engine:
        self._file.parent.mkdir(parents=True, exist_ok=True)
        engine = open_member(self._file, clock=self._clock, file_mode=self._file_mode)
        try:
            _check_file(engine)
        except BaseException:
            engine.close()
            raise
        return engine

    def _start_server(self) -> None:
        from millstream.cluster.nats.server import NatsServer

        folder = self._file.with_name(f"{self._file.name}.nats")
        me = own(self.plan.peers, self.plan.node)
        if self.plan.is_open:
            _logger.warning("nats_not_encrypted", extra={"why": PLAIN})
        server = NatsServer(me, self.plan.peers, folder, secret=self.plan.secret, tls=self.plan.tls)
        self._stack.callback(server.stop)
        server.start()

    def _join(self, *, is_new: bool) -> tuple[JetStreamLog, NatsReportChannel]:
        """Open the shared log; only a node without a history creates it.

        Another node must not: a new log would hide the loss of the old one.
        """
        from millstream.cluster.nats.jetstream import JetStreamLog
        from millstream.cluster.nats.reports import NatsReportChannel

        self._connection = self.plan.connect(self.plan.node)
        self._stack.callback(self._connection.close)
        log = JetStreamLog(self._connection, self.plan.cluster, replicas=self.plan.replicas)
        channel = NatsReportChannel(self._connection, self.plan.cluster, clock=self._clock)
        if is_new:
            self._found(log, channel)
        return log, channel

    def _found(self, log: JetStreamLog, channel: ReportChannel) -> None:
        """Create the shared log once enough servers run, unless other nodes have a history.

        Raises `CannotOpen` if NATS refuses.
        """
        from millstream.cluster.nats.jetstream import Unfit

        deadline_s = self._clock.seconds() + GIVE_UP_S
        while True:
            try:
                log.ready(timeout_s=WAIT_S)
                threading.Event().wait(LISTEN_S)
                if not any(report.sequence for report, _ in channel.reports().values()):
                    log.found(timeout_s=WAIT_S)
                return
            except Unreachable as error:
                why = self._connection.refusal or str(error)
                is_hopeless = isinstance(error, Unfit) or bool(self._connection.refusal)
                if is_hopeless or (self.plan.nats and self._clock.seconds() > deadline_s):
                    raise CannotOpen(why, path=self._connection.place) from error
                _logger.warning("waiting_for_nodes", extra={"why": why})


def _check_file(engine: Engine) -> None:
    """Refuse a file with rows that do not come from a cluster."""
    if _is_new(engine) and engine.last_seq() > 0:
        raise CannotOpen(
            f"{engine.place} is a store by itself, and a node begins with an empty one: name another "
            "file, and copy this store into the cluster with `millstream sync`",
            path=engine.place,
        )


def _is_new(engine: Engine) -> bool:
    with engine.read() as snapshot:
        return snapshot.get(keys.CLUSTER_KEY) is None
