"""The MD5 digests with which clients of SQS check that a message arrived as it was sent. Pure.

The digest of attributes is an MD5 of their names, types and values, in the order of the names, each
with its length in front. It does not depend on the order in which a client sends the attributes.
https://docs.aws.amazon.com/AWSSimpleQueueService/latest/SQSDeveloperGuide/sqs-message-metadata.html
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import md5
from struct import pack

_TEXT, _BINARY = b"\x01", b"\x02"


@dataclass(frozen=True, slots=True)
class Attribute:
    """An attribute of a message: its type with the label, and its value.

    The type begins with String, Number or Binary, as in `Number.float`. Numbers are texts.
    """

    data_type: str
    value: str | bytes


def digest_of_body(body: str) -> str:
    """Return `MD5OfMessageBody`."""
    return md5(body.encode(), usedforsecurity=False).hexdigest()


def digest_of_attributes(attributes: Mapping[str, Attribute]) -> str:
    """Return `MD5OfMessageAttributes`, or `MD5OfMessageSystemAttributes`, for at least one attribute."""
    pieces: list[bytes] = []
    for name in sorted(attributes):
        attribute = attributes[name]
        pieces += (_sized(name.encode()), _sized(attribute.data_type.encode()))
        value = attribute.value
        if isinstance(value, bytes):
            pieces += (_BINARY, _sized(value))
        else:
            pieces += (_TEXT, _sized(value.encode()))
    return md5(b"".join(pieces), usedforsecurity=False).hexdigest()


def _sized(value: bytes) -> bytes:
    return pack("!I", len(value)) + value
