"""Tickets for rooms: a program that has the store open makes them for the browsers of its users.

Tickets are signed with the store's own key, which is stored with the register of tokens; every
server of the store knows it. A server makes its own tickets, bound to the token of the request.
"""

from __future__ import annotations

import secrets
from functools import partial

from millstream.errors import InvalidInput, MetadataConflict
from millstream.format.ticket import BY_STORE, KEY_BYTES, SECONDS_MAX, TicketClaims, sign
from millstream.log.commands import GetMetadata, SetMetadata
from millstream.log.reading.queries import get_metadata
from millstream.log.rules.operations import set_metadata
from millstream.queue.rules.sources import OWN
from millstream.rooms.commands import MintTicket
from millstream.rooms.model import RoomTicket
from millstream.rooms.names import log_of
from millstream.rooms.packed_messages import check_sender
from millstream.store.store import Store

BOOK = f"{OWN}tokens"
"""The log of the register of tokens; its metadata holds the key of tickets."""

TICKET_KEY = "ticket-key"


def mint_ticket(store: Store, command: MintTicket) -> RoomTicket:
    """Make a ticket; the first ticket of a store also makes the key."""
    expires_ms = store.clock.wall_ms() + check_wanted(command)
    claims = TicketClaims(
        BY_STORE, command.user, expires_ms, [permission_of(command)], command.user
    )
    return ticket_of(sign(_make_key(store), claims), command, expires_ms)


def check_wanted(command: MintTicket) -> int:
    """Refuse an impossible ticket, and return its lifetime in milliseconds."""
    log_of(command.room)
    check_sender(command.user)
    if any(char in "*?" for char in command.room) or not command.room.isprintable():
        raise InvalidInput(
            f"a ticket cannot be made for room {command.room!r}: in permissions * and ? stand for "
            "other characters, and those that cannot be printed are not allowed; name it otherwise"
        )
    if command.can not in ("read", "write"):
        raise InvalidInput(f"a ticket can 'read' or 'write', not {command.can!r}")
    if not 0 < command.seconds <= SECONDS_MAX:
        raise InvalidInput(
            f"a ticket is good for up to {SECONDS_MAX:,} seconds, not {command.seconds}"
        )
    return int(command.seconds * 1000)


def permission_of(command: MintTicket) -> str:
    """Return the single permission of a ticket."""
    return f"room:{command.can}:{command.room}"


def ticket_of(text: str, command: MintTicket, expires_ms: int) -> RoomTicket:
    """Return the answer with the ticket."""
    return RoomTicket(
        ticket=text, room=command.room, user=command.user, can=command.can, expires=expires_ms
    )


def _make_key(store: Store) -> bytes:
    """Return the store's key of tickets; make a missing key."""
    while True:
        metadata = store.view(lambda view: get_metadata(view, GetMetadata(BOOK)))
        if TICKET_KEY in metadata:
            return bytes.fromhex(metadata[TICKET_KEY])
        made = secrets.token_hex(KEY_BYTES)
        command = SetMetadata(BOOK, TICKET_KEY, made, expect=None, compare=True)
        try:
            store.run(partial(set_metadata, command=command))
        except MetadataConflict:
            pass  # another process was quicker: its key is read
