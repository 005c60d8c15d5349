"""What another store says of its logs, checked before anything is done about it."""

from __future__ import annotations

from typing import Any

import msgspec

from millstream.errors import InvalidInput
from millstream.format.packing import check_timestamp
from millstream.log.names import check_integer, check_name
from millstream.replica.chain import DIGEST_BYTES
from millstream.replica.commands import Aside, Summary


def check_aside(found: Any) -> Aside:
    """What became of a tail that was set aside; in a transaction the wire knows no type of it."""
    try:
        aside = found if isinstance(found, Aside) else msgspec.convert(found, Aside)
    except msgspec.MsgspecError as error:
        raise InvalidInput(
            f"the peer set records aside, and does not say where: {error}"
        ) from error
    check_name(aside.fork)
    return aside


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
    check_timestamp(found.timestamp_ms)
    if not found.base.offset <= found.start <= found.end:
        raise InvalidInput(
            f"log {found.name!r} cannot have a base of {found.base.offset}, a start of "
            f"{found.start} and an end of {found.end}"
        )
    if len(found.digest) != DIGEST_BYTES or len(found.base.digest) != DIGEST_BYTES:
        raise InvalidInput(f"log {found.name!r} comes without a hash of {DIGEST_BYTES} bytes")
    return found
