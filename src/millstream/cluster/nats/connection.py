"""The connection to NATS, with an event loop on a separate thread.

All threads may use the connection. A lost connection is opened again, to any of the named servers,
and its subscriptions continue. A request is sent once: the outcome is unknown if the connection is
lost meanwhile.
"""

from __future__ import annotations

import asyncio
import itertools
import secrets
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import CancelledError, Future
from contextlib import suppress
from functools import partial
from typing import Any, NamedTuple, TypeVar

from nats.aio.client import Client
from nats.errors import AuthorizationError
from nats.errors import Error as NatsError

from millstream.cluster.nats.access import NatsAccess, is_new_enough
from millstream.cluster.shared_log import Unreachable

Answer = TypeVar("Answer")
Hear = Callable[["NatsMessage"], object]

PING_S = 1
"""The interval of pings; two missing answers end the connection."""
RECONNECT_S = 0.2
"""The pause before an unreachable server is tried again."""
CANCEL_S = 1
"""The pause before a task that ignores its cancellation is cancelled again."""

CLOSE_S = 1
"""How long tasks of the client may take to end by themselves."""

CONNECT_TIMEOUT_S = 2
NO_RESPONDERS = 503
PAYLOAD_BYTES_MIN = 1_000_000
"""Bytes of a message: the largest entry of a shared log, with its headers; NATS' default is larger.
"""


class NatsMessage(NamedTuple):
    """A received message; `status` is not 0 for messages of the server itself."""

    subject: str
    data: bytes
    status: int
    headers: dict[str, str]


class Lost(Exception):
    """The connection was lost after a request was sent, and before its answer came."""


