"""Reports on NATS: messages that no server stores."""

from __future__ import annotations

import msgspec

from millstream.clock import Clock, SystemClock
from millstream.cluster.nats.connection import NatsConnection, NatsMessage
from millstream.cluster.reports import NodeReport


class NatsReportChannel:
    """Posts and receives reports over NATS, and keeps each node's newest report."""

    def __init__(
        self, connection: NatsConnection, cluster: str, *, clock: Clock | None = None
    ) -> None:
        """Begin to listen; earlier reports are not received."""
        self._connection = connection
        self._clock = clock or SystemClock()
        self._subject = f"millstream.{cluster}.report"
        self._newest: dict[str, tuple[NodeReport, float]] = {}
        self._decoder = msgspec.msgpack.Decoder(NodeReport)
        connection.subscribe(self._subject, self._hear)

    def post(self, report: NodeReport) -> None:
        """Send a report to the other nodes."""
        self._connection.publish(self._subject, msgspec.msgpack.encode(report))

    def reports(self) -> dict[str, tuple[NodeReport, float]]:
        """Return the newest report of each node, and its age in seconds."""
        now = self._clock.seconds()
        newest = self._newest.copy()  # a copy: the connection's thread adds reports
        return {node: (report, now - heard_at) for node, (report, heard_at) in newest.items()}

    def _hear(self, heard: NatsMessage) -> None:
        try:
            report = self._decoder.decode(heard.data)
        except msgspec.DecodeError:
            return  # a report of another version is treated as lost
        self._newest[report.node] = report, self._clock.seconds()
