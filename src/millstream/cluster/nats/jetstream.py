"""The shared log on NATS JetStream: one stream of one subject, on as many servers as keep a quorum.

| what is asked | what JetStream is asked |
|---|---|
| append | publish, with the header Nats-Expected-Last-Sequence |
| read | a direct get of many messages, from any server that holds the stream; one by one from the server that leads it, if the nearest one has not caught up |
| held | the stream's state, from the server that leads it |
| trim | a purge below a sequence |
| hand over | that the server which leads the stream steps down, for another one |

An appended entry is made known to all readers by a message that nothing depends on: a reader that
misses it looks again after `LOOK_S`.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Any

import msgspec

from millstream.cluster.nats.connection import Lost, NatsLine, NatsMessage
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
"""The largest entry: below NATS' own default for a message, with room for its headers."""
STREAM_BYTES_MAX = 256 << 20
"""A stream that was not trimmed for too long takes nothing new, so that no disk fills up."""
TRY_S = 2.0
"""How long one request about the stream may take; a server without a leader does not answer."""
PAUSE_S = 0.1
LOOK_S = 0.25
"""How long a reader that heard of nothing new waits before it looks again."""
SOON_S = (0.001, 0.002, 0.004, 0.008, 0.016, 0.032, 0.064)
"""How long it waits if there is something new, and the nearest server does not have it yet."""
CHECK_S = 1.0
"""How often a reader that waits looks whether what it waits for can still come."""
CERTAIN_S = 3.0
"""How long a stream must be missing, or too short, until that is believed.

A server that has just begun to lead may not know the stream's end for a moment.
"""
MESSAGES_MAX = 10_000
LED_MESSAGES_MAX = 50
"""How many entries one read asks the leading server for: each takes a request of its own."""
BEHIND = "millstream-behind"
"""In a stream's metadata: the hash that its first entry follows, if it was begun behind stores."""


class Unfit(Unreachable):
    """NATS cannot keep the log, however long one waits: it says why, and what to change."""


class _Doubt:
    """Something that is said to be so, and is believed once it was said for long enough."""

    def __init__(self) -> None:
        self._since: float | None = None

    def is_certain(self, is_so: bool) -> bool:
        """Whether it has been so for `CERTAIN_S`, at each time that it was asked."""
        if not is_so:
            self._since = None
            return False
        self._since = self._since or _now()
        return _now() - self._since > CERTAIN_S


class _Attempt:
    """An append on its way: whether it may be stored."""

    is_sent = False