class NatsConnection:
    """A connection to the first reachable server of several NATS servers."""

    def __init__(self, access: NatsAccess, *, name: str) -> None:
        """Begin to connect; only calls wait. Raises `InvalidInput` for bad TLS files."""
        self.place = access.place
        self.trouble = "no server has answered yet"
        """The last error, for messages."""
        self.refusal = ""
        """Why a server does not admit this client, or forbids a subject; empty if it does not."""
        self._options: dict[str, Any] = {
            "servers": list(access.servers),
            "name": name,
            "max_reconnect_attempts": -1,
            "reconnect_time_wait": RECONNECT_S,
            "connect_timeout": CONNECT_TIMEOUT_S,
            "ping_interval": PING_S,
            "dont_randomize": True,  # the first server is the node's own
        }
        self._shown = access.shown()
        self._needs_tls = access.tls is not None
        self._lacks_certificate = access.tls is not None and not access.tls.certificate
        if access.tls is not None:
            self._options |= {
                "tls": access.tls.context(),
                "tls_handshake_first": access.is_tls_first,
            }
        self._inbox = f"_INBOX.{secrets.token_hex(8)}"
        self._tokens = itertools.count(1)
        self._answers: dict[str, Hear] = {}
        self._subscribed: list[tuple[str, Hear]] = [(f"{self._inbox}.*", self._answered)]
        self._calls: set[Future[Any]] = set()
        self._tasks: set[asyncio.Task[Any]] = set()
        self._closed = False
        self._mutex = threading.Lock()
        self._client: Any = None
        self._connected = asyncio.Event()
        self._ending = asyncio.Event()
        self._loop = asyncio.new_event_loop()
        self._lost: asyncio.Future[None] = self._loop.create_future()
        self._thread = threading.Thread(target=self._run, name="millstream-nats", daemon=True)
        self._thread.start()

    def call(self, work: Coroutine[Any, Any, Answer], *, timeout_s: float) -> Answer:
        """Run a coroutine on the connection's loop. Raises `TimeoutError` after the timeout.

        Raises `Unreachable` if the connection is closed, or is closed meanwhile.
        """
        with self._mutex:
            if self._closed:
                work.close()
                raise Unreachable(f"the connection to NATS at {self.place} is closed")
            future = asyncio.run_coroutine_threadsafe(self._within(work, timeout_s), self._loop)
            self._calls.add(future)
        try:
            return future.result()
        except CancelledError:
            raise Unreachable(f"the connection to NATS at {self.place} was closed") from None
        finally:
            with self._mutex:
                self._calls.discard(future)

    def publish(self, subject: str, data: bytes) -> None:
        """Send a message to present listeners, without waiting; it may be lost."""
        self._soon(partial(self._publish, subject, data))

    def subscribe(self, subject: str, hear: Hear) -> None:
        """Call `hear` with every later message of a subject, on the connection's thread."""
        self._soon(partial(self._subscribe, subject, hear))

    def close(self) -> None:
        """Close the connection; waiting calls raise. A second call does nothing."""
        with self._mutex:
            if self._closed:
                return
            self._closed = True
            waiting = list(self._calls)
        for future in waiting:
            future.cancel()
        self._loop.call_soon_threadsafe(self._ending.set)
        if threading.current_thread() is not self._thread:
            self._thread.join(CONNECT_TIMEOUT_S + 1)

    # Coroutines on the loop.

    async def _within(self, work: Coroutine[Any, Any, Answer], timeout_s: float) -> Answer:
        """Return the result of a coroutine, or raise `TimeoutError`, even if it ignores
        cancellation.

        A task can miss its cancellation: `Client.publish` then continues, and so does `wait_for` if
        its future is done at the same moment. The caller would otherwise wait without end.
        """
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._let_go)
        try:
            await asyncio.wait((task,), timeout=timeout_s)
            if not task.done():
                raise TimeoutError
        finally:
            self._cancel(task)
        return task.result()

    def _cancel(self, task: asyncio.Task[Any]) -> None:
        """Cancel a task, repeatedly while it continues."""
        if not task.done():
            task.cancel()
            self._loop.call_later(CANCEL_S, self._cancel, task)

    def _let_go(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled():
            task.exception()  # its caller has the error, or waits no more

    async def connected(self) -> None:
        """Wait for a connection."""
        await self._connected.wait()

    async def request(
        self, subject: str, data: bytes, headers: dict[str, str] | None = None
    ) -> NatsMessage:
        """Send a request and return its single answer; see `converse`."""
        heard: list[NatsMessage] = []

        def take(answer: NatsMessage) -> bool:
            heard.append(answer)
            return True

        await self.converse(subject, data, take, headers)
        return heard[0]

    async def converse(
        self,
        subject: str,
        data: bytes,
        take: Callable[[NatsMessage], bool],
        headers: dict[str, str] | None = None,
    ) -> None:
        """Send a request with many answers; `take` says whether an answer is the last.

        Raises `Unreachable` if the request was not sent, or no server answers such requests now;
        `Lost` if the connection was lost meanwhile.
        """
        ended: asyncio.Future[int] = self._loop.create_future()

        def hear(answer: NatsMessage) -> None:
            if not ended.done() and (answer.status == NO_RESPONDERS or take(answer)):
                ended.set_result(answer.status)

        token = str(next(self._tokens))
        self._answers[token] = hear
        try:
            if not self._connected.is_set():
                raise Unreachable(f"no connection to NATS at {self.place}: {self.trouble}")
            await self._send(subject, data, reply=f"{self._inbox}.{token}", headers=headers)
            await asyncio.wait((ended, self._lost), return_when=asyncio.FIRST_COMPLETED)
        finally:
            del self._answers[token]
        if not ended.done():
            raise Lost(f"the connection to NATS at {self.place} was lost: {self.trouble}")
        if ended.result() == NO_RESPONDERS:
            raise Unreachable(f"no server of NATS at {self.place} answers {subject}")

    async def _send(self, subject: str, data: bytes, **options: Any) -> None:
        try:
            await self._client.publish(subject, data, **options)
        except NatsError as error:
            raise Unreachable(f"NATS at {self.place} takes nothing: {error}") from error

    async def _publish(self, subject: str, data: bytes) -> None:
        if self._connected.is_set():
            with suppress(Unreachable):
                await self._send(subject, data)

    async def _subscribe(self, subject: str, hear: Hear) -> None:
        self._subscribed.append((subject, hear))
        if self._client is not None:
            await self._listen(subject, hear)

    async def _listen(self, subject: str, hear: Hear) -> None:
        async def take(message: Any) -> None:
            headers = message.headers or {}
            hear(NatsMessage(message.subject, message.data, int(headers.get("Status", 0)), headers))

        await self._client.subscribe(subject, cb=take)

    def _answered(self, heard: NatsMessage) -> None:
        if (hear := self._answers.get(heard.subject.rpartition(".")[2])) is not None:
            hear(heard)

    def _soon(self, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        with suppress(RuntimeError):  # closed
            self._loop.call_soon_threadsafe(self._start, work)

    def _start(self, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        task = self._loop.create_task(work())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_until_complete(self._live())
        finally:
            self._loop.close()

    async def _live(self) -> None:
        ending = asyncio.ensure_future(self._ending.wait())
        while not ending.done():
            life = asyncio.ensure_future(self._connection())
            await asyncio.wait((life, ending), return_when=asyncio.FIRST_COMPLETED)
            life.cancel()
            await asyncio.wait((life,))
        for task in [*self._tasks]:
            task.cancel()
        if others := asyncio.all_tasks() - {asyncio.current_task()}:
            # A client that was refused closes its socket in a task that it began itself.
            await asyncio.wait(others, timeout=CLOSE_S)
        remaining = asyncio.all_tasks() - {asyncio.current_task()}
        for task in remaining:
            task.cancel()
        await asyncio.gather(*remaining, return_exceptions=True)

    async def _connection(self) -> None:
        """Run a client until it gives up: it reconnects by itself, but not after a refusal."""
        client: Any = _ClosingClient()
        over = asyncio.Event()

        async def broken() -> None:
            self._connected.clear()
            self._lost.set_result(None)
            self._lost = self._loop.create_future()

        async def again() -> None:
            self._connected.set()

        async def failed(error: Exception) -> None:
            self._fail(error)

        async def closed() -> None:
            over.set()

        try:
            await client.connect(
                **self._options,
                **{name: self._guarded(client, value) for name, value in self._shown.items()},
                error_cb=failed,
                disconnected_cb=broken,
                reconnected_cb=again,
                closed_cb=closed,
            )
            self._check(client)
            self._client = client
            for subject, hear in self._subscribed:
                await self._listen(subject, hear)
            await client.flush()
            self.refusal = ""
            self._connected.set()
            await over.wait()
        except (NatsError, OSError, TimeoutError) as error:
            await failed(error)
        finally:
            if self._connected.is_set():
                await broken()
            self._client = None
            await client.close()
        await asyncio.sleep(RECONNECT_S)

    def _fail(self, error: Exception) -> None:
        self.trouble = str(error) or type(error).__name__
        if self._lacks_certificate and isinstance(error, ConnectionError):
            # A server that requires certificates sends an alert of TLS and closes. The next write of
            # this client may fail before the client reads the alert, so the cause is only likely.
            self.trouble += (
                "; the server may require a certificate of this node: name --cluster-certificate "
                "and --cluster-key"
            )
        if isinstance(error, AuthorizationError) or "authorization" in self.trouble.lower():
            self.refusal = (
                f"NATS at {self.place} does not let this node in: say who it is, as "
                "nats://USER:PASSWORD@HOST:PORT or nats://TOKEN@HOST:PORT"
            )
        elif isinstance(error, _Unfit):
            self.refusal = self.trouble
        elif "permissions violation" in self.trouble.lower():
            self.refusal = (
                f"NATS at {self.place} forbids what a node does ({self.trouble}): let its user "
                "publish and subscribe to millstream.>, $JS.API.> and _INBOX.>"
            )

    def _guarded(self, client: Any, value: str) -> Callable[[], str]:
        """Return a function that gives a credential when it is sent, but never without TLS."""

        def give() -> str:
            self._check_tls(client)
            return value

        return give

    def _check_tls(self, client: Any) -> None:
        if self._needs_tls and not client._server_info.get("tls_required"):
            raise _Unfit(
                f"NATS at {self.place} speaks plainly, and TLS was asked for: give its servers "
                "certificates, or say nats:// and name none"
            )

    def _check(self, client: Any) -> None:
        """Refuse a server that cannot be used."""
        self._check_tls(client)
        version = str(client._server_info.get("version", "unknown"))
        if not is_new_enough(version):
            raise _Unfit(
                f"a cluster needs nats-server 2.15 or newer, and the one at {self.place} is {version}"
            )
        if client.max_payload < PAYLOAD_BYTES_MIN:
            raise _Unfit(
                f"NATS at {self.place} takes messages of {client.max_payload:,} bytes, and a cluster "
                f"sends up to {PAYLOAD_BYTES_MIN:,}: raise max_payload there to 1MB or more"
            )


class _ClosingClient(Client):
    """A client that closes the socket of a failed handshake before it connects again.

    nats-py 2 replaces its stream without closing it if a server ends the connection between TCP's
    handshake and its own. The socket then stays open until the garbage collector finds it.
    """

    async def _connect_to_server(self, s: Any) -> None:
        transport: Any = self._transport
        if transport is not None:
            transport.close()
        await super()._connect_to_server(s)


class _Unfit(NatsError):
    """A reachable server that cannot be used."""
