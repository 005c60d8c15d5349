"""REST: every noun over plain HTTP, with JSON, base64 or raw bodies.

The table of endpoints, gathered here from the nouns' modules, builds the routes. The document and
its page are made from it in `millstream.server.docs`.
"""

from __future__ import annotations

from millstream.server.rest import (
    claims,
    cursors,
    forks,
    logs,
    messages,
    queues,
    records,
    replica,
    staging,
    stats,
    tickets,
    transactions,
)
from millstream.server.rest.endpoint import Endpoint

ENDPOINTS: tuple[Endpoint, ...] = (
    *logs.ENDPOINTS,
    *forks.ENDPOINTS,
    *records.ENDPOINTS,
    *cursors.ENDPOINTS,
    *queues.ENDPOINTS,
    *messages.ENDPOINTS,
    *claims.ENDPOINTS,
    *transactions.ENDPOINTS,
    *staging.ENDPOINTS,
    *replica.ENDPOINTS,
    *stats.ENDPOINTS,
    *tickets.ENDPOINTS,
)
