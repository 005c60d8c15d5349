"""Receipt handles: a claim as the text that a consumer hands back. Pure.

A handle names the claim, its attempt, and when the message was received. A digest binds
the handle to its queue, so that a handle of another queue, and a mistyped one, are refused. It is no
proof against forgery: the rights of the sender decide who may end a claim.
"""

from __future__ import annotations

from hashlib import blake2b
from struct import Struct as Packed
from typing import NamedTuple

from millstream.server.gateways.sqs.errors import bad_receipt

_PACKED = Packed("!BQIQ")
_VERSION = 1
_DIGEST_BYTES = 9
HANDLE_CHARS = 60
_EMPTY = blake2b(digest_size=_DIGEST_BYTES, person=b"millstream.sqs")


class Receipt(NamedTuple):
    """A claim of a message, and the time at which a consumer received the message."""

    claim_id: int
    attempt: int
    received_ms: int

    def handle(self, queue: str) -> str:
        """Return the handle of this receipt, for a queue of the store."""
        data = _PACKED.pack(_VERSION, *self)
        return (data + _digest(queue, data)).hex()


def receipt_of(handle: str, queue: str) -> Receipt:
    """Return the receipt of a handle; raises for a handle that this queue has never given out."""
    if len(handle) != HANDLE_CHARS or not handle.isalnum():
        raise bad_receipt(handle)
    try:
        packed = bytes.fromhex(handle)
    except ValueError:
        raise bad_receipt(handle) from None
    data, digest = packed[: _PACKED.size], packed[_PACKED.size :]
    if len(data) != _PACKED.size or digest != _digest(queue, data) or data[0] != _VERSION:
        raise bad_receipt(handle)
    _, *fields = _PACKED.unpack(data)
    return Receipt(*fields)


def _digest(queue: str, data: bytes) -> bytes:
    digest = _EMPTY.copy()  # half the time of a new one with the same options
    digest.update(data + queue.encode())
    return digest.digest()
