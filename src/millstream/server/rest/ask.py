"""What a handler gets: who asks, for what, and the session that answers them.

Every command goes through `Core.execute`, which checks what the asker may do.
"""

from __future__ import annotations

import asyncio
from typing import Any, TypeVar
from urllib.parse import unquote_to_bytes

from starlette.requests import Request

from millstream.command import Command
from millstream.errors import InvalidInput, InvalidName
from millstream.log.names import NUMBER_MAX, check_name
from millstream.record import to_ms
from millstream.server.auth.access import Principal
from millstream.server.core import Core
from millstream.server.observe.tracing import traceparent_of

T = TypeVar("T")

DURATION_S_MAX = 1e12
"""Beyond all bounds that the store has for durations, and within what it can count."""


class PrincipalSession:
    """A session for one asker: the nouns of `millstream.aio` work on it, checked."""

    def __init__(self, core: Core, principal: Principal, traceparent: str | None) -> None:
        self.limits = core.session.limits
        self.clock = core.session.clock
        self._core = core
        self._principal = principal
        self._traceparent = traceparent

    async def execute(self, command: Command[T]) -> T:
        """Answer a command, if the asker may ask it."""
        return await self._core.execute(self._principal, command, traceparent=self._traceparent)

    async def close(self) -> None:
        """The store stays open: it is the server's."""


class Ask:
    """One request, read and decoded."""

    def __init__(self, core: Core, request: Request, *, path: dict[str, str]) -> None:
        self.core = core
        self.request = request
        self.principal: Principal = request.state.principal
        self.session = PrincipalSession(core, self.principal, traceparent_of(request.scope))
        self.query: Any = None
        self.body: Any = None
        """The struct that a JSON body was decoded into."""
        self.raw: bytes | None = None
        """The body as it came, if it was not JSON."""
        self.data = b""
        """The body as it came."""
        self._path = path

    def name(self, parameter: str) -> str:
        """A name in the path, decoded and checked."""
        return check_name(self._path[parameter], parameter)

    def number(self, parameter: str) -> int:
        """A number in the path."""
        text = self._path[parameter]
        if not (text.isascii() and text.isdigit()) or len(text) > 19 or int(text) > NUMBER_MAX:
            raise InvalidInput(f"{parameter} is a whole number up to 2^63 - 1, not {text[:40]!r}")
        return int(text)

    async def execute(self, command: Command[T]) -> T:
        """Answer a command, if the asker may ask it."""
        return await self.session.execute(command)

    def wait_ms(self, wait_s: float | None) -> int:
        """How long to wait: what was asked for, within the server's most; no wait while it stops."""
        if wait_s is None or self.core.closing.is_set():
            return 0
        if wait_s < 0:
            raise InvalidInput(f"a wait is 0 s or longer, not {wait_s}")
        return min(milliseconds(wait_s), self.core.settings.wait_ms_max)

    async def unless_over(self, command: Command[T]) -> T | None:
        """Answer a command that waits; None if the server stops or the client leaves meanwhile."""
        answer = asyncio.ensure_future(self.execute(command))
        over = [
            asyncio.ensure_future(self.core.closing.wait()),
            asyncio.ensure_future(_left(self.request)),
        ]
        try:
            await asyncio.wait([answer, *over], return_when=asyncio.FIRST_COMPLETED)
            return answer.result() if answer.done() else None
        finally:
            for task in (answer, *over):
                task.cancel()
            await asyncio.gather(answer, *over, return_exceptions=True)


async def _left(request: Request) -> None:
    """Comes back once the client is gone."""
    while (await request.receive())["type"] != "http.disconnect":
        pass


def milliseconds(seconds: float) -> int:
    """A duration in milliseconds; one that cannot be counted is refused."""
    if not -DURATION_S_MAX <= seconds <= DURATION_S_MAX:
        raise InvalidInput(f"a duration of {seconds} s is out of bounds")
    return to_ms(seconds)


def decoded_segment(raw: bytes) -> str:
    """A part of a path, percent-decoded; `%2F` is a slash within a name."""
    try:
        return unquote_to_bytes(raw).decode()
    except UnicodeDecodeError as error:
        raise InvalidName("a name in a path is percent-encoded UTF-8") from error
