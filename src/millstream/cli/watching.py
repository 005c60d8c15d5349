"""Watching a store: its pulse as time goes on, from the file itself or from a server's live view."""

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
from millstream.remote.http import BrokenHttp, HttpConnection
from millstream.remote.nodes import parse_nodes
from millstream.store.store import Store
from millstream.threads.read_only import ReadOnly

LOOK_S = 1.0
ANSWER_S = 20.0
"""A server says something every ten seconds at least."""

AGAIN_S = 1.0
"""How long to wait before a lost server is dialled again."""

WAITING_MAX = 600
"""Figures that wait to be shown; a server sends five minutes of them first."""

_LIVE = "/live"


class Watching(Protocol):
    """A store that is watched."""

    ms: Millstream
    """For listings."""
    shown: str
    """Its place, for people."""
    until_rates: int
    """How many pulses there are when the first has rates: a server's first may have none."""
    trouble: str
    """Why there is nothing new at present; empty if all is well."""

    def news(self) -> list[Pulse]:
        """What is new; nothing if it is too early. Raises what cannot pass."""


@contextmanager
def watching(place: StorePlace) -> Iterator[Watching]:
    """A store, to be watched while the block runs."""
    if place.is_server:
        with place.opened() as ms:
            address = parse_nodes(place.store, token=place.token(), ca=place.ca).current
            found = WatchedServer(ms, address)
            try:
                yield found
            finally:
                found.close()
        return
    if place.secret is not None or place.ca is not None:
        raise typer.BadParameter("--token and --ca are for a server, and --store is a file")
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
    """A store's file, opened to be read; what other processes do to it is seen."""

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
        """The pulse, a second after the last one; the first look only counts."""
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
    """A server's live view, read by a thread that dials again when it is lost."""

    until_rates = 2

    def __init__(self, ms: Millstream, address: Address) -> None:
        self.ms = ms
        self.shown = address.shown
        self.trouble = ""
        self._address = address
        self._told: queue.Queue[Pulse | MillstreamError] = queue.Queue(WAITING_MAX)
        self._last_ms = 0
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._listen, name="millstream-top", daemon=True)
        self._thread.start()

    def news(self) -> list[Pulse]:
        """What the server has told; raises its refusal."""
        found: list[Pulse] = []
        with suppress(queue.Empty):
            while True:
                told = self._told.get_nowait()
                if isinstance(told, MillstreamError):
                    raise told
                found.append(told)
        return found

    def close(self) -> None:
        """Listen no more; the thread ends with the program if the server is silent."""
        self._closed.set()

    def _listen(self) -> None:
        while not self._closed.is_set():
            try:
                self._hear()
            except MillstreamError as error:
                self._tell(error)
                return
            except (BrokenHttp, msgspec.MsgspecError) as error:
                self.trouble = f"no word from {self.shown} ({error}); dialling again"
            self._closed.wait(AGAIN_S)

    def _tell(self, told: Pulse | MillstreamError) -> None:
        if self._told.full():
            self._told.get()  # it is not looked at: the oldest goes
        self._told.put(told)

    def _hear(self) -> None:
        last = {"Last-Event-ID": str(self._last_ms)}
        with (
            HttpConnection(self._address, timeout_s=ANSWER_S) as server,
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
    """Refuse an answer that will not be better the next time."""
    if status == 401:
        raise Unauthenticated
    if status == 403:
        raise Denied("to watch a whole store, a token needs store:read")
    if status == 404:
        raise CannotOpen("this server has no live view: is it an older one?", path=_LIVE)
    if status != 200:
        raise BrokenHttp(f"status {status}", was_sent=True)
