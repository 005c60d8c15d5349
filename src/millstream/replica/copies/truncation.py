"""Truncations travel: a copy forgets what another one has forgotten."""

from __future__ import annotations

from millstream.command import Operation, Traits, on_copy
from millstream.log.commands import Truncate
from millstream.log.operations import need_log, truncate_log
from millstream.store.transaction import Transaction


class AdoptStart(Operation[int], frozen=True):
    """Begin where another copy begins, if that is later; answers how many records went."""

    traits = Traits(needs=(on_copy("write"),), is_step=True, tidies=True)

    log: str
    start: int


def adopt_start(tx: Transaction, command: AdoptStart) -> int:
    """As a truncation, of a log that must be there."""
    need_log(tx, command.log)
    return truncate_log(tx, Truncate(command.log, command.start))
