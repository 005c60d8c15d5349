"""A server of a pair: a primary that ships its entries, or a standby that applies them.

A promoted standby notifies the former primary until that one answers. The former primary then
stops, and is refused when it starts again.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from pathlib import Path
from typing import Any

import msgspec

from millstream import __version__
from millstream.clock import Clock, SystemClock
from millstream.cluster import entry as entries
from millstream.cluster.node.node import Node
from millstream.cluster.node.status import NodeState
from millstream.cluster.pair import (
    PRIMARY_SETTINGS,
    STANDBY_SETTINGS,
    EntriesAsked,
    EntriesGiven,
    OwnLog,
    PrimaryLog,
    Superseded,
    check_not_superseded,
    note_superseded,
    write_mark,
)
from millstream.cluster.reports import LocalReportChannel, NodeReport
from millstream.cluster.settings import NodeSettings
from millstream.cluster.shared_log import Gone, Unreachable
from millstream.engine.open import open_engine
from millstream.engine.protocol import Engine
from millstream.errors import Conflict
from millstream.format import keys
from millstream.remote.address import parse_address
from millstream.remote.http import BrokenHttp, ask
from millstream.server.cluster.copy_download import Fetcher

ENTRIES = "/cluster/entries"
SUPERSEDE = "/cluster/supersede"
MSGPACK = "application/msgpack"
ASK_S = 10.0
WAIT_S_MAX = 5.0
TELL_S = 1.0
"""The interval in which a promoted node tries to notify the former primary."""

_logger = logging.getLogger("millstream.cluster")
_entries_answer = msgspec.msgpack.Decoder(EntriesGiven)
_encode = msgspec.msgpack.Encoder().encode


class Pairing:
    """One server of a pair. It exists before the server and makes the server's node."""

    def __init__(
        self,
        file: Path,
        *,
        name: str,
        key: str,
        standby_of: str = "",
        address: str = "",
        ca: str = "",
        file_mode: int | None = None,
        clock: Clock | None = None,
        settings: NodeSettings | None = None,
    ) -> None:
        """`standby_of` is the primary's address; empty for a primary. Both servers have the same
        `key`.

        `address` is the address for other servers, if it differs from the server's own address.
        """
        self.key = key
        self._file, self._name, self.ca = file, name, ca
        self._of, self._address = standby_of, address
        self._file_mode, self._clock = file_mode, clock or SystemClock()
        self._settings = settings
        self._log: OwnLog | None = None
        """The log of a node that leads; None for a standby."""
        self._channel = LocalReportChannel(self._clock.seconds)
        self._node: Node | None = None
        self._over = threading.Event()
        self._telling: threading.Thread | None = None

    @property
    def primary(self) -> str:
        """The address of a standby's primary; empty for a primary, also for a promoted one."""
        return "" if self._log is not None else self._of

    @property
    def node(self) -> Node:
        """The node; `make_node` creates it."""
        assert self._node is not None, "a pairing has a node once its server runs"
        return self._node

    def make_node(self, url: str) -> Node:
        """Create the node of a server. Raises `CannotOpen` if another node was promoted in its
        place."""
        check_not_superseded(self._file)
        engine = open_engine(self._file, clock=self._clock, file_mode=self._file_mode)
        if self._of and not self._mark.exists():
            self._node = self._make_standby(url, engine)
        else:
            self._log = OwnLog(_sequence_of(engine))
            self._node = self._make(url, engine, self._log, self._channel, PRIMARY_SETTINGS)
            if self._of:
                self._tell_former()
        return self._node

    def _make_standby(self, url: str, engine: Engine) -> Node:
        log = PrimaryLog(
            f"the shared log of {self._of}", self._name, self._ask, self._clock.seconds
        )
        return self._make(url, engine, log, log, STANDBY_SETTINGS)

    def _make(
        self, url: str, engine: Engine, log: Any, channel: Any, settings: NodeSettings
    ) -> Node:
        return Node(
            self._name,
            self._address or url,
            engine,
            log,
            channel,
            clock=self._clock,
            settings=self._settings or settings,
            snapshots=self._fetch,
            version=__version__,
        )

    def close(self) -> None:
        """Stop to notify the former primary."""
        self._over.set()
        if self._telling is not None:
            self._telling.join()

    # The primary ships entries.

    async def give(self, request: EntriesAsked) -> EntriesGiven:
        """Return durable entries for the standby; wait if there are none yet."""
        return await asyncio.to_thread(self._give, request)

    def _give(self, request: EntriesAsked) -> EntriesGiven:
        log, member = self._log, self.node.member
        if log is None:
            raise Conflict(f"node {self._name} is a standby itself: follow its primary")
        self._channel.post(request.standby)
        wait_s = min(request.wait_s, WAIT_S_MAX)
        with member.changed:
            member.changed.wait_for(lambda: member.noted.sequence > request.after, wait_s)
        # Ship only entries that this node has noted as durable: a standby must never be ahead of
        # the file of its primary.
        noted = member.noted.sequence
        try:
            log_entries = log.read(request.after, bytes_max=request.bytes_max, timeout_s=0)
        except Gone:
            log_entries = []
        report = NodeReport(
            node=self._name,
            address=self.node.address,
            role="leader",
            epoch=member.position.epoch,
            sequence=noted,
            hash=b"",
            version=__version__,
        )
        first = log.held(timeout_s=0).first
        shipped = [(sequence, data) for sequence, data in log_entries if sequence <= noted]
        return EntriesGiven(report, first, shipped)

    def supersede(self, by: Superseded) -> None:
        """Stop this primary, because its standby was promoted; note the entries the standby lacks.

        Raises `Conflict` if this node was promoted later: then the other node must stop.
        """
        if (promotion := self._promoted()) is not None and promotion.epoch > by.epoch:
            raise Conflict(
                f"node {self._name} was promoted in epoch {promotion.epoch}, after {by.node} in "
                f"epoch {by.epoch}: {by.node} must stop"
            )
        member = self.node.member
        with member.turn:
            reason = note_superseded(self._file, by, member.noted.sequence)
            member.halt(reason)
        _logger.error("superseded", extra={"by": by.address, "reason": reason})

    # The standby applies entries, and is promoted.

    def _ask(self, request: EntriesAsked) -> EntriesGiven:
        try:
            body = self._post(ENTRIES, _encode(request), ASK_S + request.wait_s)
            return _entries_answer.decode(body)
        except msgspec.MsgspecError as error:
            raise Unreachable(f"{self._of} sends no entries: {error}") from error

    def _fetch(self, source: NodeReport, path: Path) -> None:
        """Download a copy of the primary.

        The configured address is used: the primary's own address may not be reachable from here.
        """
        Fetcher(self.key, ca=self.ca)(msgspec.structs.replace(source, address=self._of), path)

    async def promote(self) -> NodeState:
        """Promote this standby. Raises `Conflict` if it is no standby, or has no rows."""
        return await asyncio.to_thread(self._promote)

    def _promote(self) -> NodeState:
        if self._log is not None or not self._of:
            raise Conflict(f"node {self._name} is not a standby: there is nothing to promote")
        logs: list[OwnLog] = []

        def make(before: entries.Position, last: int) -> OwnLog:
            """Create the new primary's log. The mark is written first: it must survive a crash."""
            logs.append(OwnLog(last))
            self._note_promoted(before)
            return logs[0]

        try:
            self.node.promote(make, self._channel)
        except BaseException:
            if logs:
                self._mark.unlink(missing_ok=True)
            raise
        self._log = logs[0]
        self._tell_former()
        return self.node.state()

    def _note_promoted(self, before: entries.Position) -> None:
        """Note on disk that this node is a primary, and the last entry of the former primary it
        has."""
        mark = Superseded(self._name, self.node.address, before.epoch + 1, before.sequence)
        write_mark(self._mark, mark)
        _logger.warning("promoted", extra={"epoch": mark.epoch, "sequence": mark.sequence})

    def _promoted(self) -> Superseded | None:
        """Return the mark of this node's promotion, or None."""
        if not self._mark.exists():
            return None
        return msgspec.json.decode(self._mark.read_bytes(), type=Superseded)

    @property
    def _mark(self) -> Path:
        return self._file.with_name(f"{self._file.name}.promoted")

    def _tell_former(self) -> None:
        """Notify the former primary, as soon as it can be reached, that it must stop."""
        self._telling = threading.Thread(target=self._tell, name="millstream-tell", daemon=True)
        self._telling.start()

    def _tell(self) -> None:
        body = self._mark.read_bytes()
        while not self._over.is_set():
            try:
                self._post(SUPERSEDE, body, ASK_S, "application/json")
                return
            except Unreachable:
                self._over.wait(TELL_S)

    def _post(self, path: str, body: bytes, timeout_s: float, kind: str = MSGPACK) -> bytes:
        address = parse_address(self._of, token=self.key, ca=self.ca, is_handed_on=True)
        try:
            answer = ask(address, "POST", path, body, {"content-type": kind}, timeout_s=timeout_s)
        except BrokenHttp as error:
            raise Unreachable(f"{address.shown}: {error}") from error
        if answer.status != 200:
            raise Unreachable(f"{address.shown} answers {answer.status}: {answer.excerpt}")
        return answer.body


def _sequence_of(engine: Engine) -> int:
    with engine.read() as snapshot:
        return entries.decode_position(snapshot.get(keys.CLUSTER_KEY)).sequence
