"""Owners: which store may append to a log, and how that changes.

A log is owned by the store that made it, at epoch 0, without a byte being written. Handing a log
over, or taking it over, raises the epoch: of two stores that both believe to own a log, the one with
the higher epoch does.
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
    """Who owns a log."""
    _, head = need_log(view, query.log)
    return _owner(head, instance_id(view))


def hand_over(tx: WriteTransaction, command: c.HandOver) -> Owner:
    """Let another store append from now on; only the owner can."""
    check_name(command.to, "store")
    log_id, head = need_log(tx, command.log)
    here = instance_id(tx)
    if head.owner:
        raise not_owner(head)
    if command.to == here:
        raise InvalidInput(f"log {command.log!r} is owned by this store already")
    check_free(tx, head, "")
    tx.change(keys.head(log_id), Owned(command.to, head.epoch + 1))
    return _owner(head, here)


def take_over(tx: WriteTransaction, command: c.TakeOver) -> Owner:
    """Append here from now on; a store that owns the log already changes nothing."""
    log_id, head = need_log(tx, command.log)
    if head.owner:
        tx.change(keys.head(log_id), Owned("", head.epoch + 1))
    return _owner(head, instance_id(tx))


def _owner(head: Head, here: str) -> Owner:
    return Owner(store=head.owner or here, epoch=head.epoch, here=not head.owner)
