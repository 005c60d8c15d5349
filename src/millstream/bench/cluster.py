"""Workloads of a cluster: three nodes and three NATS servers on a single machine.

Clients reach the nodes over sockets. Only acknowledged messages count: they are on the disks of a
quorum of NATS servers, and in the file of the leader.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import msgspec

import millstream
from millstream.bench.measure import ReportRow, StepMeter, payloads, seconds
from millstream.bench.queue_bench import ClaimingWorker
from millstream.bench.suite import Suite
from millstream.cluster.admin import ClusterAdmin
from millstream.cluster.membership import Plan
from millstream.cluster.nats.jetstream import JetStreamLog
from millstream.cluster.reports import NodeReport
from millstream.cluster.trial import TrialCluster
from millstream.errors import MillstreamError, NoQuorum

NODES = 3
BATCH = 1_000
CLAIM = 100
FRAME_BYTES = 100_000
WRITERS = 4
"""Clients that append batches at once."""
KILLS = 10
READ_RECORDS = 100_000
SLICE_S = 0.1
WELL_S = 120.0
PUBLISH_S = 5.0


class ClusterBench:
    """One run: a trial cluster."""

    def __init__(self, directory: Path, *, seconds_each: float, records: int) -> None:
        self.directory = directory
        self.seconds = seconds_each
        self.records = records
        self.trial = TrialCluster(directory / "cluster")
        self.trial.make(NODES)
        secret = self.trial.secret_file.read_text(encoding="ascii").strip()
        self.plan = Plan("visitor", "", peers=self.trial.peers, secret=secret)
        try:
            self.start()
        except BaseException:
            self.close()
            raise

    def start(self) -> None:
        """Start the nodes that do not run, and wait until one leads and the others follow."""
        for peer in self.trial.peers:
            self.trial.start(peer.name)
        roles = ["follower"] * (NODES - 1) + ["leader"]
        with ClusterAdmin(self.plan) as visit:
            heard = visit.listen(
                lambda reports: sorted(report.role for report, _ in reports.values()) == roles,
                timeout_s=WELL_S,
            )
        self.reports = {name: report for name, (report, _) in heard.items()}
        if sorted(report.role for report in self.reports.values()) != roles:
            raise NoQuorum(f"no leader and two followers within {WELL_S:g} s: {self.reports}")

    @property
    def leader(self) -> NodeReport:
        """Return the leading node."""
        return next(report for report in self.reports.values() if report.role == "leader")

    @property
    def follower(self) -> NodeReport:
        """A node that does not."""
        return next(report for report in self.reports.values() if report.role == "follower")

    def opened(
        self, *, read_level: str = "strong", at: NodeReport | None = None
    ) -> millstream.Millstream:
        """A client, of the leader first."""
        first = (at or self.leader).address
        other_addresses = [peer.address for peer in self.trial.peers if peer.address != first]
        places = [first] if at is not None else [first, *other_addresses]
        return millstream.open(",".join(places), read_level=read_level, retry_for=20.0)

    def close(self) -> None:
        """End the nodes."""
        self.trial.stop()


def cluster_commit(bench: ClusterBench) -> ReportRow:
    """Let a client append single messages."""
    value = payloads(1)[0]
    with bench.opened() as ms:
        log = ms.log("single")
        log.append(value)
        meter = StepMeter()
        meter.run(lambda: 0 * log.append(value) + 1, bench.seconds)
    row = meter.row(details={"p95_ms": meter.percentile_ms(0.95)})
    row.require("p50 ≤ 5 ms", row.p50_ms <= 5)
    return row.require("p95 ≤ 15 ms", meter.percentile_ms(0.95) <= 15)


def cluster_batch(bench: ClusterBench) -> ReportRow:
    """Batches of a thousand, in turns with frames of the same size on plain JetStream."""
    values = payloads(BATCH)
    ours, plain = StepMeter(), StepMeter()
    with bench.opened() as ms, ThreadPoolExecutor(WRITERS) as pool:
        beside = JetStreamLog(bench.plan.connect("bench"), "bench", replicas=NODES)
        beside.found(timeout_s=WELL_S)
        frame = os.urandom(FRAME_BYTES)
        log = ms.log("batches")

        def together() -> int:
            return sum(pool.map(lambda _: len(log.append_many(values)), range(WRITERS)))

        last = 0

        def publish() -> int:
            nonlocal last
            last = beside.append(frame, after=last, timeout_s=PUBLISH_S)
            if last % 500 == 0:
                beside.trim(last, timeout_s=PUBLISH_S)
            return BATCH

        try:
            together()
            for _ in range(4):
                ours.run(together, bench.seconds / 8)
                plain.run(publish, bench.seconds / 8)
            beside.drop(timeout_s=PUBLISH_S)
        finally:
            beside.close()
    row = ours.row(beside=plain, batch=BATCH, details={"writers": WRITERS})
    return row.require_rate(100_000).require_ratio(0.5)


def cluster_producer_one(bench: ClusterBench) -> ReportRow:
    """Let a client hand single messages to a producer."""
    values = payloads(BATCH)
    meter = StepMeter()
    with bench.opened() as ms, ms.log("producer").producer() as producer:

        def hand_in() -> int:
            for value in values:
                producer.append(value)
            return len(values)

        meter.run(hand_in, bench.seconds)
        began_s = seconds()
        producer.flush()
        meter.elapsed_s += seconds() - began_s
    return meter.row().require_rate(40_000)


def cluster_claim(bench: ClusterBench) -> ReportRow:
    """A worker's way: what it holds is done, and the next hundred are claimed, in one commit."""
    values = payloads(BATCH)
    meter = StepMeter()
    with bench.opened() as ms:
        ms.create_queue("work")
        queue = ms.queue("work")
        worker = ClaimingWorker(queue, CLAIM)
        while meter.elapsed_s < bench.seconds:
            for _ in range(CLAIM // 2):
                queue.put_many(values)
            remaining = CLAIM // 2 * BATCH - CLAIM
            while remaining > 0 and meter.elapsed_s < bench.seconds:
                before = meter.messages
                meter.run(worker.step, SLICE_S)
                remaining -= meter.messages - before
    return meter.row(batch=CLAIM).require_rate(20_000)


def cluster_read(bench: ClusterBench) -> ReportRow:
    """A follower reads its own rows, in turns with a server of a store by itself."""
    values = payloads(BATCH)
    with _alone(bench.directory) as address, millstream.open(address) as alone:
        with bench.opened() as ms:
            for store in (ms, alone):
                for _ in range(READ_RECORDS // BATCH):
                    store.log("read").append_many(values)
        with bench.opened(at=bench.follower, read_level="eventual") as near:
            _wait(lambda: near.log("read").end_offset() == READ_RECORDS)
            ours, plain = StepMeter(), StepMeter()
            for _ in range(4):
                ours.run(lambda: sum(1 for _ in near.log("read").read()), bench.seconds / 8)
                plain.run(lambda: sum(1 for _ in alone.log("read").read()), bench.seconds / 8)
    return ours.row(beside=plain, batch=BATCH).require_ratio(0.8)


def cluster_failover(bench: ClusterBench) -> ReportRow:
    """The leader is killed together with its NATS server; how long until a write is acknowledged."""
    meter = StepMeter()
    acknowledged: list[bytes] = []
    for number in range(KILLS):
        with bench.opened() as ms:
            acknowledged.append(_append(ms, b"%d-before" % number))
            process = bench.trial.process(bench.leader.node)
            assert process is not None, "the leader runs"
            began = seconds()
            os.kill(process, signal.SIGKILL)
            acknowledged.append(_append(ms, b"%d-after" % number))
        meter.step_s.append(seconds() - began)
        meter.messages += 1
        bench.start()
    with bench.opened() as ms:
        stored = {record.value for record in ms.log("failover").read()}
    lost = sum(value not in stored for value in acknowledged)
    meter.elapsed_s = sum(meter.step_s)
    p95_s = meter.percentile_ms(0.95) / 1000
    details = {"p95_s": p95_s, "most_s": max(meter.step_s), "kills": KILLS, "lost": lost}
    row = meter.row(details=details)
    return row.require("p95 ≤ 8 s", p95_s <= 8).require("lost 0", lost == 0)


def cluster_snapshot(bench: ClusterBench) -> ReportRow:
    """A node with an empty disk takes a copy of another's store, and goes on from there."""
    values = payloads(BATCH)
    with bench.opened() as ms:
        for _ in range(bench.records // BATCH):
            ms.log("large").append_many(values)
    name = bench.follower.node
    process = bench.trial.process(name)
    assert process is not None, "the follower runs"
    os.kill(process, signal.SIGKILL)
    _wait(lambda: bench.trial.process(name) is None)
    for file in (bench.trial.folder / name).glob("store.db*"):
        if file.is_file():
            file.unlink()
    with ClusterAdmin(bench.plan) as visit:
        last = visit.log.held(timeout_s=WELL_S).last
        visit.log.trim(last, timeout_s=WELL_S)  # so a replay of the shared log cannot be enough
        bench.trial.start(name)
        visit.listen(lambda reports: name in reports and reports[name][1] < 1, timeout_s=WELL_S)
        began = seconds()
        visit.listen(lambda reports: reports[name][0].sequence >= last, timeout_s=WELL_S)
        took = seconds() - began
    meter = StepMeter()
    meter.messages, meter.elapsed_s = bench.records, took
    meter.step_s.append(took)
    bench.start()
    return meter.row(details={"records": bench.records}).require_rate(200_000)


def _append(ms: millstream.Millstream, value: bytes) -> bytes:
    """Append until it is acknowledged; one whose outcome is unknown is appended once more."""
    while True:
        try:
            ms.log("failover").append(value)
            return value
        except MillstreamError:
            continue


def _wait(holds: Callable[[], bool]) -> None:
    pause = threading.Event()
    while not holds():
        pause.wait(SLICE_S)


@contextmanager
def _alone(directory: Path) -> Iterator[str]:
    """A server of a store by itself, in a process of its own."""
    command = [sys.executable, "-m", "millstream", "serve", str(directory / "alone.db")]
    with subprocess.Popen([*command, "--port", "0", "--json"], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        try:
            yield str(msgspec.json.decode(process.stdout.readline())["rest"])
        finally:
            process.terminate()


SUITE = Suite(
    ClusterBench,
    cluster_commit,
    cluster_batch,
    cluster_producer_one,
    cluster_claim,
    cluster_read,
    cluster_snapshot,
    cluster_failover,
)
