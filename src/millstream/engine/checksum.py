"""The checksum of a row: CRC32C of key and value, the same in every engine."""

from __future__ import annotations

import google_crc32c

from millstream.errors import CorruptionError

_value, _extend = google_crc32c.value, google_crc32c.extend


def row_checksum(key: bytes, value: bytes) -> int:
    """Return the CRC32C of a row's key and value."""
    crc: int = _extend(_value(key), value)
    return crc


def checked(key: bytes, value: bytes, crc: int) -> bytes:
    """Return the value if its checksum fits; raise `CorruptionError` otherwise."""
    if _extend(_value(key), value) != crc:
        raise CorruptionError(
            f"the row {key.hex()} is damaged: its checksum does not fit",
            what="row",
            where=key.hex(),
        )
    return value
