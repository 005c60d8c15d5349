"""Tickets: a program that has the store open makes them for the browsers of its users.

A ticket allows one thing: to use one room as one user, one log, or one queue.

Tickets are signed with the store's own key, which is stored with the register of tokens; every
server of the store knows it. A server makes its own tickets, bound to the token of the request.
"""

from __future__ import annotations

import secrets
from functools import partial
from typing import get_args

from millstream.errors import InvalidInput, MetadataConflict
from millstream.format.ticket import BY_STORE, KEY_BYTES, SECONDS_MAX, TicketClaims, sign
from millstream.log.commands import GetMetadata, SetMetadata
from millstream.log.model.names import check_name
from millstream.log.reading.queries import get_metadata
from millstream.log.rules.operations import set_metadata
from millstream.queue.rules.sources import OWN
from millstream.rooms.commands import BrowserRight, MintBrowserTicket, MintTicket
from millstream.rooms.model import NounTicket, RoomTicket
from millstream.rooms.names import log_of
from millstream.rooms.packed_messages import check_sender
from millstream.store.store import Store

BOOK = f"{OWN}tokens"
"""The log of the register of tokens; its metadata holds the key of tickets."""

TICKET_KEY = "ticket-key"


def mint_ticket(store: Store, command: MintTicket) -> RoomTicket:
    """Make a ticket for a room; the first ticket of a store also makes the key."""
    expires_ms = store.clock.wall_ms() + check_wanted(command)
    claims = TicketClaims(
        BY_STORE, command.user, expires_ms, [permission_of(command)], command.user
    )
    return ticket_of(sign(_make_key(store), claims), command, expires_ms)


def mint_browser_ticket(store: Store, command: MintBrowserTicket) -> NounTicket:
    """Make a ticket for a log or a queue; the first ticket of a store also makes the key."""
    permission = check_browser_ticket(command)
    expires_ms = store.clock.wall_ms() + int(command.seconds * 1000)
    claims = TicketClaims(BY_STORE, permission, expires_ms, [permission])
    text = sign(_make_key(store), claims)
    return NounTicket(ticket=text, permission=permission, expires=expires_ms)


def check_browser_ticket(command: MintBrowserTicket) -> str:
    """Refuse an impossible ticket for a log or a queue, and return its single permission."""
    noun = command.right.partition(":")[0]
    check_name(command.name, noun)
    _check_literal(command.name, noun)
    if command.right not in get_args(BrowserRight):
        raise InvalidInput(
            f"a ticket allows {', '.join(get_args(BrowserRight))}; not {command.right!r:.100}"
        )
    _check_seconds(command.seconds)
    return f"{command.right}:{command.name}"


def check_wanted(command: MintTicket) -> int:
    """Refuse an impossible ticket for a room, and return its lifetime in milliseconds."""
    log_of(command.room)
    check_sender(command.user)
    _check_literal(command.room, "room")
    if command.can not in ("read", "write"):
        raise InvalidInput(f"a ticket can 'read' or 'write', not {command.can!r}")
    _check_seconds(command.seconds)
    return int(command.seconds * 1000)


def _check_literal(name: str, noun: str) -> None:
    """Refuse a name that would mean other names, too, in a permission."""
    if any(char in "*?" for char in name) or not name.isprintable():
        raise InvalidInput(
            f"a ticket cannot be made for {noun} {name!r}: in permissions * and ? stand for "
            "other characters, and those that cannot be printed are not allowed; name it otherwise"
        )


def _check_seconds(seconds: float) -> None:
    if not 0 < seconds <= SECONDS_MAX:
        raise InvalidInput(f"a ticket is good for up to {SECONDS_MAX:,} seconds, not {seconds}")


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
