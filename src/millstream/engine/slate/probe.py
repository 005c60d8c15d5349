"""The probe: whether an object store keeps the two promises by which only one writer can be.

    put_if_absent    an object that is there is not created again: a fenced writer cannot write
    if_match         an object is replaced only if it is the one that was read: a lease has one holder

Some stores that imitate S3 ignore these conditions without a word. A store on one of them would lose
what two writers acknowledge, so it is refused before anything is written.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable
from typing import TypeVar

from millstream.errors import CannotOpen, StoreError
from millstream.objects.folder import ObjectFolder

T = TypeVar("T")


def probe(objects: ObjectFolder) -> None:
    """Refuse an object store that ignores conditions; `CannotOpen` names the test that failed."""
    if objects.address.scheme in ("file", "memory"):
        return  # this machine's own: for trials, without leases
    name = f"probe/{secrets.token_hex(8)}"
    first = _asked(objects, "put_if_absent", lambda: _create_once(objects, name))
    try:
        _asked(objects, "if_match", lambda: _replace_once(objects, name, first))
    finally:
        _asked(objects, "delete", lambda: objects.delete(name))


def refusal(objects: ObjectFolder) -> str:
    """Why the object store takes no objects, in its own words; empty if it takes one."""
    if objects.address.scheme in ("file", "memory"):
        return ""
    name = f"probe/{secrets.token_hex(8)}"
    try:
        objects.put(name, b"")
        objects.delete(name)
    except StoreError as error:
        return error.message
    return ""


def _asked(objects: ObjectFolder, test: str, ask: Callable[[], T]) -> T:
    """What a test found; an answer that says nothing about it names it too."""
    try:
        return ask()
    except StoreError as error:
        if isinstance(error, CannotOpen):
            raise
        place = objects.address.text
        raise CannotOpen(
            f"{place} cannot be opened: in the test {test}, {error}", path=place, test=test
        ) from error


def _create_once(objects: ObjectFolder, name: str) -> str:
    """Create an object, and see that it is not created again; its tag."""
    first = objects.create(name, b"first")
    if first is None:
        raise _refused(objects, "put_if_absent", "a name that was never used counts as taken")
    if objects.create(name, b"second") is not None:
        objects.delete(name)
        raise _refused(objects, "put_if_absent", "an object was created twice")
    return first


def _replace_once(objects: ObjectFolder, name: str, first: str) -> None:
    """Replace an object, and see that it is not replaced by its old tag."""
    second = objects.replace(name, b"third", first)
    if second is None:
        raise _refused(objects, "if_match", "an object could not be replaced by its own tag")
    if second == first or objects.replace(name, b"fourth", first) is not None:
        raise _refused(objects, "if_match", "an object was replaced by the tag of an older one")


def _refused(objects: ObjectFolder, test: str, what: str) -> CannotOpen:
    place = objects.address.text
    return CannotOpen(
        f"{place} is on an object store that failed the test {test}: {what}. Two writers could not "
        "be kept apart there, so no store is opened; use one that honours If-None-Match and If-Match",
        path=place,
        test=test,
    )
