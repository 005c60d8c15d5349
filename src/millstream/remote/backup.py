"""The backup of a store behind a server: its chunks are downloaded into a place of the client.

The client names the chunks that its place has, and the server sends the other chunks of one snapshot. A
connection that breaks is opened again: chunks that have arrived are in the place, and are not sent again.
The permission is `store:backup`. On a node of a cluster the leading node answers.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from http.client import HTTPResponse
from pathlib import Path
from typing import BinaryIO

import msgspec
from msgspec import Struct

from millstream.backup.chunks import Piece
from millstream.backup.increment import CutStream, IncrementReader, encode_known
from millstream.backup.keep import Keep
from millstream.backup.place import BackupPlace
from millstream.backup.point import BackupPoint
from millstream.backup.run import BackupReport, store_point
from millstream.backup.stream import write_stream
from millstream.clock import Clock, SystemClock
from millstream.engine.row_copy import Heard
from millstream.errors import CannotOpen
from millstream.remote.http import BrokenHttp, HttpAnswer, HttpClient
from millstream.remote.nodes import Nodes, parse_nodes

PATH = "/backup"
TIMEOUT_S = 60.0
"""The longest silence of a server: it sends a sign of life every few seconds."""

TRIES = 5
"""How often a connection may break without a new chunk between."""
PAUSE_S = 0.5
"""The pause before the second try; later pauses grow."""

Pause = Callable[[float], object]


class _Offer(Struct, frozen=True):
    """The store that the server has."""

    store: str
    seq: int


class ServerStore:
    """A store behind a server, as the source of a point."""

    def __init__(self, url: str, *, token: str | None = None, ca: str | None = None) -> None:
        """Name a server; nothing is asked yet."""
        self._nodes: Nodes = parse_nodes(url, token=token, ca=ca)
        self.shown = self._nodes.every_shown
        self.chunks_read = 0
        """Downloaded chunks, summed over repeated connections."""
        self._store = ""

    @property
    def store(self) -> str:
        """The id of the store."""
        if not self._store:
            with self._asked("GET", PATH) as answer:
                self._store = msgspec.json.decode(answer.read(), type=_Offer).store
        return self._store

    @contextmanager
    def capture(
        self, known_names: Collection[str], *, checks_rows: bool, heard: Heard
    ) -> Iterator[tuple[BackupPoint, Iterator[Piece]]]:
        """Download a snapshot without the chunks in `known_names`; raises `BrokenHttp` or `CutStream`."""
        if checks_rows:
            heard("checking", 0, 0)
        path = f"{PATH}?check={'true' if checks_rows else 'false'}"
        with self._asked("POST", path, encode_known(known_names)) as answer:
            reader = IncrementReader(answer.read, self.shown)
            point = reader.point()
            if self._store and point.store != self._store:
                raise CannotOpen(f"{self.shown} has another store by now", path=self.shown)
            yield point, self._counted(reader.pieces())

    def _counted(self, pieces: Iterator[Piece]) -> Iterator[Piece]:
        for piece in pieces:
            self.chunks_read += isinstance(piece, bytes)
            yield piece

    @contextmanager
    def _asked(self, method: str, path: str, body: bytes = b"") -> Iterator[HTTPResponse]:
        """Send a request to the first node that answers, and yield its good answer."""
        headers = {"content-type": "application/octet-stream"} if method == "POST" else {}
        is_answered = False
        for tries_left in reversed(range(len(self._nodes))):
            try:
                with (
                    HttpClient(self._nodes.current, timeout_s=TIMEOUT_S) as client,
                    client.stream(method, path, body, headers) as answer,
                ):
                    if answer.status != 200:
                        raise HttpAnswer(answer.status, answer.read(), answer.headers).problem()
                    is_answered = True
                    yield answer
                return
            except BrokenHttp:
                self._nodes.pass_on()
                if is_answered or not tries_left:
                    raise


def back_up_server(
    source: ServerStore,
    place: str,
    *,
    keep: Keep | None = None,
    compress: bool | None = None,
    heard: Heard | None = None,
    clock: Clock | None = None,
    pause: Pause | None = None,
) -> BackupReport:
    """Add a point of a store behind a server to a place. The store may be in use."""
    clock, target = clock or SystemClock(), BackupPlace(place)
    hear = heard or (lambda _stage, _done, _total: None)
    with _explained(source):
        target.check(source.store)
        with target.locked(clock) as check:

            def run() -> BackupReport:
                return store_point(
                    target, source, check, keep=keep, compress=compress, heard=hear, clock=clock
                )

            return _repeated(run, source, pause or threading.Event().wait)


def stream_server(
    source: ServerStore, output: BinaryIO, *, heard: Heard, clock: Clock | None = None
) -> BackupPoint:
    """Write a complete backup of a store behind a server to a stream."""
    with _explained(source):
        now_ms = (clock or SystemClock()).wall_ms()
        return write_stream(source, output, now_ms=now_ms, heard=heard)


def download_file(source: ServerStore, path: Path, *, heard: Heard) -> None:
    """Write the file of a store behind a server; every chunk is compared with its hash."""
    with (
        _explained(source),
        source.capture((), checks_rows=True, heard=heard) as (point, pieces),
        path.open("wb") as file,
    ):
        for piece in pieces:
            assert isinstance(piece, bytes)  # no chunk is known
            file.write(piece)
            heard("downloading", file.tell(), point.file_bytes)


def _repeated(run: Callable[[], BackupReport], source: ServerStore, pause: Pause) -> BackupReport:
    """Run until the connection does not break; chunks that have arrived are not sent again."""
    failures = 0
    while True:
        before = source.chunks_read
        try:
            return run()
        except (BrokenHttp, CutStream):
            failures = 1 if source.chunks_read > before else failures + 1
            if failures >= TRIES:
                raise
            pause(PAUSE_S * failures)


@contextmanager
def _explained(source: ServerStore) -> Iterator[None]:
    """Turn a broken connection into `CannotOpen`."""
    try:
        yield
    except (BrokenHttp, CutStream) as error:
        cause = error.__cause__
        why = (cause.strerror if isinstance(cause, OSError) else None) or str(error)
        if isinstance(error, BrokenHttp) and not error.was_sent:
            text = f"cannot reach {source.shown}: {why}; there is no new point"
        else:
            text = (
                f"the connection to {source.shown} failed ({why}), and there is no new point: run the "
                "backup again; chunks that have arrived are not sent again"
            )
        raise CannotOpen(text, path=source.shown) from error
