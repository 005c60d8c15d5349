"""Fetching the copy of another node's store, chunk by chunk, each checked as it comes.

A chunk that fails is asked for again, so that a fetch goes on where it was; a file is only whole when
every chunk of it was. It runs on the node's own thread.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from pathlib import Path
from threading import Event
from typing import TypeVar

import msgspec

from millstream.cluster.reports import NodeReport
from millstream.errors import CorruptionError, Overloaded
from millstream.remote.address import Address, parse_address
from millstream.server.cluster.copies import OfferedCopy, digest_of

T = TypeVar("T")

PATH = "/cluster/snapshot"
DIGEST_HEADER = "millstream-digest"
TIMEOUT_S = 30.0
TRIES = 5
"""How often a chunk is asked for."""
PAUSE_S = 0.2
"""Between tries; it grows with each."""


class _Failed(Exception):
    """A try that another one may mend."""


class Fetcher:
    """Fetches copies from other nodes; `Node` is given one."""

    def __init__(
        self,
        key: str,
        *,
        ca: str | None = None,
        pause: Callable[[float], object] | None = None,
    ) -> None:
        """`key` is what nodes show each other."""
        self._key, self._ca = key, ca
        self._pause = pause or Event().wait
        self.fetched_bytes = 0
        self.repeats = 0
        """Chunks that were asked for again."""

    def __call__(self, source: NodeReport, path: Path) -> None:
        """Fetch a copy of a node's store into a file. Raises `Overloaded` if it cannot be had."""
        address = parse_address(source.address, token=self._key, ca=self._ca, is_handed_on=True)
        line = _Line(address)
        try:
            offer = self._try(line, partial(_offer, line))
            with suppress(FileNotFoundError):
                path.unlink()
            with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
                for number in range(-(-offer.size // offer.chunk_bytes)):
                    chunk = self._try(line, partial(_chunk, line, offer, number))
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
                f"no copy of node {source.node} at {source.address} could be fetched: {error}"
            ) from error
        finally:
            line.close()

    def _try(self, line: _Line, ask: Callable[[], T]) -> T:
        for left in reversed(range(TRIES)):
            try:
                return ask()
            except _Failed:
                line.close()
                if not left:
                    raise
                self.repeats += 1
                self._pause(PAUSE_S * (TRIES - left))
        raise AssertionError("it is tried at least once")


class _Line:
    """A connection to the other node, opened when it is needed."""

    def __init__(self, address: Address) -> None:
        self._address = address
        self._connection: HTTPConnection | None = None

    def get(self, target: str) -> tuple[bytes, str]:
        """The body of an answer, and the digest that came with it."""
        if self._connection is None:
            self._connection = self._connect()
        try:
            self._connection.request("GET", target, headers=self._address.headers())
            answer = self._connection.getresponse()
            body = answer.read()
        except (OSError, HTTPException) as error:
            raise _Failed(f"{type(error).__name__}: {error}") from error
        if answer.status != 200:
            raise _Failed(f"it answers {answer.status}: {body[:200].decode(errors='replace')}")
        return body, answer.headers.get(DIGEST_HEADER, "")

    def _connect(self) -> HTTPConnection:
        where = self._address
        if where.tls is None:
            return HTTPConnection(where.host, where.port, timeout=TIMEOUT_S)
        return HTTPSConnection(where.host, where.port, timeout=TIMEOUT_S, context=where.tls)

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None


def _offer(line: _Line) -> OfferedCopy:
    body, _ = line.get(PATH)
    try:
        return msgspec.json.decode(body, type=OfferedCopy)
    except msgspec.MsgspecError as error:
        raise _Failed(f"it offers no copy: {error}") from error


def _chunk(line: _Line, offer: OfferedCopy, number: int) -> bytes:
    body, digest = line.get(f"{PATH}?copy={offer.copy}&chunk={number}")
    if digest_of(body) != digest:
        raise _Failed(f"chunk {number} did not come as it was sent")
    return body
