"""The shared log on NATS JetStream: a stream with one subject, replicated by a quorum of servers.

| operation | request to JetStream |
|---|---|
| append | publish, with the header Nats-Expected-Last-Sequence |
| read | a direct get of many messages, from any server that holds the stream; message by message from the leading server, if the nearest server has not caught up |
| held | the stream's state, from its leading server |
| trim | a purge below a sequence |
| hand over | a step-down of the stream's leading server in favour of another server |

A message tells all readers of an appended entry. Nothing depends on that message: a reader that
misses it looks again after `LOOK_S`.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Any

import msgspec

from millstream.cluster.nats.connection import Lost, NatsConnection, NatsMessage
from millstream.cluster.nats.jetstream_answer import (
    DONE,
    NO_PEERS,
    UNFIT,
    WRONG_SEQUENCE,
    Refusal,
    StreamAnswer,
    StreamState,
    decode_answer,
)
from millstream.cluster.nats.stream_leader import StreamServers
from millstream.cluster.shared_log import (
    Gone,
    Held,
    Overtaken,
    Stored,
    Unreachable,
    Unsure,
)

ENTRY_BYTES_MAX = 1_000_000
"""The largest entry: below NATS' default limit of a message, with space for its headers."""
STREAM_BYTES_MAX = 256 << 20
"""A stream that was not trimmed for too long refuses new entries, so that no disk fills up."""
TRY_S = 2.0
"""How long a request about the stream may take; a server without a leader does not answer."""
PAUSE_S = 0.1
LOOK_S = 0.25
"""The interval at which a reader without news looks for entries."""
SOON_S = (0.001, 0.002, 0.004, 0.008, 0.016, 0.032, 0.064)
"""Growing pauses of a reader that knows of a new entry which the nearest server does not have yet.
"""
CHECK_S = 1.0
"""The interval at which a waiting reader checks whether its next entry can still come."""
CERTAIN_S = 3.0
"""How long a stream must be missing, or too short, until a node believes it.

A server that has just begun to lead may not know the stream's end for a moment.
"""
MESSAGES_MAX = 10_000
LED_MESSAGES_MAX = 50
"""Entries that one read requests from the leading server: each takes a separate request."""
BEHIND = "millstream-behind"
"""A key of the stream's metadata: the hash that the first entry follows, if stores existed before.
"""


class Unfit(Unreachable):
    """NATS cannot store the log, however long a caller waits; the text names the remedy."""


class _Doubt:
    """An observation that is believed once it was repeated for long enough."""

    def __init__(self) -> None:
        self._since: float | None = None

    def is_certain(self, is_so: bool) -> bool:
        """Record an observation; True if every observation of the last `CERTAIN_S` was positive."""
        if not is_so:
            self._since = None
            return False
        self._since = self._since or _now()
        return _now() - self._since > CERTAIN_S


class _Attempt:
    """An append on its way: whether it may be stored."""

    is_sent = False


