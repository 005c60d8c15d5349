"""The ids of messages: computed from the place of a message, so that no message stores an id. Pure."""

from __future__ import annotations

from functools import lru_cache
from hashlib import blake2b, md5

_SEQUENCE_START = 18_850_000_000_000_000_000
"""So that sequence numbers have the twenty digits of those of AWS."""


def id_of_put(seed: str, put: int) -> str:
    """Return the message id of a message, by its queue's seed and the id of its `put`."""
    keyed = _keyed(seed).copy()
    keyed.update(b"%d" % put)
    digest = keyed.hexdigest()
    return f"{digest[:8]}-{digest[8:12]}-4{digest[13:16]}-a{digest[17:20]}-{digest[20:]}"


@lru_cache(maxsize=4_096)
def _keyed(seed: str) -> blake2b:
    """Return the digest that the ids of a queue begin with."""
    return blake2b(digest_size=16, key=seed.encode()[-64:])


def sequence_number(put: int) -> str:
    """Return the sequence number of a message of a FIFO queue; later messages have greater ones."""
    return f"{_SEQUENCE_START + put:020d}"


def digest_of_value(value: bytes) -> str:
    """Return the digest of a body."""
    return md5(value, usedforsecurity=False).hexdigest()
