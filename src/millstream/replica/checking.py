"""What another store says of its logs, checked before anything is done about it."""

from __future__ import annotations

from millstream.errors import InvalidInput
from millstream.log.names import check_integer, check_name
from millstream.replica.chain import DIGEST_BYTES
from millstream.replica.commands import Summary


def check_summary(found: Summary) -> Summary:
    """Refuse a summary that no log can have."""
    check_name(found.name)
    check_name(found.owner, "store")
    for what, number in (
        ("a base", found.base.offset),
        ("a start", found.start),
        ("an end", found.end),
        ("an epoch", found.epoch),
    ):
        check_integer(what, number)
    if not found.base.offset <= found.start <= found.end:
        raise InvalidInput(
            f"log {found.name!r} cannot have a base of {found.base.offset}, a start of "
            f"{found.start} and an end of {found.end}"
        )
    if len(found.digest) != DIGEST_BYTES or len(found.base.digest) != DIGEST_BYTES:
        raise InvalidInput(f"log {found.name!r} comes without a hash of {DIGEST_BYTES} bytes")
    return found
