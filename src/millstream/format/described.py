"""Descriptions of keys for errors and for the doctor: the purpose and the owner of a row."""

from __future__ import annotations

from millstream.errors import CorruptionError
from millstream.format import keys

_NAMED = {
    keys.NAME: "the name {!r}",
    keys.QUEUE: "the queue {!r}",
    keys.INSTANCE: "the instance {!r}",
}
_NUMBERED = {
    keys.PAYLOAD: "payload {}",
    keys.PAYLOAD_BLOCK: "the block of payloads from {} on",
    keys.DELTA: "commit {}",
    keys.HEAD: "the head of log {}",
    keys.METADATA: "the metadata of log {}",
    keys.FORK: "the fork point of log {}",
    keys.ROOM: "what is kept of the room of log {}",
    keys.ROSTER: "the roster of the groups of queue {}",
    keys.CANCELS: "the cancel requests of queue {}",
    keys.GROUP_LIMITS: "the limits of single groups of queue {}",
}
_TRAILING = {keys.CURSOR: "the cursor {!r} of log {}", keys.PRODUCER: "the producer {!r} of log {}"}
_PAIRS = {
    keys.ENTRY: "the entry of log {0} that ends with offset {1}",
    keys.FORKS: "the fork {1} in the list of log {0}",
    keys.MARKS: "marks of log {0}",
    keys.REMAINS: "the note that queue {1}, which is deleted, has rows left",
    keys.BUCKET: "bucket {1:#x} of queue {0}",
    keys.NOTE: "the note of claim {1} of queue {0}",
}
_ALONE = {
    keys.ID_BLOCK_KEY: "the id counter",
    keys.STORE_KEY: "the store's own record",
    keys.CLUSTER_KEY: "the place in the cluster's shared log",
}


def describe(key: bytes) -> str:
    """Describe a key."""
    try:
        kind = keys.kind_of(key)
        if kind in _NAMED:
            return _NAMED[kind].format(keys.leading_name(key))
        if kind in _NUMBERED:
            return _NUMBERED[kind].format(keys.number(key))
        if kind in _TRAILING:
            return _TRAILING[kind].format(keys.trailing_name(key), keys.owner(key))
        if kind in _PAIRS:
            return _PAIRS[kind].format(*keys.pair(key))
    except (CorruptionError, UnicodeDecodeError):
        pass  # a damaged key has no better name than its bytes
    return _ALONE.get(key, f"the record {key.hex()}")
