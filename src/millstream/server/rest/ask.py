"""The request that a handler gets: principal, parameters, and a session that answers commands.

Every command goes through `Core.execute`, which checks the permissions of the principal.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from copy import copy
from typing import Any, TypeVar
from urllib.parse import unquote_to_bytes

from starlette.requests import Request
from starlette.types import Scope

from millstream.command import Command
from millstream.errors import InvalidInput, InvalidName
from millstream.log.model.names import NUMBER_MAX, check_name
from millstream.record import to_ms
from millstream.server.auth.access import Principal
from millstream.server.auth.need import Need
from millstream.server.cluster.role import ALONE, Asker
from millstream.server.core import Core
from millstream.server.observe.tracing import traceparent_of

T = TypeVar("T")


class Ask:
    """One decoded request. It is also a session, so that the nouns of `millstream.aio` work on
    it."""

    def __init__(
        self, core: Core, scope: Scope, principal: Principal, request: Request | None = None
    ) -> None:
        self.core = core
        self.principal = principal
        self.limits = core.session.limits
        self.clock = core.session.clock
        self.data = b""
        """The body as received."""
        self._need_of: Callable[[Command[Any]], Need] | None = None
        self._scope = scope
        self._request = request
        self._traceparent = traceparent_of(scope)
        self._asker: Asker = scope["state"].get("asker", ALONE)
        self._is_gone: Callable[[], bool] = scope["state"].get("is_gone", _never)

    @property
    def request(self) -> Request:
        """The framework's request object, created on first use."""
        if self._request is None:
            self._request = Request(self._scope)
        return self._request

    @property
    def sent(self) -> dict[str, str]:
        """The headers of the request."""
        return dict(self.request.headers)

    async def execute(self, command: Command[T]) -> T:
        """Answer a command, if the principal has permission."""
        return await self.core.execute(
            self.principal,
            command,
            traceparent=self._traceparent,
            level=self._asker.read_level,
            need=None if self._need_of is None else self._need_of(command),
        )

    def by_right(self, need_of: Callable[[Command[Any]], Need]) -> Ask:
        """Return the request with another check: `need_of` replaces the rights that commands declare."""
        asked = copy(self)
        asked._need_of = need_of
        return asked

    async def close(self) -> None:
        """Do nothing: the store belongs to the server."""

    def wait_ms(self, wait_s: float | None) -> int:
        """Return the wait in milliseconds: the requested seconds, limited by the server's setting.

        Returns 0 while the server stops.
        """
        if wait_s is None or self.core.closing.is_set():
            return 0
        return min(to_ms(wait_s), self.core.settings.wait_ms_max)

    async def unless_over(self, command: Command[T]) -> T | None:
        """Answer a command that waits; None if the server stops or the client disconnects
        meanwhile."""
        answer = asyncio.ensure_future(self.execute(command))
        closing = asyncio.ensure_future(self.core.closing.wait())
        disconnected = asyncio.ensure_future(_disconnect(self.request))
        is_delivered = False
        try:
            await asyncio.wait([answer, closing, disconnected], return_when=asyncio.FIRST_COMPLETED)
            is_delivered = answer.done() and not (disconnected.done() or self._is_gone())
            return answer.result() if is_delivered else None
        finally:
            for task in (answer, closing, disconnected):
                task.cancel()
            await asyncio.gather(answer, closing, disconnected, return_exceptions=True)
            # No client will finish these claims: give the messages back now, instead of keeping
            # them in flight until their leases end.
            if not (is_delivered or answer.cancelled() or answer.exception()):
                self.core.return_claims(self.principal, command, answer.result())


def _never() -> bool:
    return False


async def _disconnect(request: Request) -> None:
    """Return when the client has disconnected."""
    while (await request.receive())["type"] != "http.disconnect":
        pass


def checked_segment(parameter: str, raw: bytes, kind: type) -> str | int:
    """Return a path segment as a name or a number. `%2F` is a slash within a name."""
    try:
        text = unquote_to_bytes(raw).decode()
    except UnicodeDecodeError as error:
        raise InvalidName("a name in a path is percent-encoded UTF-8") from error
    if kind is not int:
        return check_name(text, parameter)
    if not (text.isascii() and text.isdigit()) or len(text) > 19 or int(text) > NUMBER_MAX:
        raise InvalidInput(f"{parameter} is a whole number up to 2^63 - 1, not {text[:40]!r}")
    return int(text)
