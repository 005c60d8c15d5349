"""Pages: the files of `millstream/web`, as a browser asks for them.

They are the same for every client, hold nothing of the store, and so need no token: a page signs in
by itself. Only files that lie in the package can be asked for, each by its exact address; a policy
keeps a page to scripts, styles and connections of this server.

A page is asked for anew each time. It names its scripts and styles by addresses that hold the version
of all files, so that browsers keep these for good, and a new version is never mixed with an old one.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import resources
from importlib.resources.abc import Traversable

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Match
from starlette.types import Receive, Scope, Send

from millstream.server.problems import NotAllowed, respond

PAGES = {
    "/": "dashboard/index.html",
    "/demo/canvas": "canvas/index.html",
    "/millstream.js": "millstream.js",
    "/millstream.d.ts": "millstream.d.ts",
}
"""Addresses of their own, and the file that each shows."""

FOLDER = "/web/"
"""Below it, every file has the address that its place in the package says."""

MEDIA_TYPES = {
    "html": "text/html; charset=utf-8",
    "css": "text/css; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "ts": "text/plain; charset=utf-8",
    "md": "text/plain; charset=utf-8",
    "txt": "text/plain; charset=utf-8",
    "svg": "image/svg+xml",
}
"""What a file is, by the end of its name; a file of another kind is not served."""

METHODS = ("GET", "HEAD")

FOREVER = "public, max-age=31536000, immutable"
"""How long a browser keeps what has a version in its address."""

EACH_TIME = "no-cache"
"""A browser asks whether what it has is still the file."""

_VERSIONED = re.compile(rf"{FOLDER}v-[0-9a-f]{{16}}/(.+)")


@dataclass(frozen=True, slots=True)
class File:
    """One file of the package, as it is sent."""

    body: bytes
    media_type: str
    etag: str


class WebPages(BaseRoute):
    """Every page and file, found by its address."""

    def __init__(self, origins: Sequence[str] = ()) -> None:
        own, lasting = FOLDER, versioned(FOLDER)
        self.lasting = {lasting + path: path for path in files() if not path.endswith(".html")}
        """The addresses with the version in them, and the file that each shows."""
        self.addresses = {**PAGES, **{own + path: path for path in files()}, **self.lasting}
        """Each address, and the file that it shows."""
        self._origins = tuple(origins)

    def matches(self, scope: Scope) -> tuple[Match, Scope]:
        """Whether a request is for one of the files, whatever its method."""
        if scope["type"] == "http" and self._file(scope["path"]) in files():
            return Match.FULL, {}
        return Match.NONE, {}

    def _file(self, address: str) -> str:
        """The file that an address shows; of another version, the one that there is now."""
        found = self.addresses.get(address)
        if found is None and (other := _VERSIONED.fullmatch(address)) is not None:
            found = other[1]
        return found or ""

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the file."""
        request = Request(scope)
        if request.method in METHODS:
            path = scope["path"]
            caching = FOREVER if path in self.lasting else EACH_TIME
            response = show(request, self._file(path), self._origins, caching=caching)
        else:
            response = respond(NotAllowed("a page can only be read", allow=list(METHODS)))
        await response(scope, receive, send)


def show(
    request: Request, path: str, origins: Sequence[str] = (), *, caching: str = EACH_TIME
) -> Response:
    """The answer with a file; without its body, if the browser says that it has the same one."""
    file = files()[path]
    headers = {**safeguards(tuple(origins)), "etag": file.etag, "cache-control": caching}
    known = request.headers.get("if-none-match", "")
    if file.etag in (one.strip().removeprefix("W/") for one in known.split(",")):
        return Response(status_code=304, headers=headers)
    return Response(file.body, headers={**headers, "content-type": file.media_type})


@cache
def safeguards(origins: tuple[str, ...] = ()) -> dict[str, str]:
    """The headers that keep a page to itself.

    It may connect to this server, and to the servers of `origins`, whose pages may connect here.
    """
    sockets = tuple(f"ws{one.removeprefix('http')}" for one in origins if one.startswith("http"))
    policy = {
        "default-src": "'none'",
        "script-src": "'self'",
        "style-src": "'self'",
        "img-src": "'self' data:",
        "connect-src": " ".join(("'self'", *origins, *sockets)),
        "base-uri": "'none'",
        "form-action": "'none'",
        "frame-ancestors": "'none'",
    }
    return {
        "content-security-policy": "; ".join(f"{key} {value}" for key, value in policy.items()),
        "x-content-type-options": "nosniff",
        "referrer-policy": "no-referrer",
        "cross-origin-opener-policy": "same-origin",
    }


@cache
def files() -> dict[str, File]:
    """Every file of the package's pages, by its path, as it is sent; read once."""
    found = {}
    for path, body in _bodies().items():
        kind = path.rpartition(".")[2]
        if kind == "html":
            body = body.replace(b'="' + FOLDER.encode(), b'="' + versioned(FOLDER).encode())
        etag = f'"{hashlib.sha256(body).hexdigest()[:32]}"'
        found[path] = File(body, MEDIA_TYPES[kind], etag)
    return found


@cache
def versioned(folder: str) -> str:
    """The folder with the version of all files in it."""
    return f"{folder}v-{version_of(_bodies())}/"


def version_of(bodies: Mapping[str, bytes]) -> str:
    """The version of files, by path: another one as soon as any file is."""
    digest = hashlib.sha256()
    for path, body in sorted(bodies.items()):
        digest.update(b"%s\0%d\0%s" % (path.encode(), len(body), body))
    return digest.hexdigest()[:16]


@cache
def _bodies() -> dict[str, bytes]:
    """The files as they lie in the package."""
    found = _walk(resources.files("millstream") / "web")
    return {path: one.read_bytes() for path, one in found if path.rpartition(".")[2] in MEDIA_TYPES}


def _walk(folder: Traversable, prefix: str = "") -> Iterator[tuple[str, Traversable]]:
    for one in folder.iterdir():
        path = prefix + one.name
        if one.is_dir():
            yield from _walk(one, f"{path}/")
        else:
            yield path, one
