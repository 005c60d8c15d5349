"""REST: every noun over plain HTTP, with JSON, base64 or raw bodies.

This package collects the endpoints of the nouns' modules into one table. The table builds the
routes here, and the OpenAPI document and the API page in `millstream.server.docs`.
"""

from __future__ import annotations

from millstream.server.rest import (
    backup,
    claims,
    clients,
    cluster,
    cursors,
    failures,
    forks,
    job_stream,
    jobs,
    live,
    logs,
    messages,
    queue_schemas,
    queues,
    records,
    replica,
    rooms,
    schedules,
    schemas,
    search,
    staging,
    status,
    tokens,
    transactions,
)

_NOUNS = (
    *(logs, schemas, forks, records, search, cursors, queues, queue_schemas, messages, failures),
    *(claims, rooms),
    *(
        jobs,
        job_stream,
        schedules,
        transactions,
        staging,
        replica,
        status,
        backup,
        clients,
        live,
    ),
    *(cluster, tokens),
)
ENDPOINTS = tuple(entry for noun in _NOUNS for entry in noun.endpoint)
