"""A server of a pair: a primary that gives what it wrote, or a standby that takes it.

A standby that was promoted tells the former primary so for as long as it takes: that one stops when it
hears of it, and is refused when it is started again.
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
from millstream.server.cluster.fetching import Fetcher

ENTRIES = "/cluster/entries"
SUPERSEDE = "/cluster/supersede"
MSGPACK = "application/msgpack"
ASK_S = 10.0
WAIT_S_MAX = 5.0
TELL_S = 1.0
"""How often a promoted node tries to tell the former primary."""

_logger = logging.getLogger("millstream.cluster")
_given = msgspec.msgpack.Decoder(EntriesGiven)
_encode = msgspec.msgpack.Encoder().encode


class Pairing:
    """One server of a pair; made before the server, which makes its node by it."""

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
        """`standby_of` is the primary's address; empty for a primary. `key` is what both show.

        `address` is where other servers reach this one, if not as it knows itself.
        """
        self.key = key
        self._file, self._name, self.ca = file, name, ca
        self._of, self._address = standby_of, address
        self._file_mode, self._clock = file_mode, clock or SystemClock()
        self._settings = settings
        self._log: OwnLog | None = None
        """The log of a node that leads."""
        self._channel = LocalReportChannel(self._clock.seconds)
        self._node: Node | None = None
        self._over = threading.Event()
        self._telling: threading.Thread | None = None

    @property
    def primary(self) -> str:
        """Where a standby's primary is; empty for a node that was never one, or was promoted."""
        return "" if self._log is not None else self._of

    @property
    def node(self) -> Node:
        """The node, once there is one."""
        assert self._node is not None, "a pairing has a node once its server runs"
        return self._node

    def make_node(self, url: str) -> Node:
        """The node of a server at an address. Raises `CannotOpen` if it was superseded."""
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
        """Tell nobody any more."""
        self._over.set()
        if self._telling is not None:
            self._telling.join()

    # A primary gives.

    async def give(self, taken: EntriesAsked) -> EntriesGiven:
        """Entries that this node has on disk, for its standby; waits for some."""
        return await asyncio.to_thread(self._give, taken)

    def _give(self, taken: EntriesAsked) -> EntriesGiven:
        log, member = self._log, self.node.member
        if log is None:
            raise Conflict(f"node {self._name} is a standby itself: follow its primary")
        self._channel.post(taken.standby)
        wait_s = min(taken.wait_s, WAIT_S_MAX)
        with member.changed:
            member.changed.wait_for(lambda: member.noted.sequence > taken.after, wait_s)
        noted = member.noted.sequence
        try:
            found = log.read(taken.after, bytes_max=taken.bytes_max, timeout_s=0)
        except Gone:
            found = []
        report = NodeReport(
            self._name,
            self.node.address,
            "leader",
            member.position.epoch,
            noted,
            b"",
            version=__version__,
        )
        first = log.held(timeout_s=0).first
        return EntriesGiven(report, first, [(at, data) for at, data in found if at <= noted])

    def supersede(self, by: Superseded) -> None:
        """A standby was promoted in the place of this node: stop, and say what it does not have.

        Raises `Conflict` if this node was promoted later than that: then the other one has to stop.
        """
        if (own := self._promoted()) is not None and own.epoch > by.epoch:
            raise Conflict(
                f"node {self._name} was promoted in epoch {own.epoch}, and {by.node} before that, "
                f"in epoch {by.epoch}: {by.node} is the one that has to stop"
            )
        member = self.node.member
        with member.turn:
            reason = note_superseded(self._file, by, member.noted.sequence)
            member.halt(reason)
        _logger.error("superseded", extra={"by": by.address, "reason": reason})

    # A standby takes, and is promoted.

    def _ask(self, taken: EntriesAsked) -> EntriesGiven:
        try:
            return _given.decode(self._post(ENTRIES, _encode(taken), ASK_S + taken.wait_s))
        except msgspec.MsgspecError as error:
            raise Unreachable(f"{self._of} gives no entries: {error}") from error

    def _fetch(self, source: NodeReport, path: Path) -> None:
        """A copy of the primary, by the address that this node was told."""
        Fetcher(self.key, ca=self.ca)(msgspec.structs.replace(source, address=self._of), path)

    async def promote(self) -> NodeState:
        """Make this standby the primary. Raises `Conflict` if it is none, or has no rows."""
        return await asyncio.to_thread(self._promote)

    def _promote(self) -> NodeState:
        if self._log is not None or not self._of:
            raise Conflict(f"node {self._name} is no standby: nothing is to be promoted")
        made: list[OwnLog] = []

        def make(before: entries.Position, last: int) -> OwnLog:
            """The log that it leads; what is written there must survive, so the mark comes first."""
            made.append(OwnLog(last))
            self._note_promoted(before)
            return made[0]

        try:
            self.node.promote(make, self._channel)
        except BaseException:
            if made:
                self._mark.unlink(missing_ok=True)
            raise
        self._log = made[0]
        self._tell_former()
        return self.node.state()

    def _note_promoted(self, before: entries.Position) -> None:
        """Keep on disk that this node is a primary now, and up to where it had the former one's."""
        mark = Superseded(self._name, self.node.address, before.epoch + 1, before.sequence)
        write_mark(self._mark, mark)
        _logger.warning("promoted", extra={"epoch": mark.epoch, "sequence": mark.sequence})

    def _promoted(self) -> Superseded | None:
        """When this node was promoted, if it was."""
        if not self._mark.exists():
            return None
        return msgspec.json.decode(self._mark.read_bytes(), type=Superseded)

    @property
    def _mark(self) -> Path:
        return self._file.with_name(f"{self._file.name}.promoted")

    def _tell_former(self) -> None:
        """Tell the former primary, once it can be reached, that it is one no more."""
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
