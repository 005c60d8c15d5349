"""Many coroutines of an event loop that append single messages repeatedly."""

from __future__ import annotations

import asyncio

from millstream.aio.database import Millstream
from millstream.bench.measure import ReportRow, StepMeter, seconds
from millstream.embedded.loop.session import AsyncEmbeddedSession
from millstream.store.store import Store


class CoroutineCrowd:
    """Coroutines on a store, which all append as fast as they can for a while."""

    def __init__(self, store: Store, log: str, value: bytes, *, count: int) -> None:
        self._runner = asyncio.Runner()
        self._store, self._log, self._value = store, log, value
        self._meters = [StepMeter() for _ in range(count)]
        self._session: AsyncEmbeddedSession | None = None

    def step(self, length_s: float) -> int:
        """Run all coroutines for a while, and return the number of messages."""
        before = sum(meter.messages for meter in self._meters)
        self._runner.run(self._work(length_s))
        return sum(meter.messages for meter in self._meters) - before

    async def _work(self, length_s: float) -> None:
        if self._session is None:
            self._session = AsyncEmbeddedSession(self._store)
        log, until_s = Millstream(self._session).log(self._log), seconds() + length_s

        async def append(meter: StepMeter) -> None:
            now_s = seconds()
            while now_s < until_s:
                await log.append(self._value)
                after_s = seconds()
                meter.step_s.append(after_s - now_s)
                meter.messages += 1
                now_s = after_s

        await asyncio.gather(*map(append, self._meters))

    def finish(self, row: ReportRow, alone: StepMeter) -> ReportRow:
        """Close the loop; say how long appends took, and how many times one producer they were."""
        self._runner.close()
        all_steps = StepMeter()
        all_steps.step_s = [took_s for meter in self._meters for took_s in meter.step_s]
        row.p50_ms, row.p99_ms = all_steps.percentile_ms(0.5), all_steps.percentile_ms(0.99)
        row.details = {
            "coroutines": len(self._meters),
            "one_producer_per_second": round(alone.per_second()),
            "times_one_producer": round(row.per_second / alone.per_second(), 2),
        }
        return row
