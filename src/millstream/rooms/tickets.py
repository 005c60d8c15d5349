"""Tickets for rooms: made by a program that has the store open, for the browsers of its users.

They are signed with the store's own key, which is kept with the register of tokens; every server of
the store knows it. A server makes tickets of its own, bound to the token that asks.
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
from millstream.rooms.packing import check_sender
from millstream.store.store import Store

BOOK = f"{OWN}tokens"
"""The log of the register of tokens; the key of tickets is among its metadata."""

TICKET_KEY = "ticket-key"


def mint_ticket(store: Store, command: MintTicket) -> RoomTicket:
    """Make a ticket; the first one of a store makes the key too."""
    expires_ms = store.clock.wall_ms() + check_wanted(command)
    claims = TicketClaims(
        BY_STORE, command.user, expires_ms, [permission_of(command)], command.user
    )
    return ticket_of(sign(_make_key(store), claims), command, expires_ms)


def check_wanted(command: MintTicket) -> int:
    """Refuse a ticket that cannot be; answers for how long it is good, in ms."""
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
    """The one permission of a ticket."""
    return f"room:{command.can}:{command.room}"


def ticket_of(text: str, command: MintTicket, expires_ms: int) -> RoomTicket:
    """The answer."""
    return RoomTicket(
        ticket=text, room=command.room, user=command.user, can=command.can, expires=expires_ms
    )


def _make_key(store: Store) -> bytes:
    """The store's key of tickets; made if there is none."""
    while True:
        found = store.view(lambda view: get_metadata(view, GetMetadata(BOOK)))
        if TICKET_KEY in found:
            return bytes.fromhex(found[TICKET_KEY])
        made = secrets.token_hex(KEY_BYTES)
        wanted = SetMetadata(BOOK, TICKET_KEY, made, expect=None, compare=True)
        try:
            store.run(partial(set_metadata, command=wanted))
        except MetadataConflict:
            pass  # another process was quicker: its key is read
