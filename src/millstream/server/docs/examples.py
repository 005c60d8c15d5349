"""Examples of requests in the OpenAPI document and on the API page; a test sends every example.

The examples concern a shop: a log of orders, a cursor for reports, a queue of invoices. They can be
sent one after the other, in the order of the table of endpoints.
"""

from __future__ import annotations

from typing import Any

NAMES = {
    "log": "orders",
    "cursor": "reports",
    "key": "owner",
    "queue": "invoices",
    "offset": "0",
    "id": "0",
    "job": "jobs-17",
    "claim_id": "3458764513820540928",
    "txn": "nightly-17",
    "part": "0",
    "token": "billing",
    "room": "canvas",
    "schedule": "nightly",
}
"""Example values of path parameters."""

QUERIES = {
    "listLogs": {"limit": "20"},
    "searchRecords": {"where": "amount > 100", "order": "newest", "limit": "20"},
    "readRecords": {"start": "0", "limit": "100", "wait": "20"},
    "findOffset": {"since": "2026-05-04T12:00:00Z"},
    "listQueues": {"limit": "20"},
    "listJobs": {"state": "failed", "limit": "20"},
    "getJobResult": {"wait": "10"},
    "listSchedules": {"upcoming": "3"},
    "getSchedule": {"upcoming": "5"},
    "listTokens": {"limit": "20"},
    "listForks": {"limit": "100"},
    "peekMessages": {"state": "available", "limit": "10"},
    "stagePart": {"attempt": "1"},
    "listCopies": {"pattern": "orders*"},
    "getHash": {"offset": "0"},
    "getBlocks": {"start": "0", "stop": "1000"},
    "adoptBlocks": {"expect_end": "0"},
    "listRooms": {"limit": "20"},
    "getRetained": {"types": "shape"},
    "listenToRoom": {"live": "sse", "user": "ada", "seconds": "0"},
    "watchStore": {"seconds": "0"},
}

_CLAIM = f"{NAMES['claim_id']}:1"

BODIES: dict[str, Any] = {
    "supersede": {"node": "b", "address": "http://host2:8080", "epoch": 2, "sequence": 4711},
    "truncateLog": {"before": 1},
    "forkLog": {"name": "orders-trial"},
    "mergeFork": {"on_fork": "rebase"},
    "setOwner": {"store": None},
    "startCopy": {"base_offset": 0, "base_hash": "0" * 64, "owner": "4f1c2a9be07d5386"},
    "setMetadata": {"value": "billing"},
    "setSchema": {
        "schema": {
            "type": "object",
            "properties": {"order": {"type": "integer"}, "note": {"type": "string"}},
            "required": ["order"],
        },
        "mode": "warn",
    },
    "setQueueSchema": {
        "schema": {"type": "object", "properties": {"order": {"type": "integer"}}},
        "mode": "warn",
    },
    "checkQueueSchema": {"schema": {"type": "object", "properties": {"order": {"type": "number"}}}},
    "checkSchema": {"schema": {"type": "object", "properties": {"order": {"type": "number"}}}},
    "setRetention": {"age": 604800, "consumed": True},
    "appendRecords": {
        "records": [
            {"value": {"order": 7}, "key": "ada", "headers": {"amount": 120}},
            {"base64": "AAEC", "headers": {"amount": 5}},
        ],
        "producer": {"name": "shop", "sequence": 0},
    },
    "openCursor": {"start": "earliest"},
    "takeRecords": {"n": 100, "wait": 20},
    "acknowledgeRecords": {"up_to": 2},
    "seekCursor": {"offset": 0},
    "putSchedule": {
        "task": "shop.tasks:report",
        "every": "30 1 * * *",
        "tz": "Europe/Lisbon",
        "arguments": {"days": 1},
        "queue": "invoices",
    },
    "specifyQueue": {
        "sources": ["orders"],
        "group_by": "customer",
        "group_in_flight": 2,
        "filter": "amount > 100",
        "start": "earliest",
        "max_attempts": 3,
        "dead_letter": "orders.failed",
    },
    "alterQueue": {"max_attempts": 5, "rate": 50.0},
    "limitKey": {"queue": "invoices", "key": "acme", "running": 10},
    "limitGroup": {"group": "acme", "in_flight": 10},
    "purgeQueue": {"state": "failed"},
    "retryFailures": {"reason": "no such customer", "dry_run": True},
    "redriveQueue": {"where": "amount > 1000", "limit": 100, "dry_run": True},
    "putMessages": {"value": {"invoice": 7}, "headers": {"amount": 120}, "delay": 1.5},
    "replaceMessage": {"value": {"invoice": 7, "customer": "ada"}, "dry_run": True},
    "claimMessages": {"n": 10, "lease": 30, "wait": 20, "consumer": "worker-1"},
    "popMessages": {"n": 1},
    "cancelMessage": {"running": True},
    "ackClaims": {"claims": [_CLAIM], "result": {"printed": True}},
    "nackClaims": {"claims": [_CLAIM], "delay": 60, "reason": "the printer is busy"},
    "failClaims": {"claims": [_CLAIM], "reason": "no such customer"},
    "renewClaims": {"claims": [_CLAIM], "lease": 60},
    "noteProgress": {"claims": [_CLAIM], "progress": {"pages": 3, "of": 12}},
    "specifyRoom": {"retained": ["shape"], "ttl": 60},
    "sendToRoom": {
        "messages": [{"type": "shape", "key": "7", "data": {"x": 10, "y": 20}}],
        "user": "ada",
    },
    "setPresence": {"connection": "Q-e4S11UJDaC", "user": "ada", "state": {"typing": True}},
    "makeRoomTicket": {"user": "ada", "can": "write", "seconds": 60},
    "transact": {
        "operations": [
            {"op": "append", "log": "orders", "value": {"order": 8}},
            {"op": "put", "queue": "invoices", "value": {"invoice": 8}},
        ]
    },
    "stagePart": {"records": [{"value": {"order": 9}}]},
    "commitStaged": {
        "log": "orders",
        "parts": [{"part": "0", "attempt": 1, "count": 1, "crc": 2880577365}],
    },
    "makeToken": {"name": "billing", "permissions": ["queue:write:invoices"], "expires": 86400},
    "makeTicket": {"permissions": ["log:read:orders"], "seconds": 60},
}
"""The JSON body of each operation that takes a body."""
