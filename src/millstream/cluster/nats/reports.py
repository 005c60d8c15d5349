"""The bulletin on NATS: reports are messages that are not kept, one subject per node."""

from __future__ import annotations

import msgspec

from millstream.clock import Clock, SystemClock
from millstream.cluster.nats.connection import NatsLine, NatsMessage
from millstream.cluster.reports import NodeReport


class Reporting:
    """A `Bulletin` over a line that it shares with the log; it remembers the newest of each node."""

    def __init__(self, line: NatsLine, cluster: str, *, clock: Clock | None = None) -> None:
        """Begin to listen; what was posted before is not heard of."""
        self._line = line
        self._clock = clock or SystemClock()
        self._subject = f"millstream.{cluster}.report"
        self._newest: dict[str, tuple[NodeReport, float]] = {}
        self._decoder = msgspec.msgpack.Decoder(NodeReport)
        line.subscribe(self._subject, self._hear)

    def post(self, report: NodeReport) -> None:
        """Tell the other nodes."""
        self._line.publish(self._subject, msgspec.msgpack.encode(report))

    def reports(self) -> dict[str, tuple[NodeReport, float]]:
        """The newest report of each node, and how many seconds ago it came."""
        now = self._clock.seconds()
        newest = self._newest.copy()  # at once: the line's thread adds to it
        return {node: (report, now - heard_at) for node, (report, heard_at) in newest.items()}

    def _hear(self, heard: NatsMessage) -> None:
        try:
            report = self._decoder.decode(heard.data)
        except msgspec.DecodeError:
            return  # another version's: a report that is not understood is one that was lost
        self._newest[report.node] = report, self._clock.seconds()
