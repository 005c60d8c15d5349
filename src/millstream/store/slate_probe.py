"""The probe: whether an object store keeps the two promises by which only one writer can be.

    put_if_absent    an object that is there is not created again: a fenced writer cannot write
    if_match         an object is replaced only if it is the one that was read: a lease has one holder

Some stores that imitate S3 ignore these conditions without a word. A store on one of them would lose
what two writers acknowledge, so it is refused before anything is written.
"""

from __future__ import annotations

import secrets

from millstream.errors import CannotOpen, StoreError
from millstream.store.object_folder import ObjectFolder


def probe(objects: ObjectFolder) -> None:
    """Refuse an object store that ignores conditions; `CannotOpen` names the test that failed."""
    if objects.address.scheme in ("file", "memory"):
        return  # this machine's own: for trials, without leases
    name = f"probe/{secrets.token_hex(8)}"
    try:
        _check(objects, name)
    except StoreError as error:
        if isinstance(error, CannotOpen):
            raise
        place = objects.address.text
        raise CannotOpen(f"{place} cannot be opened: {error}", path=place) from error


def _check(objects: ObjectFolder, name: str) -> None:
    first = objects.create(name, b"first")
    if first is None:
        raise _refused(objects, "put_if_absent", "a name that was never used counts as taken")
    try:
        if objects.create(name, b"second") is not None:
            raise _refused(objects, "put_if_absent", "an object was created twice")
        second = objects.replace(name, b"third", first)
        if second is None:
            raise _refused(objects, "if_match", "an object could not be replaced by its own tag")
        if second == first or objects.replace(name, b"fourth", first) is not None:
            raise _refused(objects, "if_match", "an object was replaced by the tag of an older one")
    finally:
        objects.delete(name)


def _refused(objects: ObjectFolder, test: str, what: str) -> CannotOpen:
    place = objects.address.text
    return CannotOpen(
        f"{place} is on an object store that failed the test {test}: {what}. Two writers could not "
        "be kept apart there, so no store is opened; use one that honours If-None-Match and If-Match",
        path=place,
        test=test,
    )
