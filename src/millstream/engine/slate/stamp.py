"""The stamp of a bucket: an object that says which format the rows of its store have.

The object is `format` below the store's prefix, as JSON. It is put before the store is created and
never changed. So a bucket of a newer format, or a SlateDB database of another program, is refused
before anything of it is read or written.

    format      integer     as in the header of a file
"""

from __future__ import annotations

import msgspec

from millstream.engine.sqlite.schema import FORMAT
from millstream.errors import CannotOpen
from millstream.objects.folder import ObjectFolder

NAME = "format"


class FormatNote(msgspec.Struct, frozen=True):
    """What the object says."""

    format: int


def put_stamp(objects: ObjectFolder) -> None:
    """Mark a prefix as that of a store which is about to be created."""
    objects.create(NAME, msgspec.json.encode(FormatNote(FORMAT)))


def is_stamped(objects: ObjectFolder) -> bool:
    """Whether a prefix is marked; `CannotOpen` if it is by what we cannot read."""
    found = objects.get(NAME)
    if found is None:
        return False
    try:
        stamp = msgspec.json.decode(found.data, type=FormatNote)
    except msgspec.DecodeError as error:
        raise _refused(objects, f"its object `{NAME}` is not readable: {error}") from error
    if stamp.format != FORMAT:
        raise _refused(
            objects,
            f"it has format {stamp.format}, and this Millstream knows format {FORMAT}; "
            "upgrade Millstream to open it",
        )
    return True


def is_reached(objects: ObjectFolder) -> bool:
    """Whether a prefix is marked; `StoreError` at once if the bucket refuses us, or is not there.

    SlateDB would repeat its question without end, and not say why.
    """
    if is_stamped(objects):
        return True
    next(iter(objects.list()), None)
    return False


def check_stamp(objects: ObjectFolder) -> None:
    """Refuse a database whose prefix is not marked as a store's."""
    if not is_stamped(objects):
        raise _refused(
            objects,
            f"it holds a SlateDB database, but its object `{NAME}` is missing: it is no store of "
            "Millstream's; use another prefix",
        )


def _refused(objects: ObjectFolder, why: str) -> CannotOpen:
    place = objects.address.text
    return CannotOpen(f"{place} cannot be opened: {why}", path=place)
