"""The core of a server: the open store, its services, and the task that carries a command out."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from functools import partial
from typing import Any, Protocol, TypeVar

from msgspec.structs import replace
from starlette.types import Receive, Scope, Send

from millstream.cluster.read_level import STRONG, ReadLevel
from millstream.command import Command, Operation, Stats, is_repeatable
from millstream.embedded.rules import put_for_later
from millstream.errors import (
    CorruptionError,
    Denied,
    MillstreamError,
    NoQuorum,
    NotLeader,
    OutcomeUnknown,
)
from millstream.log.commands import GetParent, ListLogs
from millstream.queue.commands import ClaimMessages, ListQueues, ReturnClaims
from millstream.queue.runs import lots_claimed
from millstream.replica.commands import NAMES_MAX, SummarizeLogs, SummarizeNamed, Summary
from millstream.replica.copies.pattern import takes
from millstream.rooms.backlog import NOWHERE, OwnPlace
from millstream.rooms.commands import ListRooms, MintBrowserTicket, MintTicket, SendToRoom
from millstream.server.admission import Admission, Call
from millstream.server.auth.access import Principal, copyable, visible
from millstream.server.auth.authentication import Authentication
from millstream.server.auth.need import Need, names_parent, needs_of_parent
from millstream.server.auth.query_turns import Turns
from millstream.server.auth.quota import Quota
from millstream.server.auth.tickets import mint_browser_ticket, mint_ticket
from millstream.server.auth.tokens import Tokens
from millstream.server.backup_downloads import BackupDownloads
from millstream.server.backups import ServerBackups
from millstream.server.claim_counts import ClaimCounts
from millstream.server.clients import Clients
from millstream.server.cluster.copies import Copies
from millstream.server.cluster.forwarder import Forwarder, NodeSession
from millstream.server.cluster.pair import Pairing
from millstream.server.cluster.relay import Relay
from millstream.server.cluster.role import FORWARD_S, Asker, ClusterRole, check_cluster
from millstream.server.observe.health import Checkup
from millstream.server.observe.live import Live
from millstream.server.observe.meter import Meter
from millstream.server.observe.slow import SlowCommands
from millstream.server.processes.siblings import Siblings
from millstream.server.settings import Settings
from millstream.server.staged_parts import Shelf
from millstream.store.store import Store

T = TypeVar("T")

LISTED_AT_ONCE = 1_000
"""Names per step of a listing; the principal may see only a few of the names."""


class RoomStream(Protocol):
    """The server-sent events of one listener of a room; the owner must call `close`."""

    def __aiter__(self) -> AsyncIterator[bytes]:
        """Yield events until the client or the server ends the stream."""

    def close(self) -> None:
        """Leave the room: the connection has ended."""


class RoomService(Protocol):
    """The rooms of this process, as the core uses them; `rooms.hub.Hub` is one."""

    async def send(self, command: SendToRoom) -> int:
        """Store messages, push them to the listeners here, and return the first offset."""

    def counts(self) -> dict[str, int]:
        """Return the figures that are measured of the rooms."""

    def own_place(self) -> OwnPlace:
        """Return the offset that this instance has pushed in each room."""

    async def enter_stream(
        self, principal: Principal, room: str, *, query: str, last_event: str, seconds: float | None
    ) -> RoomStream:
        """Let a client into a room, and return its server-sent events."""


class HttpRelay(Protocol):
    """Passes requests on to another server, as the guard uses it."""

    def takes(self, scope: Scope, asker: Asker) -> bool:
        """Return whether a request goes to another server, which must answer it."""

    async def hand_on(self, scope: Scope, receive: Receive, send: Send, asker: Asker) -> bool:
        """Let the other server answer; return False if this server has become the one that must."""

    def close(self) -> None:
        """Close all connections."""


class Core:
    """The services that all protocols of a server share; made inside the event loop that serves."""

    def __init__(
        self,
        store: Store,
        settings: Settings,
        *,
        seat: ClusterRole | None = None,
        pairing: Pairing | None = None,
        siblings: Siblings | None = None,
    ) -> None:
        settings.check()
        self.settings = settings
        self.store = store
        self.session = NodeSession(store, seat)
        self.seat = seat
        """The seat of a node in its cluster; None on a single server."""
        self.siblings = siblings
        """The other server processes of a group; None for a server that is alone."""
        self.relay: HttpRelay | None = siblings if seat is None else Relay(seat)
        """Hands HTTP requests on to the leading node, or to another process of the group."""
        self.pairing = pairing
        """The pair of a primary and its standby, if the server is part of a pair."""
        self.copies = Copies(store.engine, store.clock)
        """Serves copies of the store to other nodes."""
        self.downloads = BackupDownloads(store.engine, store.clock)
        """Serves the store to clients that back it up."""
        self.closing = asyncio.Event()
        """Set when the server is told to stop, so that waiting requests end."""
        self.tokens = Tokens(self.session, store.engine.folder())
        self.authentication = Authentication(
            self.tokens, store.clock, needs_tokens=settings.needs_tokens()
        )
        self.quota = Quota(settings, store.clock)
        self.shelf = Shelf(store.clock, store.engine.folder())
        """The parts that bulk writers have staged."""
        self.meter = Meter()
        store.listeners.add(commit=self.meter.committed)
        self.backups = _backups(store, settings, siblings)
        """The backups that this process makes of the store; None if no place for backups is set."""
        slow = SlowCommands(store.clock, settings.slow_ms)
        store.listeners.add(commit=slow.committed)
        self.checkup = Checkup(
            self.session,
            settings,
            own_place=self._own_place,
            check_cluster=None if seat is None else partial(check_cluster, seat),
            check_processes=None if siblings is None else siblings.check,
            check_backup=None if self.backups is None else self.backups.check,
        )
        figures = None if siblings is None else siblings.figures
        self.live = Live(store, self.meter, self.checkup, self.closing, figures)
        """The figures that the dashboard gets once per second."""
        self.rooms: RoomService | None = None
        """The rooms with listeners in this process."""
        self.clients = Clients(store.clock)
        """The open connections of sockets and rooms."""
        self.admission = Admission(
            store, settings, tokens=self.tokens, quota=self.quota, meter=self.meter, slow=slow
        )
        """The door through which every command of a client comes in."""

    def open_rooms(self, rooms: RoomService) -> None:
        """Send to rooms through a hub, which pushes the messages to its listeners."""
        self.rooms = rooms

    def room_counts(self) -> dict[str, int]:
        """Return the figures of the rooms of this process."""
        return {} if self.rooms is None else self.rooms.counts()

    def _own_place(self) -> OwnPlace:
        return NOWHERE if self.rooms is None else self.rooms.own_place()

    async def answer_in_cluster(
        self,
        principal: Principal,
        command: Command[Any],
        holdings: ClaimCounts,
        forwarder: Forwarder | None,
        *,
        level: ReadLevel,
        traceparent: str | None,
    ) -> Any:
        """Answer a command on a node: here, or by the leading node, whose answer stays encoded.

        Without a forwarder the command goes no further, because another node has handed it on.
        """
        seat, loop = self.seat, asyncio.get_running_loop()
        assert seat is not None
        until_s = loop.time() + FORWARD_S
        while True:
            try:
                if forwarder is not None and not seat.answers(command, level):
                    return await forwarder.ask(command)
                return await self.execute(
                    principal, command, holdings, traceparent=traceparent, level=level
                )
            except NotLeader:
                if forwarder is None or loop.time() >= until_s:
                    raise
                seat.look()

    async def execute(
        self,
        principal: Principal,
        command: Command[T],
        holdings: ClaimCounts | None = None,
        *,
        traceparent: str | None = None,
        level: ReadLevel = STRONG,
        need: Need | None = None,
    ) -> T:
        """Admit a command of a principal, carry it out, and return its answer.

        `holdings` are the claims of the client; without, the claims of all requests of the token
        count. Published records carry `traceparent`. `level` is how fresh a node's read must be.
        `need` is the right that an endpoint requires in place of the command's own rights.
        """
        if self.seat is not None:
            await self._check_seat(self.seat, command, level)
            try:
                return await self._execute(principal, command, holdings, traceparent, need)
            except (NotLeader, NoQuorum) as error:
                if not _is_half_done(command):
                    raise
                raise _deposed(command, error) from error
        return await self._execute(principal, command, holdings, traceparent, need)

    async def _check_seat(self, seat: ClusterRole, command: Command[Any], level: ReadLevel) -> None:
        """Refuse a command that only the leading node may answer."""
        if not seat.answers(command, level):
            raise seat.not_leader()
        if seat.leads:
            await seat.freshen(command, level)

    async def _execute(
        self,
        principal: Principal,
        command: Command[T],
        holdings: ClaimCounts | None,
        traceparent: str | None,
        need: Need | None,
    ) -> T:
        """Admit a command, carry it out, and settle its call, in the caller's task."""
        try:
            await self.tokens.freshen_for(principal)
        except Exception as error:
            self.meter.failed(type(command), error)
            raise
        call = self.admission.admit(
            principal, command, holdings, traceparent=traceparent, need=need
        )
        try:
            answer = await self._carry_out(call)
        except Exception as error:
            call.settle(error)
            raise
        except BaseException:
            call.cancel()
            raise
        call.settle(answer)
        return answer

    async def _carry_out(self, call: Call[T]) -> T:
        """Answer an admitted command, in the turns of its token."""
        command, turns = call.command, call.turns
        if call.must_confirm:
            answer = await self._answer(call, turns)
            try:
                await self.tokens.freshen_for(call.principal)
                call.confirm()
            except BaseException:
                self.return_claims(call.principal, command, answer, call.holdings)
                raise
            return answer
        is_plain = isinstance(command, Operation) and not put_for_later(command)
        if turns is None or is_plain:
            return await self._answer(call)
        async with turns:
            return await self._answer(call)

    async def _answer(self, call: Call[T], turns: Turns | None = None) -> T:
        """Answer a command; a command that waits gets the turns, and has one only while it looks."""
        principal, command = call.principal, call.command
        if isinstance(command, SendToRoom) and self.rooms is not None:
            return await self.rooms.send(command)  # type: ignore[return-value]
        if isinstance(command, MintTicket):
            wall_ms = self.store.clock.wall_ms()
            return await mint_ticket(self.tokens, principal, command, wall_ms=wall_ms)  # type: ignore[return-value]
        if isinstance(command, MintBrowserTicket):
            wall_ms = self.store.clock.wall_ms()
            return await mint_browser_ticket(self.tokens, principal, command, wall_ms=wall_ms)  # type: ignore[return-value]
        if command.traits.needs == "seen":
            return await self._seen(principal, command, call.need)  # type: ignore[no-any-return]
        if names_parent(command):
            parent = await self.session.execute(GetParent(command.log))  # type: ignore[attr-defined]
            for need in () if parent is None else needs_of_parent(command, parent):
                principal.require(need)
        answer = await self.session.execute(command, turns)
        if isinstance(command, Stats):
            return {**answer, **self._backup_facts()}  # type: ignore[dict-item, return-value]
        return answer

    def backup_age_s(self) -> float | None:
        """Return the age of the newest backup that this process made or sent; None without one."""
        ages = [self.downloads.age_s()]
        if self.backups is not None and self.backups.stored_ms:
            ages.append(self.backups.age_s())
        return min((age_s for age_s in ages if age_s is not None), default=None)

    def _backup_facts(self) -> dict[str, Any]:
        age_s = self.backup_age_s()
        facts = {} if age_s is None and self.backups is None else {"backup_age_s": age_s}
        if self.backups is not None:
            facts["backup_failures"] = self.backups.failures
        return facts

    async def _seen(self, principal: Principal, command: Any, need: Need | None) -> Any:
        """Answer a listing with the names that a principal may see."""
        if isinstance(command, ListLogs | ListQueues | ListRooms):
            return await self._list(principal, command, need)
        if isinstance(command, SummarizeLogs):
            return await self._summarize(principal, command)
        if isinstance(command, SummarizeNamed):
            return await self.session.execute(SummarizeNamed(copyable(principal, command.names)))
        raise Denied(f"the server cannot tell what of {type(command).__name__} may be seen")

    def return_claims(
        self,
        principal: Principal,
        command: Command[Any],
        answer: Any,
        holdings: ClaimCounts | None = None,
    ) -> None:
        """Give back the messages of a claim whose client has left before the answer was sent."""
        if isinstance(command, ClaimMessages) and isinstance(answer, list):
            self.session.return_claims(command, answer)
            held = self.admission.holdings_of(principal) if holdings is None else holdings
            held.note(ReturnClaims(command.queue, lots_claimed(answer)), None)

    async def _list(self, principal: Principal, command: Any, need: Need | None) -> Any:
        """Return a page of the names that a principal may see; an empty page is the last one."""
        entries: list[Any] = []
        step = replace(command, limit=max(command.limit, LISTED_AT_ONCE))
        while len(entries) < command.limit:
            try:
                page: list[Any] = await self.session.execute(step)
            except CorruptionError:
                if step.limit == command.limit:
                    raise
                step = replace(step, limit=command.limit)  # the damage may lie behind the page
                continue
            entries += visible(principal, page, need)
            if len(page) < step.limit:
                break
            step = replace(step, after=page[-1].name)
        return entries[: command.limit]

    async def _summarize(self, principal: Principal, command: SummarizeLogs) -> list[Summary]:
        """Return a page of copies that a principal may read; other logs are not even hashed."""
        names: list[str] = []
        step = ListLogs(command.after, LISTED_AT_ONCE, partitions=True)
        while len(names) < command.limit:
            page = [info.name for info in await self.session.execute(step)]
            names += copyable(principal, [name for name in page if takes(command.pattern, name)])
            if len(page) < LISTED_AT_ONCE:
                break
            step = replace(step, after=page[-1])
        limit = min(command.limit, NAMES_MAX)
        return await self.session.execute(SummarizeNamed(names[:limit]))

    async def close(self) -> None:
        """Finish commits and close the store."""
        self.closing.set()
        if self.seat is not None:
            self.seat.close()
        if self.relay is not None:
            self.relay.close()
        self.copies.close()
        await self.downloads.close()
        if self.backups is not None:
            await asyncio.to_thread(self.backups.close)
        await self.live.close()
        await self.tokens.close()
        await self.session.close()


def _backups(store: Store, settings: Settings, siblings: Siblings | None) -> ServerBackups | None:
    """Begin to make backups; of a group of processes only the first process does."""
    if not settings.backup_place or (siblings is not None and siblings.number != 1):
        return None
    return ServerBackups(store, settings)


def _is_half_done(command: Command[Any]) -> bool:
    """Whether a refused command may be done in part, because it makes several commits.

    A claim is refused only if none of its commits was made. Operations make one commit, and
    repeatable commands may be asked again.
    """
    is_certain = isinstance(command, Operation | ClaimMessages)
    return not (is_certain or is_repeatable(command))


def _deposed(command: Command[Any], error: MillstreamError) -> OutcomeUnknown:
    """Return the error of a command whose node lost its lead or its quorum between two commits."""
    return OutcomeUnknown(
        f"this node could not finish {type(command).__name__} ({error.message}): a part of it may "
        "have been done. Look before you repeat it",
        cause=str(error),
    )
