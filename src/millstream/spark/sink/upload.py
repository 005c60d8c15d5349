"""Staging at a server: tasks send packed blocks to it, and the driver asks it to publish them."""

from __future__ import annotations

import threading
from collections.abc import Iterable
from urllib.parse import quote, urlencode

import msgspec
from msgspec import Struct

from millstream.errors import CannotOpen, NotLeader, Overloaded
from millstream.format.block import checksum
from millstream.remote.http import BrokenHttp, ask
from millstream.remote.nodes import parse_nodes
from millstream.spark.place import Place
from millstream.spark.sink.staging import LogBlock

MEDIA_TYPE = "application/x-millstream-batch"
TIMEOUT_S = 120.0
PAUSE_S = 1.0
"""Between tries at a server that has too much to do."""

TRIES = 3
"""How often a part is sent: a repeat replaces it."""

_encode = msgspec.msgpack.Encoder().encode


class SentPart(Struct, frozen=True):
    """A block that a server keeps until the commit; named as the server names it."""

    part: str
    attempt: int
    count: int
    crc: int
    log: str = ""


def send(
    place: Place, txn: str, found: Iterable[LogBlock], *, partition: int, attempt: int
) -> list[SentPart]:
    """Stage blocks, each a part of its own."""
    sent, server = [], _UploadServer(place)
    for number, (log, packed) in enumerate(found):
        data = _encode(packed)
        part, crc = f"{partition}-{number}", checksum(data)
        query = urlencode({"attempt": attempt, "crc": crc})
        server.ask("POST", f"{_staging(txn)}/{part}?{query}", data, MEDIA_TYPE)
        sent.append(SentPart(part, attempt, packed.count, crc, log))
    return sent


def commit(place: Place, txn: str, log: str, parts: list[SentPart]) -> None:
    """Publish parts, in the order in which they are listed; once, however often it is asked.

    A batch that Spark runs again is the same batch, though its tasks may pack its rows otherwise.
    """
    body = msgspec.json.encode({"log": log, "parts": parts, "any_content": True})
    _UploadServer(place).ask("POST", f"{_staging(txn)}/commit", body, "application/json")


def abandon(place: Place, txn: str) -> None:
    """Forget what was staged."""
    _UploadServer(place).ask("DELETE", _staging(txn))


def _staging(txn: str) -> str:
    return f"/staging/{quote(txn, safe='')}"


class _UploadServer:
    """A server, asked over a connection for each request: most of them carry megabytes."""

    def __init__(self, place: Place) -> None:
        self._nodes = parse_nodes(place.url, token=place.secret(), ca=place.ca or None)

    def ask(self, method: str, path: str, body: bytes = b"", media_type: str = "") -> None:
        """Send a request, again if the connection was lost. Raises the server's error."""
        headers = {"Accept": "application/json"}
        if media_type:
            headers["Content-Type"] = media_type
        for tries_left in reversed(range(TRIES)):
            try:
                answer = ask(self._nodes.current, method, path, body, headers, timeout_s=TIMEOUT_S)
            except BrokenHttp as error:
                if not tries_left:
                    raise CannotOpen(
                        f"{self._nodes.shown} cannot be reached: {error}", path=self._nodes.shown
                    ) from None
                self._nodes.pass_on()
                continue
            if answer.is_good:
                return
            problem = answer.problem()
            if not tries_left or not isinstance(problem, Overloaded | NotLeader):
                raise problem
            threading.Event().wait(PAUSE_S)
