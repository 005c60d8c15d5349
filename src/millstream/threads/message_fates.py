# Generated from src/millstream/aio/message_fates.py by `make generate`: change that file, not this one.

"""The fates of messages as threads ask for them: by id, with results, attempts and cancels."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, overload

from millstream.command import Session
from millstream.errors import InvalidInput
from millstream.log.model.names import check_integer
from millstream.numbers import checked_numbers
from millstream.queue import commands as c
from millstream.queue.model.cancel_requests import RequestedCancels
from millstream.queue.model.message import CancelOutcome, Fate, Message, Try
from millstream.queue.runs import Messages, cancel_command, runs_of
from millstream.record import Seconds, optional_ms


@checked_numbers
class MessageFates:
    """The part of a queue that looks up single messages, waits for their end, and cancels them."""

    name: str
    _session: Session

    def message(self, id: int) -> Fate:
        """Return the state of a message by the id that `put` returned."""
        return self._session.execute(c.FindMessage(self.name, id))

    def messages(self, ids: Sequence[int]) -> list[Fate]:
        """Return the states of up to 1,000 messages by their ids, in the order of the ids."""
        if isinstance(ids, str | bytes) or not isinstance(ids, Sequence):
            raise InvalidInput(f"ids are several whole numbers, not {type(ids).__name__}")
        checked_ids = [check_integer("each of ids", id) for id in ids]
        return self._session.execute(c.FindMessages(self.name, checked_ids))

    def wait(self, message: Message | int, *, timeout: Seconds | None = None) -> Fate | None:
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
        return self._session.execute(c.WaitForMessage(self.name, id, timeout_ms))

    @overload
    def cancel(self, message: Message | int, *, running: Literal[False] = False) -> bool: ...
    @overload
    def cancel(self, message: Message | int, *, running: bool) -> CancelOutcome: ...
    def cancel(self, message: Message | int, *, running: bool = False) -> CancelOutcome:
        """Cancel a message that waits, is delayed or is scheduled: no consumer gets it.

        Takes the id that `put` returned, or a message of a peek. Returns False if the message is in
        flight, has ended, or is unknown; `message` says which. A repeat of the call returns True.
        With `running`, the consumer of a message in flight is asked to stop, and the answer is
        "requested": the message is cancelled once its attempt is given back or its lease ends.
        """
        return self._session.execute(cancel_command(self.name, message, running=running))

    def wait_cancels(
        self, seen: int = 0, *, timeout: Seconds | None = None
    ) -> RequestedCancels | None:
        """Wait until consumers are asked to stop, and return the open requests; None after `timeout`.

        `seen` is `total` of the last answer, so that the next call waits for new requests. The
        claims in the answer belong to any consumer of the queue.
        """
        timeout_ms = optional_ms(timeout, "timeout")
        return self._session.execute(c.WaitForCancels(self.name, seen, timeout_ms))

    def note_progress(self, messages: Messages, progress: bytes) -> None:
        """Store how far the work on claimed messages has come, for `message` and `wait`.

        `progress` has up to 64 KiB and replaces the progress noted before. Raises `LeaseLost` if a
        lease has ended.
        """
        runs = runs_of(messages, self.name)
        if runs:
            self._session.execute(c.NoteProgress(self.name, runs, progress))

    def attempts(self, message: Message | int) -> list[Try]:
        """How the attempts at a message went."""
        claim_id = message.claim_id if isinstance(message, Message) else message
        return self._session.execute(c.GetAttempts(self.name, claim_id))
