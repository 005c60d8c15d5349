"""Which writer opened a bucket last: an object by which a writer tells its own tries from another's.

A writer that opens a store takes the next epoch of SlateDB's, also if its opening then fails. Epochs
have no names: a newer one may be of such a try, or of another process. So each writer puts its name
here before it opens the store. A writer that has opened it in vain looks whose name is here.

The object is `writer` below the store's prefix, as JSON:

    name        text        of one handle; no other has it
"""

from __future__ import annotations

import secrets

import msgspec

from millstream.objects.folder import ObjectFolder

NAME = "writer"


class WriterNote(msgspec.Struct, frozen=True):
    """What the object says."""

    name: str


class Opener:
    """One handle that opens a store to write, as other handles see it."""

    def __init__(self, objects: ObjectFolder) -> None:
        self._objects = objects
        self._note = msgspec.json.encode(WriterNote(secrets.token_hex(16)))

    def sign(self) -> None:
        """Say that this handle is about to open the store."""
        self._objects.put(NAME, self._note)

    def is_last(self) -> bool:
        """Whether no other handle has said so since; `StoreError` if it cannot be known."""
        found = self._objects.get(NAME)
        return found is not None and found.data == self._note
