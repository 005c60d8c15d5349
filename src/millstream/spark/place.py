"""The place of a store in Spark's options: a path on this machine, a bucket, or a server.

The driver sends a place to its tasks. A path means the same file only on the machine that named the
path, so a path carries the host, and other machines refuse it. Tasks open a path or a bucket to
read only. Spark never opens a bucket to write, because the open would fence the server of the
bucket. The server adopts staged records instead (`adoption`). No representation and no error shows
a secret.
"""

from __future__ import annotations

import os
import platform
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import Struct

from millstream.embedded.session import EmbeddedSession, open_file
from millstream.engine.place import is_bucket
from millstream.errors import CannotOpen, InvalidInput
from millstream.remote.address import is_address
from millstream.remote.opening import CONNECT_TIMEOUT_S, RETRY_FOR_S, open_remote
from millstream.spark.local.worker import leave_quietly, settle

if TYPE_CHECKING:
    from millstream.command import Session

HOST_VARIABLE = "MILLSTREAM_HOST"


class Place(Struct, frozen=True, kw_only=True):
    """Where a store is, and what a server is to be shown."""

    url: str
    """An absolute path, or the address of a bucket or a server."""
    host: str = ""
    """The machine of a path."""
    token: str = ""
    token_file: str = ""
    ca: str = ""
    read_level: str = "strong"
    """How fresh reads of a cluster must be."""

    def __repr__(self) -> str:
        """The place without its secrets."""
        return f"Place({self.shown})"

    @property
    def shown(self) -> str:
        """The address or path, without a token that stands in it."""
        return self.url.rpartition("@")[2] if self.is_server else self.url

    @property
    def is_server(self) -> bool:
        """Whether it is the address of a server."""
        return is_address(self.url)

    @property
    def is_bucket(self) -> bool:
        """Whether it is the address of object storage, which every machine reaches."""
        return is_bucket(self.url)

    def secret(self) -> str | None:
        """Return the token: the given token, or the content of its file, read on each call."""
        if not self.token_file:
            return self.token or None
        try:
            return Path(self.token_file).read_text(encoding="utf-8").strip()
        except (OSError, UnicodeDecodeError) as error:
            raise CannotOpen(
                f"option tokenFile: {self.token_file} cannot be read on {this_host()}: "
                f"{getattr(error, 'strerror', None) or 'not text'}; every machine that runs tasks "
                "needs it",
                path=self.token_file,
            ) from None


def make_place(
    path: str,
    *,
    server: str,
    token: str = "",
    token_file: str = "",
    ca: str = "",
    read_level: str = "strong",
) -> Place:
    """Return the place for the options `path` and `server`, of which exactly one must be set."""
    if bool(path) == bool(server):
        raise InvalidInput(
            "one option says where the store is: path (a file on this machine, or s3://…) or "
            "server (http://… or https://…); expected exactly one"
        )
    where = server or path
    if token and token_file:
        raise InvalidInput("options token and tokenFile: expected only one of them")
    if is_address(where):
        return Place(url=where, token=token, token_file=token_file, ca=ca, read_level=read_level)
    if server:
        raise InvalidInput(
            "option server: expected an address that begins with http:// or https://"
        )
    level = "" if read_level == "strong" else read_level
    server_options = (("token", token), ("tokenFile", token_file), ("ca", ca), ("readLevel", level))
    for name, value in server_options:
        if value:
            raise InvalidInput(f"option {name}: is for the address of a server, not for a path")
    if is_bucket(where) and not where.lower().startswith("file:"):
        return Place(url=where)
    plain = where.removeprefix("file://") if where.startswith("file:///") else where
    plain = plain.removeprefix("file:") if plain.startswith("file:/") else plain
    return Place(url=str(Path(plain).absolute()), host=this_host())


def this_host() -> str:
    """The name of this machine, or what MILLSTREAM_HOST says: for containers that share a disk."""
    return os.environ.get(HOST_VARIABLE) or platform.node()


def check_here(place: Place) -> None:
    """Refuse a path of another machine."""
    host = this_host()
    if place.host == host:
        return
    raise CannotOpen(
        f"{place.url} is a file on {place.host}, and this task runs on {host}: serve the store "
        f"there (`millstream serve {place.url}`) and give its address in the option server",
        path=place.url,
        host=place.host,
    )


@contextmanager
def _opened(place: Place, *, read_only: bool) -> Iterator[Session]:
    leave_quietly()
    session = open_session(place, read_only=read_only)
    try:
        yield session
    finally:
        session.close()
        settle()


reading = partial(_opened, read_only=True)
"""A session that only reads: for tasks, and for planning."""

writing = partial(_opened, read_only=False)
"""A session that may write: for the driver alone."""


def open_session(place: Place, *, read_only: bool) -> Session:
    """A session that the caller must close; one to a server may always write."""
    if place.is_server:
        return open_remote(
            place.url,
            token=place.secret(),
            ca=place.ca or None,
            connect_timeout=CONNECT_TIMEOUT_S,
            retry_for=RETRY_FOR_S,
            read_level=place.read_level if read_only else "strong",
        )
    if place.is_bucket:
        if not read_only:
            raise InvalidInput(
                f"{place.url} is not opened to write by Spark, because that would fence its "
                "server: give the address of that server in the option server"
            )
        return EmbeddedSession(open_file(place.url, mode="r"))
    check_here(place)
    try:
        store = open_file(place.url, mode="r" if read_only else "rw")
    except CannotOpen as error:
        raise CannotOpen(f"{error.message} (on {place.host})", path=place.url) from None
    return EmbeddedSession(store)
