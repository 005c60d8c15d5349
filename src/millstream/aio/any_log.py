"""What a log and a log with partitions have in common, as coroutines hold them."""

from __future__ import annotations

from typing import Literal

from millstream.command import AsyncSession
from millstream.errors import InvalidInput
from millstream.log import commands as c
from millstream.numbers import checked_numbers
from millstream.record import LogInfo, Retention, Seconds, retention_of, to_ms
from millstream.rooms.commands import BrowserRight, MintBrowserTicket
from millstream.rooms.model import NounTicket


@checked_numbers
class AnyLog:
    """A name and a session; what is asked of a log with partitions is asked of each of them."""

    def __init__(self, session: AsyncSession, name: str) -> None:
        self.name = name
        self._session = session

    def __bool__(self) -> bool:
        """Always True, also of an empty log: `log or other` asks whether there is a handle.

        Without it `__len__` would decide, by a question to the store. `is_empty` asks for records.
        """
        return True

    async def info(self) -> LogInfo | None:
        """Return the line of a listing, summed over all partitions; None if the log does not exist."""
        return await self._session.execute(c.DescribeLog(self.name))

    async def retention(self) -> Retention:
        """Return the retention of the log, or of each partition."""
        info = await self.info()
        return Retention() if info is None else info.retention

    async def retain(
        self,
        *,
        age: Seconds | None = None,
        bytes: int | None = None,
        count: int | None = None,
        consumed: bool = False,
    ) -> None:
        """Set the rules by which the log deletes records, from the oldest on, and replace the earlier rules.

        A record goes as soon as one rule lets it go: if it is older than `age` (seconds or a
        `timedelta`, by the time of its append), if the log has more than `bytes` or more than `count`
        records, or if `consumed` is True and every durable cursor and queue has passed it. None (the
        default) is no rule of that kind: a call of `retain()` keeps every record. The first call creates the log.
        Of a log with partitions, `bytes` and `count` are those of one partition.
        """
        await self._set(retention_of(age=age, bytes=bytes, count=count, consumed=consumed))

    async def _set(self, rules: Retention) -> None:
        await self._session.execute(c.SetRetention(self.name, rules))

    async def enforce_retention(self) -> int:
        """Forget now what may be forgotten, rather than in the background; how many went."""
        return await self._session.execute(c.EnforceRetention(self.name))

    async def ticket(
        self, can: Literal["read", "write"] = "read", expires: Seconds = 60
    ) -> NounTicket:
        """Return a ticket by which a browser uses this log, without a token.

        `can` is "read" (the default) or "write", which appends too. `expires` is the time until the
        ticket ends: 60 seconds by default, an hour at most.
        """
        seconds = to_ms(expires, "expires") / 1000
        right: BrowserRight = "log:write" if can == "write" else "log:read"
        if can not in ("read", "write"):
            raise InvalidInput(f"a ticket of a log can 'read' or 'write', not {can!r:.100}")
        return await self._session.execute(MintBrowserTicket(self.name, right, seconds))
