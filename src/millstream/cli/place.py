"""The place of a store: a file, a bucket, or a server with a token.

A token is never shown: neither in an error nor, on Linux, in the list of processes.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Annotated, Any

import typer

import millstream
from millstream.engine.place import check_file, is_address, is_bucket
from millstream.engine.protocol import Mode
from millstream.errors import CannotOpen, MillstreamError, NotFound
from millstream.log.model.names import SEARCHED_MAX, similar_name
from millstream.remote.opening import CONNECT_TIMEOUT_S, RETRY_FOR_S

DEFAULT_STORE = "millstream.db"


def or_value_of_root(context: typer.Context, parameter: typer.CallbackParam, value: Any) -> Any:
    """Let `millstream --store X command` mean the same as `millstream command --store X`."""
    source = context.get_parameter_source(parameter.name or "")
    root_value = context.find_root().params.get(parameter.name or "")
    if root_value is not None and (source is None or source.name != "COMMANDLINE"):
        return root_value
    return value


STORE = typer.Option(
    "--store",
    "-s",
    metavar="PLACE",
    envvar="MILLSTREAM_STORE",
    help="The store: a file, a bucket at s3://…, or a server at http://… or https://….",
    callback=or_value_of_root,
    show_default=DEFAULT_STORE,
)
TOKEN = typer.Option(
    "--token",
    metavar="TEXT",
    help="The token for a server; @FILE reads it from a file.",
    callback=or_value_of_root,
    allow_from_autoenv=False,
    show_default="MILLSTREAM_TOKEN",
)
CA = typer.Option(
    "--ca", metavar="FILE", help="Certificates to trust, for a server.", callback=or_value_of_root
)


@dataclass(frozen=True)
class StorePlace:
    """The options that name a store."""

    store: Annotated[str, STORE] = DEFAULT_STORE
    secret: Annotated[str | None, TOKEN] = None
    """Named `secret`, because `token` is a group of commands in a file of settings."""
    ca: Annotated[str | None, CA] = None

    def __post_init__(self) -> None:
        if self.secret is not None:
            _hide(self.secret)

    @property
    def is_server(self) -> bool:
        """Whether the store is behind a server."""
        return is_address(self.store)

    def home(self, command: str, path: str | None = None) -> Path | str:
        """Return the store's file or bucket, or that of a path; refuse a server."""
        name = path or self.store
        if is_bucket(name):
            return name
        if is_address(name):
            raise CannotOpen(
                f"`millstream {command}` needs the file of a store, not a server; run it on the server's "
                "machine, with --store PATH",
                path=name.rpartition("@")[2],
            )
        return Path(name)

    @property
    def token_file(self) -> str:
        """The file with the token, if one was named."""
        return self.secret[1:] if self.secret and self.secret.startswith("@") else ""

    def token(self) -> str | None:
        """Return the token; None leaves the choice to MILLSTREAM_TOKEN."""
        if not self.token_file:
            return self.secret
        return Path(self.token_file).read_text(encoding="utf-8").strip()

    @contextmanager
    def opened(
        self,
        *,
        create: bool = False,
        mode: Mode = "rw",
        connect_timeout: float = CONNECT_TIMEOUT_S,
        retry_for: float = RETRY_FOR_S,
    ) -> Iterator[millstream.Millstream]:
        """Open the store; only with `create` a missing file is created.

        With `mode="r"` a file is only read. A bucket is read until the first command that writes.
        """
        if self.is_server:
            opening = millstream.open(
                self.store,
                token=self.token(),
                ca=self.ca,
                connect_timeout=connect_timeout,
                retry_for=retry_for,
            )
        else:
            if self.secret is not None or self.ca is not None:
                raise typer.BadParameter("--token and --ca are for a server, but --store is a file")
            opening = self._opened_here(create, mode)
        with opening as ms:
            yield ms

    def _opened_here(self, create: bool, mode: Mode) -> millstream.Millstream:
        if is_bucket(self.store):
            from millstream.cli.read_first import ReadFirst  # not needed by clients of servers

            return millstream.Millstream(ReadFirst(self.store, create=create))
        check_file(self.store)
        if not create and not Path(self.store).exists():
            raise CannotOpen(
                f"there is no store at {self.store}; `millstream append` creates one, "
                "--store or MILLSTREAM_STORE names another",
                path=self.store,
            )
        return millstream.open(self.store, create=create, mode=mode)


@dataclass(frozen=True)
class ServerAccess:
    """The options for a server, of a command that takes a store as an argument."""

    secret: Annotated[str | None, TOKEN] = None
    ca: Annotated[str | None, CA] = None

    def at(self, store: str) -> StorePlace:
        """Return the place of a store; refuse the options for a file."""
        place = StorePlace(store, self.secret, self.ca)
        if not place.is_server and (self.secret is not None or self.ca is not None):
            raise typer.BadParameter(f"--token and --ca are for a server, and {store} is none")
        return place


def _hide(secret: str) -> None:
    """Blank a secret in this process' command line, which other users can see; works on Linux."""
    with suppress(OSError, ValueError, IndexError):
        facts = Path("/proc/self/stat").read_bytes().rpartition(b")")[2].split()
        start, end = int(facts[45]), int(facts[46])
        with open("/proc/self/mem", "r+b", buffering=0) as memory:
            memory.seek(start)
            line = memory.read(end - start)
            memory.seek(start)
            memory.write(line.replace(os.fsencode(secret), b"*" * len(os.fsencode(secret))))


def existing_log(ms: millstream.Millstream, name: str) -> millstream.Log:
    """Return the log of a name. Raises `NotFound` if it does not exist."""
    log = ms.log(name)
    if log.info() is None:
        advice = "`millstream log list` lists the logs"
        raise _missing("log", name, ms.logs, advice=advice)
    return log


def existing_queue(ms: millstream.Millstream, name: str) -> millstream.Queue:
    """Return the queue of a name. Raises `NotFound` if it does not exist."""
    queue = ms.queue(name)
    if not queue.exists():
        advice = "`millstream queue create` creates one, `millstream queue list` lists the queues"
        raise _missing("queue", name, ms.queues, advice=advice)
    return queue


def existing_room(ms: millstream.Millstream, name: str) -> millstream.Room:
    """Return the room of a name. Raises `NotFound` if it does not exist."""
    room = ms.room(name)
    if room.info() is None:
        advice = "`millstream room send` creates one, `millstream room list` lists the rooms"
        raise _missing("room", name, ms.rooms, advice=advice)
    return room


def _missing(noun: str, name: str, listed: Callable[[], Iterable[Any]], *, advice: str) -> NotFound:
    """Return the error for a missing log, queue or room, with a similar name of the store.

    A server lists only names that the token may read, so that the error tells no other name.
    """
    similar = None
    with suppress(MillstreamError):  # a token that may list nothing still gets the error
        similar = similar_name(name, (info.name for info in islice(listed(), SEARCHED_MAX)))
    question = f"; did you mean {similar!r}?" if similar else ""
    return NotFound(f"there is no {noun} {name!r}{question or '; ' + advice}", name=name)
