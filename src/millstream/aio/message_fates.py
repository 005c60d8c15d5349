"""The fates of messages as coroutines ask for them: by id, with results, attempts and cancels."""

from __future__ import annotations

from millstream.command import AsyncSession
from millstream.errors import InvalidInput
from millstream.numbers import checked_numbers
from millstream.queue import commands as c
from millstream.queue.model.message import Fate, Message, Try
from millstream.record import Seconds, optional_ms


@checked_numbers
class MessageFates:
    """The part of a queue that looks up single messages, waits for their end, and cancels them."""

    name: str
    _session: AsyncSession

    async def message(self, id: int) -> Fate:
        """Return the state of a message by the id that `put` returned."""
        return await self._session.execute(c.FindMessage(self.name, id))

    async def wait(self, message: Message | int, *, timeout: Seconds | None = None) -> Fate | None:
        """Wait until a message has ended, and return its fate; None after `timeout` seconds.

        Takes the id that `put` returned. The state of the fate is "done", "failed" or "cancelled".
        Raises `NotFound` if the queue does not know the message, or forgets it meanwhile.
        """
        id = message.id if isinstance(message, Message) else message
        if id is None:
            raise InvalidInput(
                "only a message of `put` can be waited for, not a record of a source"
            )
        timeout_ms = optional_ms(timeout, "timeout")
        return await self._session.execute(c.WaitForMessage(self.name, id, timeout_ms))

    async def cancel(self, message: Message | int) -> bool:
        """Cancel a message that waits, is delayed or is scheduled: no consumer gets it.

        Takes the id that `put` returned, or a message of a peek. Returns False if the message is in
        flight, has ended, or is unknown; `message` says which. A repeat of the call returns True.
        """
        id = message.id if isinstance(message, Message) else message
        if isinstance(message, Message) and id is None:
            command = c.CancelMessage(self.name, None, message.claim_id)
        else:
            command = c.CancelMessage(self.name, id)
        return await self._session.execute(command)

    async def attempts(self, message: Message | int) -> list[Try]:
        """How the attempts at a message went."""
        claim_id = message.claim_id if isinstance(message, Message) else message
        return await self._session.execute(c.GetAttempts(self.name, claim_id))
