"""Object storage that breaks its promises: a proxy before moto's S3, with faults on demand.

with object_server() as address, ObjectProxy(address) as proxy, variables(proxy.address):
    ms = millstream.open("s3://trial/store")
    proxy.script = lambda method, path: "refuse" if method == "PUT" else None
"""

from __future__ import annotations

from collections.abc import Callable
from http.server import BaseHTTPRequestHandler
from typing import Literal

from millstream.bench.objects import DelayingProxy, ObjectAnswer

Fault = Literal["refuse", "deny", "lose", "repeat"]
"""The faults of the proxy: answer 503 or 403 in place of the server; forward and lose the answer;
forward twice and return the second answer."""

Script = Callable[[str, str], Fault | ObjectAnswer | None]
"""Called for each request, with its method and path; it may also return the answer itself."""


class ObjectProxy(DelayingProxy):
    """A proxy before an object server that loses, repeats, refuses and changes requests."""

    def __init__(self, behind: str) -> None:
        super().__init__(behind)
        self.ignores: frozenset[str] = frozenset()
        """Headers that are lost on the way, in lower case: conditions are such."""
        self.replaces: dict[str, str] = {}
        """Headers that are set on the way, in lower case."""
        self.script: Script | None = None

    def respond(self, request: BaseHTTPRequestHandler, body: bytes) -> ObjectAnswer | None:
        fault = None if self.script is None else self.script(request.command, request.path)
        if fault == "refuse":
            return 503, [], b"<Error><Code>SlowDown</Code></Error>"
        if fault == "deny":
            return 403, [], b"<Error><Code>AccessDenied</Code></Error>"
        if isinstance(fault, tuple):
            return fault
        if fault == "repeat":
            self.forward(request, body)
        answer = self.forward(request, body)
        return None if fault == "lose" else answer

    def forwarded_headers(self, request: BaseHTTPRequestHandler) -> dict[str, str]:
        changed = self.ignores | self.replaces.keys()
        headers = super().forwarded_headers(request)
        kept = {name: value for name, value in headers.items() if name.lower() not in changed}
        return kept | self.replaces
