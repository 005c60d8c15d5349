"""A primary and its standby as real processes: one is killed or stopped, and the other takes its place.

nothing that was shipped is lost, and what was not shipped is said, and is in the former primary's file
the former primary is refused when it comes back, or stops as soon as it wakes up
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx
import pytest

import millstream
from millstream.cluster.entry import decode_position
from millstream.cluster.trial import HOST, free_ports
from millstream.engine.open import open_engine
from millstream.errors import CannotOpen, MillstreamError
from millstream.format import keys
from tests.conformance.nats_kit import until

pytestmark = [
    pytest.mark.slow,
    pytest.mark.faults,
    pytest.mark.crash,
    pytest.mark.timeout(1800),
]

ROUNDS = int(os.environ.get("MILLSTREAM_CLUSTER_ROUNDS", "1"))
LOG = "orders"


class Process:
    """A server of a pair: it is started again with the same file and at the same port."""

    def __init__(self, folder: Path, name: str) -> None:
        self.file = folder / f"{name}.db"
        self.name, self._port = name, free_ports(1)[0]
        self.url = f"http://{HOST}:{self._port}"
        self._child: subprocess.Popen[bytes] | None = None

    def start(self, *options: str) -> None:
        """Start it, and wait until it answers."""
        command = [sys.executable, "-m", "millstream", "serve", str(self.file), "--json"]
        command += ["--node", self.name, "--port", str(self._port), *options]
        told = self.file.with_suffix(".log")
        with told.open("wb") as errors:
            self._child = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors)
        assert self._child.stdout is not None
        if not self._child.stdout.readline():
            self.send(signal.SIGKILL)
            raise CannotOpen(told.read_text())

    def send(self, what: signal.Signals) -> None:
        """A signal; it is waited for the end of a process that is killed."""
        if self._child is None:
            return
        self._child.send_signal(what)  # of one that has ended, nothing
        if what in (signal.SIGKILL, signal.SIGTERM):
            with self._child:
                self._child = None

    def status(self) -> Any:
        """How it stands; nothing if it does not answer."""
        try:
            return httpx.get(f"{self.url}/cluster/status", timeout=5).json()
        except httpx.HTTPError:
            return {"role": "", "reason": "", "sequence": 0, "lag": 0}

    def promote(self) -> None:
        """Make it the primary."""
        command = [sys.executable, "-m", "millstream", "promote", self.url]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr

    @property
    def values(self) -> list[bytes]:
        """What is in its file."""
        with millstream.open(self.file, mode="r") as ms:
            return [one.value for one in ms.log(LOG).read()]

    @property
    def sequence(self) -> int:
        """The last entry that is in its file."""
        engine = open_engine(self.file, mode="r")
        try:
            with engine.read() as snapshot:
                return decode_position(snapshot.get(keys.CLUSTER_KEY)).sequence
        finally:
            engine.close()


class Couple:
    """A primary and its standby, and a writer."""

    def __init__(self, folder: Path) -> None:
        self.first, self.second = Process(folder, "a"), Process(folder, "b")
        self.acknowledged: list[bytes] = []
        self._stop = threading.Event()
        self._writer = threading.Thread(target=self._write)

    def start(self) -> None:
        """Both run, and the writer writes; the standby has some of it."""
        self.first.start("--primary")
        self.second.start("--standby-of", self.first.url)
        self._writer.start()
        until(lambda: len(self.acknowledged) > 50, "writes are acknowledged")
        until(lambda: len(self.second.values) > 10, "some of it is shipped")

    def end_load(self) -> None:
        """The writer ends."""
        self._stop.set()
        self._writer.join()

    def close(self) -> None:
        """End everything."""
        for one in (self.first, self.second):
            one.send(signal.SIGCONT)
            one.send(signal.SIGKILL)
        self._stop.set()
        if self._writer.ident is not None:
            self._writer.join()

    def _write(self) -> None:
        """To the primary alone, until it is gone."""
        with suppress(MillstreamError), millstream.open(self.first.url, retry_for=0) as ms:
            while not self._stop.is_set():
                value = b"%d" % len(self.acknowledged)
                ms.log(LOG).append(value)
                self.acknowledged.append(value)


@pytest.fixture
def couple(tmp_path: Path) -> Iterator[Couple]:
    found = Couple(tmp_path)
    try:
        yield found
    finally:
        found.close()


def assert_said(reason: str, former: Process, mark: dict[str, Any]) -> None:
    """What the former primary says it has alone is what lies behind the promoted one's last entry."""
    alone = former.sequence - mark["sequence"]
    said = re.search(r"([\d,]+) entries after (\d+) were not shipped", reason)
    if alone > 0:
        assert said is not None, reason
        assert (int(said[1].replace(",", "")), int(said[2])) == (alone, mark["sequence"])
    else:
        assert "all that it had was shipped" in reason


@pytest.mark.parametrize("_round", range(ROUNDS))
def test_a_primary_that_was_killed_under_load_is_refused_when_it_comes_back(
    couple: Couple, _round: int
) -> None:
    first, second = couple.first, couple.second
    couple.start()
    first.send(signal.SIGKILL)
    couple.end_load()
    second.promote()
    mark = json.loads(second.file.with_name("b.db.promoted").read_bytes())
    with millstream.open(second.url) as ms:
        shipped = [one.value for one in ms.log(LOG).read()]
        ms.log(LOG).append(b"afterwards")
    assert shipped == couple.acknowledged[: len(shipped)], "a beginning of what was acknowledged"

    first.start("--primary")
    until(lambda: first.status()["role"] == "halted", "it hears that another one took its place")
    assert_said(first.status()["reason"], first, mark)
    first.send(signal.SIGTERM)
    with pytest.raises(CannotOpen, match="is kept aside: node b"):
        first.start("--primary")
    assert first.values[: len(couple.acknowledged)] == couple.acknowledged, "kept, as it was"
    assert second.values == [*shipped, b"afterwards"]


@pytest.mark.parametrize("_round", range(ROUNDS))
def test_a_primary_that_slept_while_its_standby_was_promoted_stops_when_it_wakes_up(
    couple: Couple, _round: int
) -> None:
    first, second = couple.first, couple.second
    couple.start()
    first.send(signal.SIGSTOP)
    second.promote()
    mark = json.loads(second.file.with_name("b.db.promoted").read_bytes())
    with millstream.open(second.url) as ms:
        ms.log(LOG).append(b"afterwards")
    before = len(couple.acknowledged)
    first.send(signal.SIGCONT)
    until(lambda: first.status()["role"] == "halted", "it hears that another one took its place")
    couple.end_load()
    reason = first.status()["reason"]
    with (
        millstream.open(first.url, retry_for=0) as ms,
        pytest.raises(MillstreamError, match="was promoted in epoch"),
    ):
        ms.log(LOG).append(b"too late")
    first.send(signal.SIGTERM)
    assert_said(reason, first, mark)
    kept = first.values
    assert kept[: len(couple.acknowledged)] == couple.acknowledged, "what it said is in its file"
    assert second.values[-1] == b"afterwards"
    shipped = second.values[:-1]
    assert shipped == kept[: len(shipped)]
    assert len(shipped) <= before