class JetStreamLog:
    """A `SharedLog` on JetStream. It owns the line that it was given."""

    def __init__(self, line: NatsLine, cluster: str, *, replicas: int = 3) -> None:
        """The log of a cluster; it need not exist yet: see `found`."""
        self.place = f"the shared log of {cluster} on NATS at {line.place}"
        self.entry_bytes_max = ENTRY_BYTES_MAX
        self._line = line
        self._cluster, self._replicas = cluster, replicas
        self.stream = f"millstream-{cluster}"
        self.servers = StreamServers()
        """Which servers keep the stream, and which of them leads it, as was heard last."""
        self._subject = f"millstream.{cluster}.log"
        self._grown = f"millstream.{cluster}.grown"
        self._last = 0
        """The newest entry that was heard of."""
        self._news = asyncio.Event()
        self._missing, self._short, self._lags = _Doubt(), _Doubt(), _Doubt()
        self._led_last = 0
        """The newest entry that the leading server has, as it last said."""
        self._checked_at = float("-inf")
        line.subscribe(self._grown, self._hear)

    def ready(self, *, timeout_s: float) -> None:
        """Wait for a connection to a server. Raises `Unreachable`."""
        try:
            self._line.call(self._line.connected(), timeout_s=timeout_s)
        except TimeoutError:
            raise Unreachable(f"{self.place}: {self._line.trouble}") from None

    def found(self, *, timeout_s: float, first: int = 1, behind: bytes = b"") -> None:
        """Make the stream, unless there is one; its first entry gets the sequence `first`.

        `behind` is the hash that this entry will follow, if stores with a history go on there. Raises `Unreachable` as long as its servers have no quorum.
        """
        wanted = {
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
        self._ask("STREAM.CREATE", wanted, timeout_s=timeout_s)

    def rehearse(self, *, timeout_s: float) -> None:
        """Make a stream like it and delete that again: what could not be made is not replaced.

        Raises `Unreachable` with the reason.
        """
        beside = JetStreamLog(self._line, f"{self._cluster}-rehearsed", replicas=self._replicas)
        beside.drop(
            timeout_s=timeout_s
        )  # one of a rehearsal that was broken off may have other replicas
        beside.found(timeout_s=timeout_s)
        beside.drop(timeout_s=timeout_s)

    def drop(self, *, timeout_s: float) -> None:
        """Delete the stream with all that is in it; it may be gone already."""
        self._ask("STREAM.DELETE", None, timeout_s=timeout_s)

    def append(self, data: bytes, *, after: int, timeout_s: float) -> int:
        """Store an entry if the last sequence is `after`, on a quorum's disks."""
        if len(data) > self.entry_bytes_max:
            raise ValueError(
                f"an entry has at most {self.entry_bytes_max:,} bytes, not {len(data):,}"
            )
        attempt = _Attempt()
        try:
            sequence = self._line.call(self._append(data, after, attempt), timeout_s=timeout_s)
        except (TimeoutError, Lost, Unreachable) as error:
            why = str(error) or f"no answer within {timeout_s:g} s"
            if attempt.is_sent:
                raise Unsure(f"{self.place}: {why}") from error
            raise Unreachable(f"{self.place}: {why}") from error
        self._line.publish(self._grown, str(sequence).encode())
        return sequence

    def read(self, after: int, *, bytes_max: int, timeout_s: float) -> list[Stored]:
        """Entries after a sequence, as the nearest server has them; waits for the first."""
        trouble: list[str] = []
        try:
            return self._line.call(self._read(after, bytes_max, trouble), timeout_s=timeout_s)
        except TimeoutError:
            if trouble:
                raise Unreachable(f"{self.place}: {trouble[-1]}") from None
            return []

    def held(self, *, timeout_s: float) -> Held:
        """What the stream holds."""
        return self.span(timeout_s=timeout_s).held

    def entry(self, sequence: int, *, timeout_s: float) -> bytes | None:
        """One entry, as the server that leads the stream has it."""
        found = self._ask("STREAM.MSG.GET", {"seq": sequence}, timeout_s=timeout_s).message
        return None if found is None else found.data

    def begun_behind(self, *, timeout_s: float) -> bytes:
        """The hash that the stream's first entry of all follows; empty if that is not known."""
        config = self._ask("STREAM.INFO", None, timeout_s=timeout_s).config
        return bytes.fromhex(config.metadata.get(BEHIND, ""))

    def span(self, *, timeout_s: float) -> StreamState:
        """What the stream holds, and how large it is."""
        state = self._ask("STREAM.INFO", None, timeout_s=timeout_s).state
        assert state is not None, "JetStream's answer about a stream has its state"
        return state

    def trim(self, before: int, *, timeout_s: float) -> None:
        """Purge what lies below a sequence."""
        if before > 1:
            self._ask("STREAM.PURGE", {"seq": before}, timeout_s=timeout_s)

    def look(self, *, timeout_s: float) -> StreamServers:
        """Which servers keep the stream, asked anew."""
        self._ask("STREAM.INFO", None, timeout_s=timeout_s)
        return self.servers

    def hand_over(self, server: str, *, timeout_s: float) -> None:
        """Have another server lead the stream; `servers` then says which one does.

        Its servers and what they hold stay as they are. Raises `Unreachable` if it takes too long.
        """
        asked = {"placement": {"preferred": server}}
        try:
            self._line.call(self._hand_over(msgspec.json.encode(asked)), timeout_s=timeout_s)
        except TimeoutError:
            why = f"it has no other leading server within {timeout_s:g} s"
            raise Unreachable(f"{self.place}: {why}") from None
        except Lost as error:
            raise Unreachable(f"{self.place}: {error}") from error

    def close(self) -> None:
        """Close the line."""
        self._line.close()

    def _ask(self, what: str, asked: dict[str, Any] | None, *, timeout_s: float) -> StreamAnswer:
        trouble: list[str] = []
        try:
            return self._line.call(self._answer(what, asked, trouble), timeout_s=timeout_s)
        except TimeoutError:
            why = trouble[-1] if trouble else self._line.trouble
            raise Unreachable(f"{self.place}: in vain for {timeout_s:g} s: {why}") from None

    # On the line's loop.

    def _hear(self, heard: NatsMessage) -> None:
        self._last = max(self._last, int(heard.data))
        self._news.set()
        self._news = asyncio.Event()

    async def _append(self, data: bytes, after: int, attempt: _Attempt) -> int:
        await self._line.connected()
        attempt.is_sent = True
        headers = {"Nats-Expected-Last-Sequence": str(after)}
        try:
            heard = await self._line.request(self._subject, data, headers)
        except Unreachable:
            attempt.is_sent = False
            raise
        answer = decode_answer(heard)
        if answer.error is None:
            return answer.seq
        if answer.error.err_code in WRONG_SEQUENCE:
            raise Overtaken(f"{self.place}: {answer.error.description}, not {after}")
        # The server may have refused it, or failed after others had stored it.
        raise Lost(answer.error.description)

    async def _answer(
        self, what: str, asked: dict[str, Any] | None, trouble: list[str]
    ) -> StreamAnswer:
        """Ask until there is an answer: what is asked so may be asked twice."""
        data = b"" if asked is None else msgspec.json.encode(asked)
        while True:
            await self._line.connected()
            try:
                answer = await self._once(what, data)
                if answer.error is None or answer.error.err_code == DONE.get(what):
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
        """What can be done about an error; raises `Unfit` if waiting is of no use."""
        if (remedy := UNFIT.get(error.err_code)) is not None:
            raise Unfit(f"{self.place} cannot be kept there ({error.description}): {remedy}")
        if error.err_code == NO_PEERS:
            return (
                f"fewer than {self._replicas} of its servers run with JetStream "
                f"({error.description}): start them, or say --replicas with fewer"
            )
        return error.description

    async def _once(self, what: str, data: bytes) -> StreamAnswer:
        try:
            async with asyncio.timeout(TRY_S):
                heard = await self._line.request(f"$JS.API.{what}.{self.stream}", data)
            answer = decode_answer(heard)
        except TimeoutError:
            raise Unreachable("no server answers for JetStream") from None
        except Unreachable as error:
            raise Unreachable(f"{error}: is JetStream on? It is not on every server") from error
        if answer.cluster is not None:
            self.servers = answer.cluster
        return answer

    async def _hand_over(self, asked: bytes) -> None:
        before = self.servers.leader
        answer = await self._once("STREAM.LEADER.STEPDOWN", asked)
        if answer.error is not None:
            raise Unreachable(f"{self.place}: {answer.error.description}")
        while self.servers.leader in ("", before):
            await asyncio.sleep(SOON_S[-1])
            with suppress(Lost, Unreachable):  # while none leads, none answers
                await self._once("STREAM.INFO", b"")

    async def _read(self, after: int, bytes_max: int, trouble: list[str]) -> list[Stored]:
        tries = 0
        while True:
            await self._line.connected()
            news = self._news
            try:
                found = await self._fetch(after, bytes_max)
                trouble.clear()
            except (Lost, Unreachable) as error:
                found = []
                trouble.append(str(error))
            if found:
                self._lags.is_certain(False)
                return found
            try:
                await self._check(after)
                if self._lags.is_certain(self._led_last > after):
                    found = await self._fetch_led(after, bytes_max)
            except (Lost, Unreachable) as error:
                trouble.append(str(error))
            if found:
                return found
            is_due = self._last > after and tries < len(SOON_S)
            try:
                async with asyncio.timeout(SOON_S[tries] if is_due else LOOK_S):
                    await news.wait()
                tries = 0
            except TimeoutError:
                tries += 1

    async def _fetch(self, after: int, bytes_max: int) -> list[Stored]:
        found: list[Stored] = []

        def take(heard: NatsMessage) -> bool:
            if heard.status:
                return True  # the end of the batch, or nothing there
            if (sequence := int(heard.headers["Nats-Sequence"])) == after + len(found) + 1:
                found.append(Stored(sequence, heard.data))
            return False

        asked = {"seq": after + 1, "batch": MESSAGES_MAX, "max_bytes": bytes_max}
        subject = f"$JS.API.DIRECT.GET.{self.stream}"
        try:
            async with asyncio.timeout(TRY_S):
                await self._line.converse(subject, msgspec.json.encode(asked), take)
        except (TimeoutError, Lost):
            if not found:
                raise Unreachable("no server answers for JetStream") from None
        return found

    async def _fetch_led(self, after: int, bytes_max: int) -> list[Stored]:
        """Entries as the leading server has them.

        A server that was restarted may need 15 s and more until it has caught up: NATS gives each try
        5 s, three times, and begins anew. A node whose own server it is would stand still meanwhile.
        """
        found: list[Stored] = []
        size = 0
        last = min(self._led_last, after + LED_MESSAGES_MAX)
        for sequence in range(after + 1, last + 1):
            answer = await self._once("STREAM.MSG.GET", msgspec.json.encode({"seq": sequence}))
            if answer.message is None:
                break
            size += len(answer.message.data)
            if found and size > bytes_max:
                break
            found.append(Stored(sequence, answer.message.data))
        return found

    async def _check(self, after: int) -> None:
        """Whether an entry that is not there can still come; asked once in a while."""
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
