"""Callers of a cluster that must notice nothing of a fault but a pause, and an account of what they saw.

Each caller uses one client, of threads or of coroutines, with `retry_for=30`, and does what an
application does: append, put, claim, acknowledge. A caller notes every error, how long its longest call
took, and what was acknowledged. The verdict compares that with what is stored: nothing that was
acknowledged is missing, and nothing is there twice.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import millstream
from millstream import Producer, aio
from millstream.errors import MillstreamError, OutcomeUnknown

RETRY_FOR_S = 30.0
BUSY_S, QUIET_S = 0.02, 0.4
"""Between two calls of one caller: a fault comes while an append is on its way, or while none is."""


@dataclass
class Seen:
    """What one caller saw."""

    name: str
    acknowledged: list[bytes] = field(default_factory=list)
    unknown: list[bytes] = field(default_factory=list)
    """Values whose call ended with `OutcomeUnknown`: they may be stored, once."""
    errors: list[str] = field(default_factory=list)
    """Every other error, with how long its call took."""
    longest_s: float = 0.0
    calls: int = 0

    @contextmanager
    def call(self, value: bytes = b"") -> Iterator[None]:
        """Note what comes of one call."""
        began_s = time.monotonic()
        self.calls += 1
        try:
            yield
        except OutcomeUnknown:
            self.unknown.append(value)
        except MillstreamError as error:
            took_s = time.monotonic() - began_s
            self.errors.append(f"{type(error).__name__} after {took_s:.1f} s: {error}")
        else:
            self.acknowledged.append(value)
        finally:
            self.longest_s = max(self.longest_s, time.monotonic() - began_s)


class Callers:
    """All callers of a run; each has a thread."""

    def __init__(self, urls: list[str], *, pause_s: float = BUSY_S) -> None:
        self.seen: dict[str, Seen] = {}
        self.taken: Counter[bytes] = Counter()
        """How often each message was claimed and its acknowledgement answered."""
        self._urls, self._pause_s = urls, pause_s
        self._stop = threading.Event()
        self._threads: list[threading.Thread] = []

    def start(self) -> None:
        """Make the queue, and let every caller begin."""
        with self._open(0) as ms:
            ms.create_queue("work", lease=60)
            ms.log("plain").append(b"plain")
        for number, run in enumerate(
            (
                self._append,
                self._append_once,
                self._put,
                self._consume,
                self._append_async,
                self._read,
            )
        ):
            thread = threading.Thread(target=self._guarded, args=(run, number))
            self._threads.append(thread)
            thread.start()

    def stop(self) -> None:
        """End every caller, after the call that it is in."""
        self._stop.set()
        for thread in self._threads:
            thread.join()

    def counts(self) -> dict[str, int]:
        """By caller: how many of its calls have succeeded."""
        return {name: len(one.acknowledged) for name, one in list(self.seen.items())}

    def _open(self, first: int) -> millstream.Millstream:
        return millstream.open(self._url(first), retry_for=RETRY_FOR_S)

    def _url(self, first: int) -> str:
        first %= len(self._urls)
        return ",".join(self._urls[first:] + self._urls[:first])

    def _guarded(self, run: Callable[[Seen, int], None], number: int) -> None:
        seen = self.seen[run.__name__.strip("_")] = Seen(run.__name__.strip("_"))
        try:
            run(seen, number)
        except Exception as error:
            seen.errors.append(f"it ended: {error!r}")

    def _values(self, prefix: bytes) -> Iterator[bytes]:
        number = 0
        while not self._stop.wait(self._pause_s):
            yield b"%s-%d" % (prefix, number)
            number += 1

    def _append(self, seen: Seen, first: int) -> None:
        """Plain appends: their outcome may be unknown once the node that carries them out is lost."""
        with self._open(first) as ms:
            for value in self._values(b"plain"):
                with seen.call(value):
                    ms.log("plain").append(value)

    def _append_once(self, seen: Seen, first: int) -> None:
        """Appends under a producer's sequence: they never fail."""
        with self._open(first) as ms:
            for sequence, value in enumerate(self._values(b"once")):
                with seen.call(value):
                    ms.log("once").append(value, producer=Producer("p", sequence))

    def _put(self, seen: Seen, first: int) -> None:
        with self._open(first) as ms:
            for sequence, value in enumerate(self._values(b"put")):
                with seen.call(value):
                    ms.queue("work").put(value, producer=Producer("putter", sequence))

    def _consume(self, seen: Seen, first: int) -> None:
        """Claims and acknowledgements; a message whose acknowledgement is unknown counts as unknown."""
        with self._open(first) as ms:
            queue = ms.queue("work")
            while not self._stop.is_set():
                messages: list[millstream.Message] = []
                with seen.call(b"claim"):
                    messages = queue.claim(5, wait=0.5)
                for message in messages:
                    with seen.call(message.value):
                        queue.ack(message)
                        self.taken[message.value] += 1

    def _append_async(self, seen: Seen, first: int) -> None:
        asyncio.run(self._appending(seen, first))

    async def _appending(self, seen: Seen, first: int) -> None:
        async with await aio.open(self._url(first), retry_for=RETRY_FOR_S) as ms:
            sequence = 0
            while not self._stop.is_set():
                value = b"async-%d" % sequence
                with seen.call(value):
                    await ms.log("async").append(value, producer=Producer("a", sequence))
                sequence += 1
                await asyncio.sleep(self._pause_s)

    def _read(self, seen: Seen, first: int) -> None:
        """Strong reads: each needs a proof that the node which answers still leads."""
        with self._open(first) as ms:
            for value in self._values(b"read"):
                with seen.call(value):
                    ms.log("plain").info()

    # The verdict.

    def complaints(self, urls: list[str], *, may_be_unknown: bool) -> list[str]:
        """What a caller must not have seen, and what is stored otherwise than it was told."""
        found = [f"{one.name}: {text}" for one in self.seen.values() for text in one.errors]
        if not may_be_unknown:
            found += [f"{one.name}: unknown {one.unknown[:3]}" for one in self._with_unknown()]
        sure = [self.seen[name] for name in ("append_once", "put", "append_async")]
        found += [f"{one.name}: unknown {one.unknown[:3]}" for one in sure if one.unknown]
        with millstream.open(",".join(urls), retry_for=RETRY_FOR_S) as ms:
            for name, log in (
                ("append", "plain"),
                ("append_once", "once"),
                ("append_async", "async"),
            ):
                stored = Counter(one.value for one in ms.log(log).read())
                found += self._compared(self.seen[name], stored)
            info = ms.queue("work").info()
        put, taken = self.seen["put"], self.taken
        kept = info.available + info.unrouted + info.in_flight + info.done
        if kept != len(put.acknowledged):
            found.append(f"put: {len(put.acknowledged)} were put, and the queue has {info}")
        found += [f"consume: {value!r} was done {n} times" for value, n in taken.items() if n > 1]
        return found

    def _with_unknown(self) -> list[Seen]:
        return [one for one in self.seen.values() if one.unknown]

    @staticmethod
    def _compared(seen: Seen, stored: Counter[bytes]) -> list[str]:
        lost = [value for value in seen.acknowledged if not stored[value]]
        twice = [value for value, count in stored.items() if count > 1]
        ghosts = set(stored) - set(seen.acknowledged) - set(seen.unknown) - {b"plain"}
        found = [f"{seen.name}: lost {value!r}" for value in lost]
        found += [f"{seen.name}: {value!r} is stored twice" for value in twice]
        return found + [f"{seen.name}: {value!r} was refused and stored" for value in ghosts]

    def __str__(self) -> str:
        return "; ".join(
            f"{one.name}: {one.calls} calls, {len(one.errors)} errors, {len(one.unknown)} unknown, "
            f"longest {one.longest_s:.1f} s"
            for one in self.seen.values()
        )