class JetStreamLog:
    """A `SharedLog` on JetStream, which owns the connection."""

    def __init__(self, connection: NatsConnection, cluster: str, *, replicas: int = 3) -> None:
        """Prepare the log of a cluster, which need not exist yet: `found` creates it."""
        self.place = f"the shared log of {cluster} on NATS at {connection.place}"
        self.entry_bytes_max = ENTRY_BYTES_MAX
        self._connection = connection
        self._cluster, self._replicas = cluster, replicas
        self.stream = f"millstream-{cluster}"
        self.servers = StreamServers()
        """The servers of the stream and its leading server, as of the last answer."""
        self._subject = f"millstream.{cluster}.log"
        self._grown = f"millstream.{cluster}.grown"
        self._last = 0
        """The newest entry that was announced."""
        self._news = asyncio.Event()
        self._missing, self._short, self._lags = _Doubt(), _Doubt(), _Doubt()
        self._led_last = 0
        """The newest entry of the leading server, as of its last answer."""
        self._checked_at = float("-inf")
        connection.subscribe(self._grown, self._hear)

    def ready(self, *, timeout_s: float) -> None:
        """Wait for a connection to a server. Raises `Unreachable`."""
        try:
            self._connection.call(self._connection.connected(), timeout_s=timeout_s)
        except TimeoutError:
            raise Unreachable(f"{self.place}: {self._connection.trouble}") from None

    def found(self, *, timeout_s: float, first: int = 1, behind: bytes = b"") -> None:
        """Create the stream unless it exists; its first entry gets the sequence `first`.

        `behind` is the hash that this entry will follow, if stores with a history continue there.
        Raises `Unreachable` while the servers have no quorum.
        """
        config = {
            "name": self.stream,
            "subjects": [self._subject],
            "num_replicas": self._replicas,
            "storage": "file",
            "retention": "limits",
            "discard": "new",
            "max_bytes": STREAM_BYTES_MAX,
            "allow_direct": True,
            "deny_delete": True,
            "first_seq": first,
            "metadata": {BEHIND: behind.hex()} if behind else {},
        }
        self._ask("STREAM.CREATE", config, timeout_s=timeout_s)

    def rehearse(self, *, timeout_s: float) -> None:
        """Create a similar stream and delete it again, before the real stream is replaced.

        Raises `Unreachable` with the reason.
        """
        beside = JetStreamLog(
            self._connection, f"{self._cluster}-rehearsed", replicas=self._replicas
        )
        beside.drop(
            timeout_s=timeout_s
        )  # one of a rehearsal that was broken off may have other replicas
        beside.found(timeout_s=timeout_s)
        beside.drop(timeout_s=timeout_s)

    def drop(self, *, timeout_s: float) -> None:
        """Delete the stream with all entries; it may be gone already."""
        self._ask("STREAM.DELETE", None, timeout_s=timeout_s)

    def append(self, data: bytes, *, after: int, timeout_s: float) -> int:
        """Store an entry on a quorum's disks if the last sequence is `after`."""
        if len(data) > self.entry_bytes_max:
            raise ValueError(
                f"an entry has at most {self.entry_bytes_max:,} bytes, not {len(data):,}"
            )
        attempt = _Attempt()
        try:
            sequence = self._connection.call(
                self._append(data, after, attempt), timeout_s=timeout_s
            )
        except (TimeoutError, Lost, Unreachable) as error:
            why = str(error) or f"no answer within {timeout_s:g} s"
            if attempt.is_sent:
                raise Unsure(f"{self.place}: {why}") from error
            raise Unreachable(f"{self.place}: {why}") from error
        self._connection.publish(self._grown, str(sequence).encode())
        return sequence

    def read(self, after: int, *, bytes_max: int, timeout_s: float) -> list[Stored]:
        """Read the entries after a sequence from the nearest server; wait for the first."""
        trouble: list[str] = []
        try:
            return self._connection.call(self._read(after, bytes_max, trouble), timeout_s=timeout_s)
        except TimeoutError:
            if trouble:
                raise Unreachable(f"{self.place}: {trouble[-1]}") from None
            return []

    def held(self, *, timeout_s: float) -> Held:
        """Return the extent of the stream."""
        return self.span(timeout_s=timeout_s).held

    def entry(self, sequence: int, *, timeout_s: float) -> bytes | None:
        """Return an entry from the leading server."""
        message = self._ask("STREAM.MSG.GET", {"seq": sequence}, timeout_s=timeout_s).message
        return None if message is None else message.data

    def begun_behind(self, *, timeout_s: float) -> bytes:
        """Return the hash that the very first entry follows; empty if unknown."""
        config = self._ask("STREAM.INFO", None, timeout_s=timeout_s).config
        return bytes.fromhex(config.metadata.get(BEHIND, ""))

    def span(self, *, timeout_s: float) -> StreamState:
        """Return the extent and the size of the stream."""
        state = self._ask("STREAM.INFO", None, timeout_s=timeout_s).state
        assert state is not None, "JetStream's answer about a stream has its state"
        return state

    def trim(self, before: int, *, timeout_s: float) -> None:
        """Purge the entries below a sequence."""
        if before > 1:
            self._ask("STREAM.PURGE", {"seq": before}, timeout_s=timeout_s)

    def look(self, *, timeout_s: float) -> StreamServers:
        """Ask again which servers hold the stream."""
        self._ask("STREAM.INFO", None, timeout_s=timeout_s)
        return self.servers

    def hand_over(self, server: str, *, timeout_s: float) -> None:
        """Let another server lead the stream; `servers` then names the new leader.

        The servers and their entries stay. Raises `Unreachable` after the timeout.
        """
        request = {"placement": {"preferred": server}}
        try:
            self._connection.call(
                self._hand_over(msgspec.json.encode(request)), timeout_s=timeout_s
            )
        except TimeoutError:
            why = f"it has no other leading server within {timeout_s:g} s"
            raise Unreachable(f"{self.place}: {why}") from None
        except Lost as error:
            raise Unreachable(f"{self.place}: {error}") from error

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()

    def _ask(
        self, operation: str, request: dict[str, Any] | None, *, timeout_s: float
    ) -> StreamAnswer:
        trouble: list[str] = []
        try:
            return self._connection.call(
                self._answer(operation, request, trouble), timeout_s=timeout_s
            )
        except TimeoutError:
            why = trouble[-1] if trouble else self._connection.trouble
            raise Unreachable(f"{self.place}: in vain for {timeout_s:g} s: {why}") from None

    # Coroutines on the connection's loop.

    def _hear(self, heard: NatsMessage) -> None:
        self._last = max(self._last, int(heard.data))
        self._news.set()
        self._news = asyncio.Event()

    async def _append(self, data: bytes, after: int, attempt: _Attempt) -> int:
        await self._connection.connected()
        attempt.is_sent = True
        headers = {"Nats-Expected-Last-Sequence": str(after)}
        try:
            heard = await self._connection.request(self._subject, data, headers)
        except Unreachable:
            attempt.is_sent = False
            raise
        answer = decode_answer(heard)
        if answer.error is None:
            return answer.seq
        if answer.error.err_code in WRONG_SEQUENCE:
            raise Overtaken(f"{self.place}: {answer.error.description}, not {after}")
        # The server may have refused the entry, or failed after other servers had stored it.
        raise Lost(answer.error.description)

    async def _answer(
        self, operation: str, request: dict[str, Any] | None, trouble: list[str]
    ) -> StreamAnswer:
        """Repeat a harmless request until JetStream answers."""
        data = b"" if request is None else msgspec.json.encode(request)
        while True:
            await self._connection.connected()
            try:
                answer = await self._once(operation, data)
                if answer.error is None or answer.error.err_code == DONE.get(operation):
                    self._missing.is_certain(False)
                    return answer
                if self._missing.is_certain(answer.is_missing):
                    raise Gone(f"{self.place} does not exist any more")
                trouble.append(self._explained(answer.error))
            except Unfit:
                raise
            except (Lost, Unreachable) as error:
                trouble.append(str(error))
            await asyncio.sleep(PAUSE_S)

    def _explained(self, error: Refusal) -> str:
        """Return the remedy of an error. Raises `Unfit` if waiting is useless."""
        if (remedy := UNFIT.get(error.err_code)) is not None:
            raise Unfit(f"{self.place} cannot be kept there ({error.description}): {remedy}")
        if error.err_code == NO_PEERS:
            return (
                f"fewer than {self._replicas} of its servers run with JetStream "
                f"({error.description}): start them, or say --replicas with fewer"
            )
        return error.description

    async def _once(self, operation: str, data: bytes) -> StreamAnswer:
        try:
            async with asyncio.timeout(TRY_S):
                heard = await self._connection.request(f"$JS.API.{operation}.{self.stream}", data)
            answer = decode_answer(heard)
        except TimeoutError:
            raise Unreachable("no server answers for JetStream") from None
        except Unreachable as error:
            raise Unreachable(f"{error}: is JetStream on? It is not on every server") from error
        if answer.cluster is not None:
            self.servers = answer.cluster
        return answer

    async def _hand_over(self, request: bytes) -> None:
        before = self.servers.leader
        answer = await self._once("STREAM.LEADER.STEPDOWN", request)
        if answer.error is not None:
            raise Unreachable(f"{self.place}: {answer.error.description}")
        while self.servers.leader in ("", before):
            await asyncio.sleep(SOON_S[-1])
            with suppress(Lost, Unreachable):  # without a leader, no server answers
                await self._once("STREAM.INFO", b"")

    async def _read(self, after: int, bytes_max: int, trouble: list[str]) -> list[Stored]:
        tries = 0
        while True:
            await self._connection.connected()
            news = self._news
            try:
                stored = await self._fetch(after, bytes_max)
                trouble.clear()
            except (Lost, Unreachable) as error:
                stored = []
                trouble.append(str(error))
            if stored:
                self._lags.is_certain(False)
                return stored
            try:
                await self._check(after)
                if self._lags.is_certain(self._led_last > after):
                    stored = await self._fetch_led(after, bytes_max)
            except (Lost, Unreachable) as error:
                trouble.append(str(error))
            if stored:
                return stored
            is_due = self._last > after and tries < len(SOON_S)
            try:
                async with asyncio.timeout(SOON_S[tries] if is_due else LOOK_S):
                    await news.wait()
                tries = 0
            except TimeoutError:
                tries += 1

    async def _fetch(self, after: int, bytes_max: int) -> list[Stored]:
        stored: list[Stored] = []

        def take(heard: NatsMessage) -> bool:
            if heard.status:
                return True  # the end of the batch, or no message
            if (sequence := int(heard.headers["Nats-Sequence"])) == after + len(stored) + 1:
                stored.append(Stored(sequence, heard.data))
            return False

        request = {"seq": after + 1, "batch": MESSAGES_MAX, "max_bytes": bytes_max}
        subject = f"$JS.API.DIRECT.GET.{self.stream}"
        try:
            async with asyncio.timeout(TRY_S):
                await self._connection.converse(subject, msgspec.json.encode(request), take)
        except (TimeoutError, Lost):
            if not stored:
                raise Unreachable("no server answers for JetStream") from None
        return stored

    async def _fetch_led(self, after: int, bytes_max: int) -> list[Stored]:
        """Read entries from the leading server.

        A restarted server may need 15 s and more to catch up: NATS gives each try 5 s, three times,
        and starts again. A node that reads only from such a server would stand still meanwhile.
        """
        stored: list[Stored] = []
        size = 0
        last = min(self._led_last, after + LED_MESSAGES_MAX)
        for sequence in range(after + 1, last + 1):
            answer = await self._once("STREAM.MSG.GET", msgspec.json.encode({"seq": sequence}))
            if answer.message is None:
                break
            size += len(answer.message.data)
            if stored and size > bytes_max:
                break
            stored.append(Stored(sequence, answer.message.data))
        return stored

    async def _check(self, after: int) -> None:
        """Check at intervals whether a missing entry can still come."""
        if (now := _now()) < self._checked_at + CHECK_S:
            return
        self._checked_at = now
        answer = await self._once("STREAM.INFO", b"")
        if self._missing.is_certain(answer.is_missing):
            raise Gone(f"{self.place} does not exist any more")
        if answer.error is not None:
            raise Unreachable(answer.error.description)
        assert answer.state is not None, "JetStream's answer about a stream has its state"
        first, last = answer.state.held
        self._led_last = last
        if first > after + 1:
            raise Gone(f"{self.place} begins at {first:,}: the entry {after + 1:,} is gone")
        if self._short.is_certain(last < after):
            raise Gone(f"{self.place} ends at {last:,}, and it had the entry {after:,}")


def _now() -> float:
    return asyncio.get_running_loop().time()
