"""The checksum that stands beside every row, whatever the engine."""

from __future__ import annotations

import google_crc32c

from millstream.errors import CorruptionError

_value, _extend = google_crc32c.value, google_crc32c.extend


def row_checksum(key: bytes, value: bytes) -> int:
    """CRC32C of a row's key and value."""
    found: int = _extend(_value(key), value)
    return found


def checked(key: bytes, value: bytes, crc: int) -> bytes:
    """The value, if the checksum beside it fits; damage raises `CorruptionError`."""
    if _extend(_value(key), value) != crc:
        raise CorruptionError(
            f"the row {key.hex()} is damaged: its checksum does not fit",
            what="row",
            where=key.hex(),
        )
    return value
