"""A server of its own, as the workloads of the server have it, and what it spends."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import msgspec
import uvloop

from millstream import aio
from millstream.aio.database import Millstream
from millstream.bench.measure import ReportRow, StepMeter, memory_mib


class Bench:
    """One run: a server on a store of its own, until it is closed."""

    def __init__(self, directory: Path, *, seconds_each: float, sync_delay_ms: float = 0.0) -> None:
        self.seconds = seconds_each
        self.directory = directory
        self.sync_delay_s = sync_delay_ms / 1000
        self._process = subprocess.Popen(
            _serve(directory / "bench.db", sync_delay_ms),
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )
        assert self._process.stdout is not None
        self.url: str = msgspec.json.decode(self._process.stdout.readline())["rest"]

    def close(self) -> None:
        """Stop the server."""
        self._process.terminate()
        self._process.communicate(timeout=30)

    def server_mib(self) -> float:
        """Memory of the server that no file backs."""
        return memory_mib(self._process.pid)

    def server_cpu_s(self) -> float:
        """Return the processor time of the server, all threads included."""
        fields = Path(f"/proc/{self._process.pid}/stat").read_text(encoding="utf-8")
        spent = fields.rpartition(")")[2].split()
        return (int(spent[11]) + int(spent[12])) / os.sysconf("SC_CLK_TCK")

    def row(self, work: Callable[[], StepMeter], **figures: Any) -> ReportRow:
        """Run the work, and return a row with the server cost per message."""
        before_s = self.server_cpu_s()
        meter = work()
        spent_us = (self.server_cpu_s() - before_s) * 1e6 / max(1, meter.messages)
        details = {**figures.pop("details", {}), "server_cpu_us": round(spent_us, 1)}
        row = meter.row(details=details, **figures)
        row.sync_delay_ms = self.sync_delay_s * 1000
        return row


def _serve(path: Path, sync_delay_ms: float) -> list[str]:
    """The command of a server, on a disk as slow as asked for."""
    if sync_delay_ms:
        slow = ["-m", "millstream.bench.slow_server", str(path), str(sync_delay_ms)]
        return [sys.executable, *slow]
    return [sys.executable, "-m", "millstream", "serve", str(path), "--port", "0", "--json"]


def in_loop(bench: Bench, work: Callable[[Millstream], Awaitable[StepMeter]]) -> StepMeter:
    """Do some work in an event loop, with a connection of its own."""

    async def run() -> StepMeter:
        ms = await aio.open(bench.url)
        try:
            return await work(ms)
        finally:
            await ms.close()

    return uvloop.run(run())
