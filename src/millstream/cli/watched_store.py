"""Watching a store: its pulses, from the file itself or from a server's live view."""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Protocol

import msgspec
import typer

from millstream import Millstream
from millstream.cli.place import StorePlace
from millstream.clock import SystemClock
from millstream.embedded.session import EmbeddedSession, open_file
from millstream.embedded.status import Pulse, age_s, flow_between
from millstream.embedded.totals import Tally, Totals
from millstream.engine.place import check_file, is_bucket
from millstream.errors import CannotOpen, Denied, MillstreamError, Unauthenticated
from millstream.record import Status
from millstream.remote.address import Address
from millstream.remote.http import BrokenHttp, HttpClient
from millstream.remote.nodes import parse_nodes
from millstream.store.store import Store
from millstream.threads.database import ReadOnly

LOOK_S = 1.0
ANSWER_S = 20.0
"""The timeout of the live view; a server sends a heartbeat every ten seconds."""

AGAIN_S = 1.0
"""The pause before a lost server is contacted again."""

WAITING_MAX = 600
"""Most pulses that wait to be shown; a server sends five minutes of them first."""

_LIVE = "/live"


class Watching(Protocol):
    """A watched store."""

    ms: Millstream
    """The open store, for listings."""
    shown: str
    """The store's place, for people."""
    until_rates: int
    """After how many pulses the rates are known: a server's first pulse may have none."""
    trouble: str
    """Why there are no new pulses now; empty without a problem."""

    def news(self) -> list[Pulse]:
        """Return new pulses; empty if it is too early. Raises permanent errors."""


@contextmanager
def watching(place: StorePlace) -> Iterator[Watching]:
    """Watch a store while the block runs."""
    if place.is_server:
        with place.opened() as ms:
            address = parse_nodes(place.store, token=place.token(), ca=place.ca).current
            watched = WatchedServer(ms, address)
            try:
                yield watched
            finally:
                watched.close()
        return
    if place.secret is not None or place.ca is not None:
        raise typer.BadParameter("--token and --ca are for a server, but --store is a file")
    if not is_bucket(place.store):
        _check_there(place.store)
    store = open_file(place.store, mode="r", create=False)
    try:
        yield WatchedFile(store, place.store)
    finally:
        store.close()


def _check_there(path: str) -> None:
    check_file(path)
    if not Path(path).exists():
        raise CannotOpen(
            f"there is no store at {path}; --store or MILLSTREAM_STORE names another", path=path
        )


class WatchedFile:
    """A store's file, opened for reading; changes by other processes are visible."""

    until_rates = 1

    def __init__(self, store: Store, shown: str) -> None:
        self.ms = Millstream(ReadOnly(EmbeddedSession(store)))
        self.shown = shown
        self.trouble = ""
        self._store = store
        self._tally = Tally(store)
        self._seconds = SystemClock().seconds
        self._before: tuple[Totals, float] | None = None

    def news(self) -> list[Pulse]:
        """Return a pulse, a second after the last one; the first call only counts."""
        now_s = self._seconds()
        if self._before is not None and now_s - self._before[1] < LOOK_S:
            return []
        totals, before = self._tally.look(), self._before
        self._before = totals, now_s
        if before is None:
            return []
        now_ms = self._store.clock.wall_ms()
        return [
            Pulse(
                time=now_ms,
                rates=flow_between(before[0], totals, now_s - before[1]),
                depth=totals.depth,
                oldest_age_s=age_s(totals, now_ms),
                logs=totals.logs,
                queues=totals.queues,
                rooms=totals.rooms,
                health=self._health(),
            )
        ]

    def _health(self) -> Status:
        if self._store.condition != "usable":
            return "critical"
        return "warning" if self._store.scrub.report().get("scrub_findings") else "healthy"


class WatchedServer:
    """A server's live view, read by a thread that reconnects after a loss."""

    until_rates = 2

    def __init__(self, ms: Millstream, address: Address) -> None:
        self.ms = ms
        self.shown = address.shown
        self.trouble = ""
        self._address = address
        self._received: queue.Queue[Pulse | MillstreamError] = queue.Queue(WAITING_MAX)
        self._last_ms = 0
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._listen, name="millstream-top", daemon=True)
        self._thread.start()

    def news(self) -> list[Pulse]:
        """Return the pulses that the server has sent; raise its refusal."""
        pulses: list[Pulse] = []
        with suppress(queue.Empty):
            while True:
                item = self._received.get_nowait()
                if isinstance(item, MillstreamError):
                    raise item
                pulses.append(item)
        return pulses

    def close(self) -> None:
        """Stop reading; if the server is silent, the thread ends with the program."""
        self._closed.set()

    def _listen(self) -> None:
        while not self._closed.is_set():
            try:
                self._hear()
            except MillstreamError as error:
                self._tell(error)
                return
            except (BrokenHttp, msgspec.MsgspecError) as error:
                self.trouble = f"no answer from {self.shown} ({error}); connecting again"
            self._closed.wait(AGAIN_S)

    def _tell(self, item: Pulse | MillstreamError) -> None:
        if self._received.full():
            self._received.get()  # no reader: drop the oldest
        self._received.put(item)

    def _hear(self) -> None:
        last = {"Last-Event-ID": str(self._last_ms)}
        with (
            HttpClient(self._address, timeout_s=ANSWER_S) as server,
            server.stream("GET", _LIVE, headers=last) as answer,
        ):
            _check(answer.status)
            for line in answer:
                if self._closed.is_set():
                    return
                if line.startswith(b"data: "):
                    pulse = msgspec.json.decode(line[6:], type=Pulse)
                    self._last_ms, self.trouble = pulse.time, ""
                    self._tell(pulse)


def _check(status: int) -> None:
    """Raise errors that a repeated request cannot mend."""
    if status == 401:
        raise Unauthenticated
    if status == 403:
        raise Denied("to watch a store, a token needs store:read")
    if status == 404:
        raise CannotOpen("this server has no live view: its version may be older", path=_LIVE)
    if status != 200:
        raise BrokenHttp(f"status {status}", was_sent=True)
