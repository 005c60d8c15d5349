"""Groups of jobs: each member leaves one outcome in the log of its group.

The metadata of the log notes which members have ended, so a member that ends twice counts once, and the
commit of the last member knows that it is the last. Members that end at the same time do not conflict.
"""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta, Struct

from millstream.errors import InvalidInput
from millstream.format import keys
from millstream.log.commands import Append, SetMetadata
from millstream.log.model.metadata import MetadataState
from millstream.log.rules.operations import find_log, set_metadata
from millstream.queue.commands import EndMember
from millstream.queue.model.own_logs import inbox_of
from millstream.queue.rules.puts import append
from millstream.store.commit.transaction import WriteTransaction

ENDED = "ended"
"""The metadata entry of a group's log with the members that have ended."""

SIZE_MAX = 10_000


class EndedMembers(Struct, frozen=True):
    """The members of a group of jobs that have ended."""

    members: Annotated[str, Meta(pattern="^[0-9a-f]+$", max_length=SIZE_MAX)] = "0"
    """A bit for each member, as a hexadecimal number."""
    has_failed: bool = False


def end_member(tx: WriteTransaction, command: EndMember) -> bool:
    """Append the outcome of a member; with the last outcome, put the message that follows."""
    if not (0 <= command.member < command.size <= SIZE_MAX):
        raise InvalidInput(
            f"a group has up to {SIZE_MAX:,} members, numbered from 0: member {command.member} of "
            f"{command.size} is none"
        )
    log = find_log(tx, command.log)
    if log is None:
        return False
    ended = _ended(tx, command.log, log[0])
    before, bit = int(ended.members, 16), 1 << command.member
    if before & bit:
        return False
    after = EndedMembers(f"{before | bit:x}", ended.has_failed or command.has_failed)
    append(tx, Append(command.log, command.outcome))
    set_metadata(tx, SetMetadata(command.log, ENDED, msgspec.to_builtins(after)))
    is_last = (before | bit).bit_count() == command.size
    goes_on = command.follows_failures or not after.has_failed
    if is_last and goes_on and command.queue is not None and command.following is not None:
        append(tx, Append(inbox_of(command.queue), command.following))
    return True


def _ended(tx: WriteTransaction, log: str, log_id: int) -> EndedMembers:
    entry = tx.entity(keys.metadata(log_id), MetadataState).entries.get(ENDED)
    if entry is None or not entry.present:
        return EndedMembers()
    try:
        return msgspec.convert(entry.value, EndedMembers)
    except msgspec.ValidationError as error:
        raise InvalidInput(
            f"the metadata entry {ENDED!r} of log {log!r} is not the store's own: {error}", log=log
        ) from None
