"""Inboxes: the logs of what is put straight to a queue take records only while the queue is there.

Every append to a log goes through here, from every surface, so that none can pass the rule by.
"""

from __future__ import annotations

from millstream.format import keys
from millstream.log import operations as logs
from millstream.log.commands import Append
from millstream.queue.model.spec import no_queue
from millstream.queue.model.state import QueueState
from millstream.queue.rules.sources import INBOX, LATER
from millstream.store.transaction import Transaction

_INBOXES = (INBOX, LATER)


def append(tx: Transaction, command: Append) -> int:
    """Append to a log; to an inbox only while there is its queue, or no consumer would get it.

    An inbox that is written elsewhere is left to the rules of copies.
    """
    if command.log.startswith(_INBOXES):
        name = command.log.partition(":")[2]
        if not tx.entity(keys.queue(name), QueueState).exists():
            found = logs.find_log(tx, command.log)
            if found is None or not found[1].owner:
                raise no_queue(name)
    return logs.append(tx, command)
