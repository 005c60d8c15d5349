"""Staging at a server: tasks send packed blocks, and the driver asks the server to publish them."""

from __future__ import annotations

import threading
from collections.abc import Iterable
from contextlib import suppress
from urllib.parse import quote, urlencode

import msgspec
from msgspec import Struct

from millstream.errors import CannotOpen, MillstreamError, NotLeader, Overloaded
from millstream.format.block import checksum
from millstream.remote.http import BrokenHttp, ask
from millstream.remote.nodes import parse_nodes
from millstream.spark.place import Place
from millstream.spark.sink.publishing import LogBlock, Version
from millstream.spark.sink.staging import TaskAttempt, encode_block

MEDIA_TYPE = "application/x-millstream-batch"
TIMEOUT_S = 120.0
PAUSE_S = 1.0
"""The pause before another try at an overloaded server."""

TRIES = 3
"""The most times that a part is sent; a repeated part replaces the first."""


class SentPart(Struct, frozen=True):
    """A block that the server keeps until the commit, in the words of the server's API."""

    part: str
    attempt: int
    count: int
    crc: int
    log: str = ""


class ServerStaging:
    """The place of a store behind a server, which removes leftovers by itself."""

    def __init__(self, place: Place) -> None:
        self._place = place

    def stage(self, txn: str, task: TaskAttempt, blocks: Iterable[LogBlock]) -> list[SentPart]:
        """Send the blocks as separate parts, which the server checks."""
        sent, server = [], _UploadServer(self._place)
        for number, (log, packed) in enumerate(blocks):
            data = encode_block(packed)
            name, crc = f"{task.partition}-{number}", checksum(data)
            query = urlencode({"attempt": task.attempt, "crc": crc})
            server.ask("POST", f"{_staging(txn)}/{name}?{query}", data, MEDIA_TYPE)
            sent.append(SentPart(name, task.attempt, packed.count, crc, log))
        return sent

    def publish(self, txn: str, version: Version | None, log: str, staged: list[SentPart]) -> None:
        """Ask the server to publish the parts in order, once for each transaction.

        A batch that Spark runs again counts as published, even if its tasks packed the rows
        differently.
        """
        body = msgspec.json.encode({"log": log, "parts": staged, "any_content": True})
        _UploadServer(self._place).ask("POST", f"{_staging(txn)}/commit", body, "application/json")

    def discard(self, txn: str, *, is_published: bool) -> None:
        """Ask the server to remove parts that were not published."""
        if not is_published:
            with suppress(MillstreamError):
                _UploadServer(self._place).ask("DELETE", _staging(txn))


def _staging(txn: str) -> str:
    return f"/staging/{quote(txn, safe='')}"


class _UploadServer:
    """A server; each request has a connection of its own, because most requests carry megabytes."""

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
