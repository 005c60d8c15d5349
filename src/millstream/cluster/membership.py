"""A server's membership: its node, and all that the node stands on, begun and ended together.

The NATS server, if the node runs its own; the connection to NATS; the shared log and the reports on
it; the store's own rows; and what keeps the shared log small.
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
from millstream.cluster.node.trimming import Trimmer
from millstream.cluster.peers import NATS_USER, Peer, check_name, derive, own
from millstream.cluster.reports import Bulletin
from millstream.cluster.settings import NodeSettings
from millstream.cluster.shared_log import Unreachable
from millstream.engine.protocol import Engine
from millstream.errors import CannotOpen, InvalidInput
from millstream.format import keys

if TYPE_CHECKING:
    from millstream.cluster.nats.connection import NatsLine
    from millstream.cluster.nats.jetstream import JetStreamLog
    from millstream.cluster.nats.reports import Reporting

_logger = logging.getLogger("millstream.cluster")

WAIT_S = 5.0
"""How long the other nodes are waited for before that is written down; it is waited on."""
LISTEN_S = 1.2
"""How long a new node listens for nodes with a history: each reports twice a second."""
GIVE_UP_S = 30.0
"""How long a new node waits for a NATS that others run; a service manager then starts it again."""
REPLICAS = (1, 3, 5)
PLAIN = (
    "commits cross the network unencrypted between NATS servers: use a private network, or give every "
    "node --cluster-certificate, --cluster-key and --cluster-ca"
)
CLUSTER = "main"
"""What a cluster is called if it has no name."""


class Plan(Struct, frozen=True):
    """What a node is told about its cluster."""

    node: str
    address: str
    """Where clients and other nodes reach it."""
    peers: tuple[Peer, ...] = ()
    """The nodes, if each runs a NATS server of its own."""
    nats: NatsAccess | None = None
    """The NATS servers, if another runs them."""
    tls: ClusterTls = ClusterTls()
    """What the traffic with NATS servers, and between them, is encrypted with."""
    cluster: str = CLUSTER
    secret: str = ""
    members: int = 3
    """How many nodes there are; a majority of them must have what is trimmed."""
    replicas: int = 3
    """How many NATS servers keep the shared log."""

    def check(self) -> None:
        """Raises `InvalidInput` for what cannot be a cluster."""
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
        """Whether NATS servers of nodes send commits to other machines unencrypted."""
        return not self.tls.is_given and not all(one.is_here_only for one in self.peers)

    @property
    def node_key(self) -> str:
        """What nodes show each other over HTTP; empty without a secret."""
        return derive(self.secret, "nodes") if self.secret else ""

    def connect(self, name: str) -> NatsLine:
        """A line to the cluster's NATS servers, to this node's own first."""
        from millstream.cluster.nats.connection import NatsLine

        return NatsLine(self.access(), name=name)

    def access(self) -> NatsAccess:
        """The cluster's NATS servers, this node's own first, and what is shown to them."""
        if self.nats is not None:
            return self.nats
        ordered = sorted(self.peers, key=lambda one: one.name != self.node)
        return NatsAccess(
            tuple(one.nats_url for one in ordered),
            user=NATS_USER if self.secret else "",
            password=derive(self.secret, "nats") if self.secret else "",
            tls=self.tls if self.tls.is_given else None,
            is_tls_first=True,
        )


def replicas_of(nodes: int) -> int:
    """How many copies the shared log has if each of so many nodes can keep one."""
    return max(count for count in REPLICAS if count <= nodes)


class Membership:
    """All that a node stands on. Close the store over the node before it is stopped."""

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
        """Nothing is started or opened yet."""
        plan.check()
        self.plan = plan
        self._file, self._file_mode = file, file_mode
        self._clock = clock or SystemClock()
        self._settings = settings or NodeSettings(yields_damaged=plan.members > 1)
        self._fetch, self._version = fetch, version
        self._stack = ExitStack()

    def prepare(self) -> Node:
        """Start all that the node stands on; the node itself is then started by its server.

        A node without a history waits until a majority of the NATS servers is there. Raises
        `CannotOpen` if the file cannot be a node's.
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
        log, bulletin = self._join(is_new=_is_new(engine))
        node = Node(
            self.plan.node,
            self.plan.address,
            engine,
            log,
            bulletin,
            clock=self._clock,
            settings=self._settings,
            snapshots=self._fetch,
            stream_lead=self._stream_lead(log),
            version=self._version,
        )
        opened.pop_all()  # the node closes it
        trimmer = Trimmer(
            log, bulletin, members=self.plan.members, leads=lambda: not node.engine.read_only
        )
        self._stack.callback(trimmer.stop)
        self._stack.callback(node.stop)
        trimmer.start()
        return node

    def _stream_lead(self, log: JetStreamLog) -> StreamLead | None:
        """Of nodes with servers of their own: which machines other servers share is not known."""
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

    def _join(self, *, is_new: bool) -> tuple[JetStreamLog, Reporting]:
        """The shared log. Only a node without a history makes it: else its loss would be hidden."""
        from millstream.cluster.nats.jetstream import JetStreamLog
        from millstream.cluster.nats.reports import Reporting

        self._line = self.plan.connect(self.plan.node)
        self._stack.callback(self._line.close)
        log = JetStreamLog(self._line, self.plan.cluster, replicas=self.plan.replicas)
        bulletin = Reporting(self._line, self.plan.cluster, clock=self._clock)
        if is_new:
            self._found(log, bulletin)
        return log, bulletin

    def _found(self, log: JetStreamLog, bulletin: Bulletin) -> None:
        """Make the shared log, once there are enough servers, unless other nodes have a history.

        Raises `CannotOpen` if NATS refuses.
        """
        from millstream.cluster.nats.jetstream import Unfit

        deadline_s = self._clock.seconds() + GIVE_UP_S
        while True:
            try:
                log.ready(timeout_s=WAIT_S)
                threading.Event().wait(LISTEN_S)
                if not any(report.sequence for report, _ in bulletin.reports().values()):
                    log.found(timeout_s=WAIT_S)
                return
            except Unreachable as error:
                why = self._line.refusal or str(error)
                is_hopeless = isinstance(error, Unfit) or bool(self._line.refusal)
                if is_hopeless or (self.plan.nats and self._clock.seconds() > deadline_s):
                    raise CannotOpen(why, path=self._line.place) from error
                _logger.warning("waiting_for_nodes", extra={"why": why})


def _check_file(engine: Engine) -> None:
    """A node's rows come from the cluster alone."""
    if _is_new(engine) and engine.last_seq() > 0:
        raise CannotOpen(
            f"{engine.place} is a store by itself, and a node begins with an empty one: name another "
            "file, and copy this store into the cluster with `millstream sync`",
            path=engine.place,
        )


def _is_new(engine: Engine) -> bool:
    with engine.read() as snapshot:
        return snapshot.get(keys.CLUSTER_KEY) is None
