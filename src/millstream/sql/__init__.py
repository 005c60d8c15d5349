"""SQL over a store: relations that every apsw connection can query beside its own tables.

    relation               a row is
    millstream_queues      a queue with its counts
    millstream_messages    a message of a queue, with its state and value
    millstream_logs        a log with its bounds
    millstream_records     a record of a log

The rows of a store are encoded, so SQLite cannot read them by views. The relations are virtual tables
that call the public API of an open store. So they work for a file, a bucket and a server, and they see
commits that are not folded yet. They only read. `millstream sql` is the shell over them.
"""

from __future__ import annotations

from millstream.sql.registration import register

__all__ = ["register"]
