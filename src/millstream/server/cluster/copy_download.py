"""Download the copy of another node's store in chunks, each checked by its digest.

A failed chunk is requested again, so that a download resumes after a failure. The file is complete
only if every chunk was. The download runs on the node's own thread.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from threading import Event
from typing import TypeVar

import msgspec

from millstream.cluster.reports import NodeReport
from millstream.errors import CorruptionError, Overloaded
from millstream.remote.address import parse_address
from millstream.remote.http import BrokenHttp, HttpClient
from millstream.server.cluster.copies import OfferedCopy, digest_of

T = TypeVar("T")

PATH = "/cluster/snapshot"
DIGEST_HEADER = "millstream-digest"
TIMEOUT_S = 30.0
TRIES = 5
"""How often a chunk is requested."""
PAUSE_S = 0.2
"""The pause before the second try; later pauses grow."""


class _Failed(Exception):
    """A failed try; another try may succeed."""


class Fetcher:
    """Downloads copies from other nodes; `Node` calls it."""

    def __init__(
        self,
        key: str,
        *,
        ca: str | None = None,
        pause: Callable[[float], object] | None = None,
    ) -> None:
        """`key` is the shared secret of the nodes."""
        self._key, self._ca = key, ca
        self._pause = pause or Event().wait
        self.fetched_bytes = 0
        self.repeats = 0
        """Chunks that were requested again."""

    def __call__(self, source: NodeReport, path: Path) -> None:
        """Download a copy of a node's store into a file. Raises `Overloaded` if all tries fail."""
        address = parse_address(source.address, token=self._key, ca=self._ca, is_handed_on=True)
        connection = HttpClient(address, timeout_s=TIMEOUT_S)
        try:
            offer = self._try(partial(_offer, connection))
            with suppress(FileNotFoundError):
                path.unlink()
            with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
                for number in range(-(-offer.size // offer.chunk_bytes)):
                    chunk = self._try(partial(_chunk, connection, offer, number))
                    file.write(chunk)
                    self.fetched_bytes += len(chunk)
                file.flush()
                os.fsync(file.fileno())
            if path.stat().st_size != offer.size:
                raise CorruptionError(
                    f"a copy of {source.node} has {path.stat().st_size:,} bytes, not {offer.size:,}",
                    what="copy",
                    where=source.address,
                )
        except _Failed as error:
            raise Overloaded(
                f"no copy of node {source.node} at {source.address} could be downloaded: {error}"
            ) from error
        finally:
            connection.close()

    def _try(self, request: Callable[[], T]) -> T:
        for tries_left in reversed(range(TRIES)):
            try:
                return request()
            except _Failed:
                if not tries_left:
                    raise
                self.repeats += 1
                self._pause(PAUSE_S * (TRIES - tries_left))
        raise AssertionError("there is at least one try")


def _get(connection: HttpClient, target: str) -> tuple[bytes, str]:
    """Return the body of an answer, and its digest from the header."""
    try:
        answer = connection.ask("GET", target)
    except BrokenHttp as error:
        raise _Failed(str(error)) from error
    if answer.status != 200:
        connection.close()
        raise _Failed(f"the node answers {answer.status}: {answer.excerpt}")
    return answer.body, answer.headers.get(DIGEST_HEADER, "")


def _offer(connection: HttpClient) -> OfferedCopy:
    body, _ = _get(connection, PATH)
    try:
        return msgspec.json.decode(body, type=OfferedCopy)
    except msgspec.MsgspecError as error:
        raise _Failed(f"the node offers no copy: {error}") from error


def _chunk(connection: HttpClient, offer: OfferedCopy, number: int) -> bytes:
    body, digest = _get(connection, f"{PATH}?copy={offer.copy}&chunk={number}")
    if digest_of(body) != digest:
        raise _Failed(f"chunk {number} was damaged on the way: its digest differs")
    return body
