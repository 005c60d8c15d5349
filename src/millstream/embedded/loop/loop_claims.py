"""Claims of coroutines, made by the event loop's own commits if possible; `loop_lines` has waits."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from functools import partial
from typing import Any
from weakref import WeakValueDictionary

from msgspec.structs import replace

from millstream.embedded.loop.claim_loop import ClientTurns, Loop, Returns, TakesLots, Turn
from millstream.embedded.loop.loop_lines import LoopLines
from millstream.errors import WriteFailed
from millstream.queue.commands import ClaimMessages, ClaimRouted
from millstream.queue.model.grants import Grant, Granted
from millstream.queue.model.message import Lot
from millstream.queue.service import claims
from millstream.queue.service.payloads import are_at_hand, read_grants
from millstream.store.store import Store

READ_HERE = 16
"""The most recent messages that the event loop reads itself."""


class Claims:
    """The claims of a session; belongs to its event loop."""

    def __init__(self, store: Store, loop: Loop) -> None:
        self._store = store
        self._loop = loop
        self.returns = Returns(loop)
        """Gives back messages whose consumer has left."""
        self.lines = LoopLines(store, loop, self.returns, self._claim_now)
        """The lines of claims that wait."""
        self._reading: WeakValueDictionary[int, asyncio.Lock] = WeakValueDictionary()
        """By log: a lock, held while a thread reads messages that are not cached."""

    async def claim(self, command: ClaimMessages, turns: ClientTurns | None = None) -> list[Lot]:
        """Claim as `thread_lines.claim_messages` does, without a thread while waiting.

        With `turns`, each look at the queue counts as a query of the client.
        """
        until_s = self._until_s(command)
        lots, _ = await self._claim_now(command, turns)
        return lots or await self._wait(command, until_s, turns)

    def begin(
        self,
        command: ClaimMessages,
        done: Callable[[Any], object],
        turns: ClientTurns | None,
        receive: TakesLots | None = None,
    ) -> bool:
        """Claim without a coroutine; return False, without any effect, if a thread must route
        first.

        `done` gets the messages, an exception, or the task that continues the claim. Messages that
        come while the claim waits in line are offered to `receive` before the task gets them.
        """
        until_s = self._until_s(command)
        prepared = claims.prepare_claim(self._store, command)
        if prepared is None:
            return False
        routed, routed_here = prepared

        def claimed(granted: Any) -> None:
            if isinstance(granted, BaseException):
                done(granted)
                return
            try:
                lots = self._read_here(command, granted, routed, routed_here=routed_here)
            except Exception as error:
                done(error)
                return
            waits = command.wait_ms and command.count
            if lots or (lots is not None and not granted.grants and not waits):
                done(lots)
                return
            going_on = self._go_on(command, (granted, routed_here), lots, until_s, turns, receive)
            task = asyncio.get_running_loop().create_task(going_on)
            if granted.grants:
                task.add_done_callback(partial(self._over, command, granted.grants))
            done(task)

        self._loop.commit_soon(routed, claimed)
        return True

    def _over(
        self, command: ClaimMessages, grants: Sequence[Grant], task: asyncio.Task[Any]
    ) -> None:
        """Give messages back if the task was cancelled before it began."""
        if task.cancelled():
            self.returns.give_back_grants(command, grants)

    async def _go_on(
        self,
        command: ClaimMessages,
        got: tuple[Granted, bool],
        lots: list[Lot] | None,
        until_s: float,
        turns: ClientTurns | None,
        receive: TakesLots | None,
    ) -> list[Lot]:
        """Continue a claim that got too few messages, or messages that must be read from the file."""
        lots, _ = await self._claim_rest(command, got, lots, turns)
        return lots or await self._wait(command, until_s, turns, receive)

    async def _wait(
        self,
        command: ClaimMessages,
        until_s: float,
        turns: ClientTurns | None,
        receive: TakesLots | None = None,
    ) -> list[Lot]:
        """Wait in line; acknowledgements that were made before are durable."""
        try:
            return await self.lines.wait(command, until_s, turns, receive)
        except WriteFailed:
            if command.acked:
                return []
            raise

    def _until_s(self, command: ClaimMessages) -> float:
        """Return the end of the wait; a claim without a wait does not read the clock."""
        wait_ms = command.wait_ms
        return self._store.clock.seconds() + wait_ms / 1000 if wait_ms else 0.0

    async def _claim_now(self, command: ClaimMessages, turns: Turn | None) -> tuple[list[Lot], int]:
        """Claim as `claims.claim_now` does, by the loop's own commit if possible."""
        prepared = claims.prepare_claim(self._store, command)
        if prepared is None:
            return await self._claim_by_thread(command, (), turns)
        routed, routed_here = prepared
        granted = await self._loop.commit(
            routed, lambda granted: self.returns.give_back_grants(command, granted.grants)
        )
        lots = self._read_here(command, granted, routed, routed_here=routed_here)
        if lots:
            return lots, granted.remaining
        return await self._claim_rest(command, (granted, routed_here), lots, turns)

    def _read_here(
        self, command: ClaimMessages, granted: Granted, routed: ClaimRouted, *, routed_here: bool
    ) -> list[Lot] | None:
        """Return the claimed messages, if they are enough and in memory; else None."""
        store, grants = self._store, granted.grants
        claims.note_ahead(store, command.queue, granted)
        if _is_short(command, granted, routed_here=routed_here):
            return None
        is_recent = granted.is_fully_routed and not routed.needs_routed
        is_recent = is_recent or (routed_here and not granted.is_overtaken)
        is_little = is_recent and 0 < granted.count <= READ_HERE
        if is_little or are_at_hand(store, grants):
            return read_grants(store, command.queue, grants)
        return None

    async def _claim_rest(
        self,
        command: ClaimMessages,
        got: tuple[Granted, bool],
        lots: list[Lot] | None,
        turns: Turn | None,
    ) -> tuple[list[Lot], int]:
        """Read the claimed messages by a thread, and claim missing messages."""
        try:
            return await self._look_further(command, got, lots, turns)
        except WriteFailed:
            if command.acked:
                return [], 0  # the acknowledgements are durable
            raise
        except asyncio.CancelledError:
            self.returns.give_back_grants(command, got[0].grants)
            raise

    async def _look_further(
        self,
        command: ClaimMessages,
        got: tuple[Granted, bool],
        lots: list[Lot] | None,
        turns: Turn | None,
    ) -> tuple[list[Lot], int]:
        (granted, routed_here), store = got, self._store
        grants = granted.grants
        if lots is None and _is_short(command, granted, routed_here=routed_here):
            claims.forget_keeping_up(store, command.queue)
            count = command.count - granted.count
            missing = replace(command, acked=[], results=[], count=count)
            return await self._claim_by_thread(missing, grants, turns)
        if lots is None:
            lots = await self._read(command, grants, turns)
        if lots or not grants:
            return lots, granted.remaining
        # All claimed messages were damaged, and have failed.
        return await self._claim_by_thread(claims.without_acks(command), (), turns)

    async def _read(
        self, command: ClaimMessages, grants: list[Grant], turns: Turn | None
    ) -> list[Lot]:
        """Read claimed messages by a thread.

        Claims of a commit mostly need the same block: the first claim reads it, and the next ones
        find it in memory. Four consumers that claim a hundred each read 3.7 pages per claim instead
        of 7 (2026-11). A slow store answers many reads in parallel, so there they are not
        serialised.
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
        self, command: ClaimMessages, grants: Sequence[Grant], turns: Turn | None
    ) -> tuple[list[Lot], int]:
        return await self._loop.ask(
            claims.claim_now,
            self._store,
            command,
            grants,
            turns=turns,
            unwanted=lambda claimed: self.returns.give_back(command, claimed[0]),
        )


def _is_short(command: ClaimMessages, granted: Granted, *, routed_here: bool) -> bool:
    """Return whether a claim must look for more messages, because other claims were faster."""
    if command.count <= granted.count or granted.fresh or granted.is_fully_routed:
        return False
    return not (routed_here and granted.grants and not granted.is_overtaken)
