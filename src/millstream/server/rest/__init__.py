"""REST: every noun over plain HTTP, with JSON, base64 or raw bodies.

The table of endpoints, gathered here from the nouns' modules, builds the routes. The document and
its page are made from it in `millstream.server.docs`.
"""

from __future__ import annotations

from millstream.server.rest import (
    claims,
    cluster,
    cursors,
    forks,
    live,
    logs,
    messages,
    queues,
    records,
    replica,
    rooms,
    search,
    staging,
    store,
    tickets,
    tokens,
    transactions,
)

_NOUNS = (
    *(logs, forks, records, search, cursors, queues, messages, claims, rooms, transactions),
    *(staging, replica, store, live, cluster, tickets, tokens),
)
ENDPOINTS = tuple(one for noun in _NOUNS for one in noun.endpoint)
