"""Owners: which store may append to a log, and how the owner changes.

The store that made a log owns it at epoch 0, without a byte being written. Handing a log over, or
taking it over, raises the epoch. If two stores both believe to own a log, the store with the higher
epoch does.
"""

from __future__ import annotations

from millstream.errors import InvalidInput
from millstream.format import keys
from millstream.log import commands as c
from millstream.log.model.head import Head, Owned
from millstream.log.model.names import check_name
from millstream.log.rules.operations import check_free, need_log, not_owner
from millstream.record import Owner
from millstream.store.commit.transaction import WriteTransaction
from millstream.store.state.instance import instance_id
from millstream.store.state.view import View


def get_owner(view: View, query: c.GetOwner) -> Owner:
    """Return the owner of a log."""
    _, head = need_log(view, query.log)
    return _owner(head, instance_id(view))


def hand_over(tx: WriteTransaction, command: c.HandOver) -> Owner:
    """Let another store append from now on. Raises `NotOwner` unless this store is the owner."""
    check_name(command.to, "store")
    log_id, head = need_log(tx, command.log)
    store_id = instance_id(tx)
    if head.owner:
        raise not_owner(head)
    if command.to == store_id:
        raise InvalidInput(f"log {command.log!r} is owned by this store already")
    check_free(tx, head, "")
    tx.change(keys.head(log_id), Owned(command.to, head.epoch + 1))
    return _owner(head, store_id)


def take_over(tx: WriteTransaction, command: c.TakeOver) -> Owner:
    """Append in this store from now on; change nothing if it owns the log already."""
    log_id, head = need_log(tx, command.log)
    if head.owner:
        tx.change(keys.head(log_id), Owned("", head.epoch + 1))
    return _owner(head, instance_id(tx))


def _owner(head: Head, store_id: str) -> Owner:
    return Owner(store=head.owner or store_id, epoch=head.epoch, here=not head.owner)
