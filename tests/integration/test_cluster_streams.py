"""Producers and consumers on a cluster whose leading nodes are killed and stopped.

Promises: every message whose handle reported success is stored once and in the order of the calls, a
consumer gets and acknowledges every message, acknowledged messages do not return, and nothing stays
claimed after the consumer has ended.
"""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

import millstream
from millstream import PartitionOffset
from tests.conformance.nats_kit import until
from tests.integration.cluster_run import Run, running
from tests.integration.test_cluster_clients import hurt

pytestmark = [
    pytest.mark.requires("nats"),
    pytest.mark.slow,
    pytest.mark.faults,
    pytest.mark.crash,
    pytest.mark.timeout(3600),
]

SEED = int(os.environ["MILLSTREAM_SEED"])
ROUNDS = int(os.environ.get("MILLSTREAM_CLUSTER_ROUNDS", "1"))
FAULTS = ("kill_leader", "stop_leader") * ROUNDS
RETRY_S = 120.0
LEASE_S = 5.0
END = b"end"


class Stream:
    """A producer and a consumer of a queue, and a producer of a log with partitions, on all nodes."""

    def __init__(self, run: Run) -> None:
        nodes = ",".join(peer.address for peer in run.trial.peers)
        self.ms = millstream.open(nodes, retry_for=RETRY_S)
        self.queue = self.ms.create_queue("jobs", lease=LEASE_S, max_attempts=100, backoff=0)
        self.log = self.ms.log("spread", partitions=3)
        self.puts: list[millstream.PutHandle] = []
        self.appends: list[millstream.PartitionedHandle] = []
        self.done: list[bytes] = []
        """The values in the order in which the loop acknowledged them, repeats included."""
        self._stop = threading.Event()
        self._threads = [
            threading.Thread(target=self._produce),
            threading.Thread(target=self._consume),
        ]
        for thread in self._threads:
            thread.start()

    def until_done(self, more: int = 200) -> None:
        """Wait until further messages went through."""
        wanted = len(self.done) + more
        until(lambda: len(self.done) >= wanted, "messages go through")

    def end(self) -> None:
        """Produce no more, and wait until all messages are consumed."""
        self._stop.set()
        for thread in self._threads:
            thread.join()

    def _produce(self) -> None:
        with (
            self.queue.producer(in_flight=100, retry_for=RETRY_S) as puts,
            self.log.producer(in_flight=100, retry_for=RETRY_S) as appends,
        ):
            while not self._stop.is_set():
                number = len(self.puts)
                self.puts.append(puts.put(b"%d" % number))
                self.appends.append(appends.append(b"%d" % number, key=b"%d" % (number % 7)))
                if number % 20 == 0:
                    self.puts[-1].id()
            puts.put(END)

    def _consume(self) -> None:
        while True:
            with self.queue.consumer(prefetch=32, timeout=2 * LEASE_S) as consumer:
                for message in consumer:
                    self.done.append(message.value or b"")
                    consumer.ack(message)
            if END in self.done:
                return


def test_streams_go_on_while_leading_nodes_are_killed_and_stopped(tmp_path: Path) -> None:
    with running(tmp_path, SEED) as run:
        stream = Stream(run)
        try:
            for fault in FAULTS:
                stream.until_done()
                hurt(run, fault)
            stream.until_done()
        finally:
            stream.end()
        count = len(stream.puts)
        expected = [b"%d" % number for number in range(count)]
        with stream.ms as ms:
            info = stream.queue.info()
            assert (info.done, info.in_flight, info.available, info.failed) == (count + 1, 0, 0, 0)
            ids = [handle.id() for handle in stream.puts]
            assert ids == sorted(set(ids)), "in the order of the calls"
            assert {*stream.done} == {*expected, END}
            for number in range(7):
                places = [handle.offset() for handle in stream.appends[number::7]]
                assert places == sorted(set(places)), "a key is in order"
            records = list(ms.log("spread", partitions=3).read())
            assert len(records) == count
            values = {PartitionOffset(r.partition, r.offset): r.value for r in records}
            assert [values[handle.offset()] for handle in stream.appends] == expected
        run.account.attempted = run.account.acknowledged = count
