"""Pages: the files of `millstream/web`, served to browsers.

The files are the same for every client and contain no data of the store, so they need no token: a
page signs in by itself. Only files of the package are served, each at its exact address. A content
security policy restricts a page to scripts, styles and connections of this server.

A browser requests a page every time. The page names its scripts and styles by addresses with the
version of all files. So browsers cache scripts and styles, and never mix two versions.
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
    "/millstream.global.js": "millstream.global.js",
    "/millstream.d.ts": "millstream.d.ts",
}
"""Fixed addresses, and the file of each."""

FOLDER = "/web/"
"""The folder below which every file has its path in the package as address."""

MEDIA_TYPES = {
    "html": "text/html; charset=utf-8",
    "css": "text/css; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "ts": "text/plain; charset=utf-8",
    "md": "text/plain; charset=utf-8",
    "txt": "text/plain; charset=utf-8",
    "svg": "image/svg+xml",
}
"""The media type by suffix; files with other suffixes are not served."""

METHODS = ("GET", "HEAD")

FOREVER = "public, max-age=31536000, immutable"
"""The caching of files with a version in their address."""

EACH_TIME = "no-cache"
"""The caching of pages: the browser asks each time whether its copy is current."""

_VERSIONED = re.compile(rf"{FOLDER}v-[0-9a-f]{{16}}/(.+)")


@dataclass(frozen=True, slots=True)
class File:
    """A file of the package, ready to be sent."""

    body: bytes
    media_type: str
    etag: str


class WebPages(BaseRoute):
    """All pages and files, by address."""

    def __init__(self, origins: Sequence[str] = ()) -> None:
        version_folder = versioned(FOLDER)
        self.lasting = {
            version_folder + path: path for path in files() if not path.endswith(".html")
        }
        """Addresses with a version, and the file of each."""
        self.addresses = {**PAGES, **{FOLDER + path: path for path in files()}, **self.lasting}
        """All addresses, and the file of each."""
        self._origins = tuple(origins)

    def matches(self, scope: Scope) -> tuple[Match, Scope]:
        """Whether a request is for one of the files, with any method."""
        if scope["type"] == "http" and self._file(scope["path"]) in files():
            return Match.FULL, {}
        return Match.NONE, {}

    def _file(self, address: str) -> str:
        """Return the file of an address; for another version, the current file."""
        path = self.addresses.get(address)
        if path is None and (match := _VERSIONED.fullmatch(address)) is not None:
            path = match[1]
        return path or ""

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
    """Return a response with a file; 304 without a body if the browser has the current file."""
    file = files()[path]
    headers = {**safeguards(tuple(origins)), "etag": file.etag, "cache-control": caching}
    cached = request.headers.get("if-none-match", "")
    if file.etag in (etag.strip().removeprefix("W/") for etag in cached.split(",")):
        return Response(status_code=304, headers=headers)
    return Response(file.body, headers={**headers, "content-type": file.media_type})


@cache
def safeguards(origins: tuple[str, ...] = ()) -> dict[str, str]:
    """Return the security headers of a page.

    The page may connect to this server, and to the servers in `origins`.
    """
    web_origins = [origin for origin in origins if origin.startswith("http")]
    sockets = tuple(f"ws{origin.removeprefix('http')}" for origin in web_origins)
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
    """Return all files of the pages by path, ready to be sent; they are read once."""
    sent_files = {}
    for path, body in _bodies().items():
        kind = path.rpartition(".")[2]
        if kind == "html":
            body = body.replace(b'="' + FOLDER.encode(), b'="' + versioned(FOLDER).encode())
        etag = f'"{hashlib.sha256(body).hexdigest()[:32]}"'
        sent_files[path] = File(body, MEDIA_TYPES[kind], etag)
    return sent_files


@cache
def versioned(folder: str) -> str:
    """Return the folder with the version of all files."""
    return f"{folder}v-{version_of(_bodies())}/"


def version_of(bodies: Mapping[str, bytes]) -> str:
    """Return the version of files: a changed file changes the version."""
    digest = hashlib.sha256()
    for path, body in sorted(bodies.items()):
        digest.update(b"%s\0%d\0%s" % (path.encode(), len(body), body))
    return digest.hexdigest()[:16]


@cache
def _bodies() -> dict[str, bytes]:
    """Return the files of the package by path."""
    entries = _walk(resources.files("millstream") / "web")
    return {
        path: file.read_bytes() for path, file in entries if path.rpartition(".")[2] in MEDIA_TYPES
    }


def _walk(folder: Traversable, prefix: str = "") -> Iterator[tuple[str, Traversable]]:
    for entry in folder.iterdir():
        path = prefix + entry.name
        if entry.is_dir():
            yield from _walk(entry, f"{path}/")
        else:
            yield path, entry
