"""Claims of coroutines: made in the loop's own commits where they can; `standing` is how they wait."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from functools import partial
from typing import Any
from weakref import WeakValueDictionary

from msgspec.structs import replace

from millstream.embedded.loop.claim_line import StandingClaims
from millstream.embedded.loop.claim_loop import ClientTurns, Loop, TakesLots
from millstream.embedded.loop.returned_claims import Returns
from millstream.errors import WriteFailed
from millstream.queue.commands import ClaimMessages, Grant, Granted
from millstream.queue.model.message import Lot
from millstream.queue.service import consuming
from millstream.queue.service.reading import are_at_hand, read_grants
from millstream.store.store import Store

READ_HERE = 16
"""Messages that came a moment ago, and are read by the event loop itself."""


class Claims:
    """The claims of one session; belongs to its event loop."""

    def __init__(self, store: Store, loop: Loop) -> None:
        self._store = store
        self._loop = loop
        self.returns = Returns(loop)
        """What goes back because no consumer is there any more."""
        self.standing = StandingClaims(store, loop, self.returns, self._claim_now)
        """Those that wait."""
        self._reading: WeakValueDictionary[int, asyncio.Lock] = WeakValueDictionary()
        """By log: held while a thread reads messages of it that are not at hand."""

    async def claim(self, command: ClaimMessages, turns: ClientTurns | None = None) -> list[Lot]:
        """As `waiting.claim_messages`, without a thread while it waits.

        With `turns`, each look at the queue counts as one of the client's queries.
        """
        until_s = self._until_s(command)
        found, _ = await self._claim_now(command, turns)
        return found or await self._wait(command, until_s, turns)

    def begin(
        self,
        command: ClaimMessages,
        done: Callable[[Any], object],
        turns: ClientTurns | None,
        at_once: TakesLots | None = None,
    ) -> bool:
        """As `claim`, without a coroutine; False, and nothing done, if messages must be looked for.

        `done` is told the messages, an exception, or the task that goes on with the claim. Messages
        that come while it stands in line are offered to `at_once` before that task hears of them.
        """
        until_s = self._until_s(command)
        prepared = consuming.prepare_claim(self._store, command)
        if prepared is None:
            return False
        routed, routed_here = prepared

        def claimed(granted: Any) -> None:
            if isinstance(granted, BaseException):
                done(granted)
                return
            try:
                found = self._read_here(command, granted, routed_here=routed_here)
            except Exception as error:
                done(error)
                return
            waits = command.wait_ms and command.count
            if found or (found is not None and not granted.grants and not waits):
                done(found)
                return
            going_on = self._go_on(command, (granted, routed_here), found, until_s, turns, at_once)
            task = asyncio.get_running_loop().create_task(going_on)
            if granted.grants:
                task.add_done_callback(partial(self._over, command, granted.grants))
            done(task)

        self._loop.commit_soon(routed, claimed)
        return True

    def _over(
        self, command: ClaimMessages, grants: Sequence[Grant], task: asyncio.Task[Any]
    ) -> None:
        """A claim that went on as a task is over: it may have been cancelled before it began."""
        if task.cancelled():
            self.returns.give_back_grants(command, grants)

    async def _go_on(
        self,
        command: ClaimMessages,
        got: tuple[Granted, bool],
        found: list[Lot] | None,
        until_s: float,
        turns: ClientTurns | None,
        at_once: TakesLots | None,
    ) -> list[Lot]:
        """Go on with a claim that has got less than it wants, or nothing that is at hand."""
        found, _ = await self._claim_rest(command, got, found, turns)
        return found or await self._wait(command, until_s, turns, at_once)

    async def _wait(
        self,
        command: ClaimMessages,
        until_s: float,
        turns: ClientTurns | None,
        at_once: TakesLots | None = None,
    ) -> list[Lot]:
        """Stand in line; what was acknowledged before that is done, and counts."""
        try:
            return await self.standing.wait(command, until_s, turns, at_once)
        except WriteFailed:
            if command.acked:
                return []
            raise

    def _until_s(self, command: ClaimMessages) -> float:
        """When it stops to wait; the clock is not asked for one that does not wait."""
        wait_ms = command.wait_ms
        return self._store.clock.seconds() + wait_ms / 1000 if wait_ms else 0.0

    async def _claim_now(
        self, command: ClaimMessages, turns: ClientTurns | None
    ) -> tuple[list[Lot], int]:
        """As `consuming.claim_now`; what is known to be routed is claimed by the loop's own commits."""
        prepared = consuming.prepare_claim(self._store, command)
        if prepared is None:
            return await self._claim_by_thread(command, (), turns)
        routed, routed_here = prepared
        granted = await self._loop.commit(routed, partial(self.returns.give_back_granted, command))
        found = self._read_here(command, granted, routed_here=routed_here)
        if found:
            return found, granted.remaining
        return await self._claim_rest(command, (granted, routed_here), found, turns)

    def _read_here(
        self, command: ClaimMessages, granted: Granted, *, routed_here: bool
    ) -> list[Lot] | None:
        """The messages that a claim got, if it got enough, and they are at hand; else None."""
        store, grants = self._store, granted.grants
        consuming.note_ahead(store, command.queue, granted)
        if _is_short(command, granted, routed_here=routed_here):
            return None
        is_recent = granted.is_fully_routed or (routed_here and not granted.is_overtaken)
        is_little = is_recent and 0 < granted.count <= READ_HERE
        if is_little or are_at_hand(store, grants):
            return read_grants(store, command.queue, grants)
        return None

    async def _claim_rest(
        self,
        command: ClaimMessages,
        got: tuple[Granted, bool],
        found: list[Lot] | None,
        turns: ClientTurns | None,
    ) -> tuple[list[Lot], int]:
        """What a claim got that could not be read at once, and what it has to look for yet."""
        try:
            return await self._look_further(command, got, found, turns)
        except WriteFailed:
            if command.acked:
                return [], 0  # what was acknowledged is done, and counts
            raise
        except asyncio.CancelledError:
            self.returns.give_back_grants(command, got[0].grants)
            raise

    async def _look_further(
        self,
        command: ClaimMessages,
        got: tuple[Granted, bool],
        found: list[Lot] | None,
        turns: ClientTurns | None,
    ) -> tuple[list[Lot], int]:
        (granted, routed_here), store = got, self._store
        grants = granted.grants
        if found is None and _is_short(command, granted, routed_here=routed_here):
            consuming.forget_keeping_up(store, command.queue)
            rest = replace(command, acked=[], count=command.count - granted.count)
            return await self._claim_by_thread(rest, grants, turns)
        if found is None:
            found = await self._read(command, grants, turns)
        if found or not grants:
            return found, granted.remaining
        # All of these were damaged, and have failed.
        return await self._claim_by_thread(consuming.without_acks(command), (), turns)

    async def _read(
        self, command: ClaimMessages, grants: list[Grant], turns: ClientTurns | None
    ) -> list[Lot]:
        """The messages that a claim got, by a thread.

        Claims of one commit mostly need the same block: one of them reads it, and the others find it
        at hand. Four consumers that claim a hundred each read 3.7 pages per claim instead of 7
        (2026-11). A slow store answers many reads at once, and is asked for them so.
        """
        store, queue = self._store, command.queue
        if not store.is_fast or not grants:
            return await self._loop.ask(read_grants, store, queue, grants, turns=turns)
        reading = self._reading.setdefault(grants[0].log_id, asyncio.Lock())
        async with turns or nullcontext(), reading:
            if are_at_hand(store, grants):
                return read_grants(store, queue, grants)
            return await self._loop.ask(read_grants, store, queue, grants)

    async def _claim_by_thread(
        self, command: ClaimMessages, grants: Sequence[Grant], turns: ClientTurns | None
    ) -> tuple[list[Lot], int]:
        return await self._loop.ask(
            consuming.claim_now,
            self._store,
            command,
            grants,
            turns=turns,
            unwanted=partial(self.returns.give_back_found, command),
        )


def _is_short(command: ClaimMessages, granted: Granted, *, routed_here: bool) -> bool:
    """Whether a claim has to look for more: others were faster than it."""
    if command.count <= granted.count or granted.fresh or granted.is_fully_routed:
        return False
    return not (routed_here and granted.grants and not granted.is_overtaken)
