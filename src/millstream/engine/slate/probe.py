"""Checks of a bucket before SlateDB opens it: conditional requests, format, missing commits.

Conditional requests. Two promises of an object store allow only one writer:

    put_if_absent    an object that exists is not created again: a fenced writer cannot write
    if_match         an object is replaced only if its tag still matches: a lease has one holder

Imitations of S3 may ignore conditions silently. Two writers there would overwrite
each other's acknowledged commits, so `probe` refuses them before anything is written.

Format. The object `format` below the store's prefix names the format of the rows, as JSON:

    format      integer     the same number as in the header of a file

It is put before the store is created and never changed. A bucket of a newer format, or a SlateDB
database of another program, is refused before anything in it is read or written.

Missing commits. SlateDB numbers the objects of its write-ahead log without a gap, and guesses
the last number by a few requests. It may take a gap for the end, continue there, and silently drop
the commits behind the gap. So a store with a gap is refused. Opening replays these commits with two
requests each; a writer compacts them into one object first if they are many.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

import msgspec

from millstream.errors import CannotOpen, CorruptionError, StoreError
from millstream.format.version import FORMAT, format_refusal
from millstream.objects.folder import ObjectFolder

T = TypeVar("T")


def probe(objects: ObjectFolder) -> None:
    """Refuse an object store that ignores conditions; `CannotOpen` names the failed test."""
    if objects.address.scheme in ("file", "memory"):
        return  # stand-ins on this machine, for trials, without leases
    name = f"probe/{secrets.token_hex(8)}"
    first = _run_test(objects, "put_if_absent", lambda: _create_once(objects, name))
    try:
        _run_test(objects, "if_match", lambda: _replace_once(objects, name, first))
    finally:
        _run_test(objects, "delete", lambda: objects.delete(name))


def refusal(objects: ObjectFolder) -> str:
    """Put and delete an object; return the error of the object store, or an empty text."""
    if objects.address.scheme in ("file", "memory"):
        return ""
    name = f"probe/{secrets.token_hex(8)}"
    try:
        objects.put(name, b"")
        objects.delete(name)
    except StoreError as error:
        return error.message
    return ""


def _run_test(objects: ObjectFolder, test: str, request: Callable[[], T]) -> T:
    """Run a request of a test; an unrelated error names the test as well."""
    try:
        return request()
    except StoreError as error:
        if isinstance(error, CannotOpen):
            raise
        place = objects.address.text
        raise CannotOpen(
            f"{place} cannot be opened: in the test {test}, {error}", path=place, test=test
        ) from error


def _create_once(objects: ObjectFolder, name: str) -> str:
    """Create an object, check that it is not created again, and return its tag."""
    first = objects.create(name, b"first")
    if first is None:
        raise _refused(objects, "put_if_absent", "a name that was never used counts as taken")
    if objects.create(name, b"second") is not None:
        objects.delete(name)
        raise _refused(objects, "put_if_absent", "an object was created twice")
    return first


def _replace_once(objects: ObjectFolder, name: str, first: str) -> None:
    """Replace an object, and check that its old tag does not replace it again."""
    second = objects.replace(name, b"third", first)
    if second is None:
        raise _refused(objects, "if_match", "an object could not be replaced by its own tag")
    if second == first or objects.replace(name, b"fourth", first) is not None:
        raise _refused(objects, "if_match", "an object was replaced by the tag of an older one")


def _refused(objects: ObjectFolder, test: str, reason: str) -> CannotOpen:
    place = objects.address.text
    return CannotOpen(
        f"{place} is on an object store that failed the test {test}: {reason}. Two writers could not "
        "be kept apart there, so no store is opened; use one that honours If-None-Match and If-Match",
        path=place,
        test=test,
    )


FORMAT_OBJECT = "format"


class FormatNote(msgspec.Struct, frozen=True):
    """The content of the object `format`."""

    format: int
    since: str = ""
    """The first version of Millstream that knows the format, for older versions."""


def put_stamp(objects: ObjectFolder) -> None:
    """Put the object `format`, before a store is created at the prefix."""
    objects.create(FORMAT_OBJECT, msgspec.json.encode({"format": FORMAT}))


def is_stamped(objects: ObjectFolder) -> bool:
    """True if a prefix has the object `format`; `CannotOpen` if its content is unreadable or newer."""
    stored = objects.get(FORMAT_OBJECT)
    if stored is None:
        return False
    try:
        stamp = msgspec.json.decode(stored.data, type=FormatNote)
    except msgspec.DecodeError as error:
        raise _not_opened(
            objects, f"its object `{FORMAT_OBJECT}` is not readable: {error}"
        ) from error
    if refusal := format_refusal("it", stamp.format, stamp.since):
        raise _not_opened(objects, refusal)
    return True


def is_reached(objects: ObjectFolder) -> bool:
    """True if a prefix is stamped; `StoreError` at once if the bucket refuses us or is missing.

    SlateDB would repeat its request without end and without an error.
    """
    if is_stamped(objects):
        return True
    next(iter(objects.list()), None)
    return False


def check_stamp(objects: ObjectFolder) -> None:
    """Refuse a SlateDB database without the object `format`."""
    if not is_stamped(objects):
        raise _not_opened(
            objects,
            f"it holds a SlateDB database, but its object `{FORMAT_OBJECT}` is missing: it is no store of "
            "Millstream's; use another prefix",
        )


def _not_opened(objects: ObjectFolder, reason: str) -> CannotOpen:
    place = objects.address.text
    return CannotOpen(f"{place} cannot be opened: {reason}", path=place)


_WAL_OBJECT = re.compile(r"wal/([0-9]{20})\.sst")


class Replayed(NamedTuple):
    """The number of commits that the next writer replays, and gaps between them."""

    commits: int
    missing: list[str]
    """The names of objects that are missing between existing ones."""


def find_replayed(objects: ObjectFolder, read_manifest: Callable[[], Any]) -> Replayed:
    """Find the commits that are not compacted.

    The manifest is read after the listing: commits that SlateDB compacts in between are not needed
    any more.
    """
    names = [_WAL_OBJECT.fullmatch(stored.name) for stored in objects.list("wal")]
    numbers = {int(name[1]) for name in names if name is not None}
    manifest = read_manifest() if numbers else None
    if manifest is None:
        return Replayed(0, [])
    needed = range(manifest.replay_after_wal_id + 1, max(numbers) + 1)
    missing = [f"wal/{number:020}.sst" for number in needed if number not in numbers]
    return Replayed(len(needed), missing)


def check_commits(objects: ObjectFolder, read_manifest: Callable[[], Any]) -> int:
    """Refuse a store with gaps between commits; `CorruptionError` names the first missing object.

    Return the number of commits that are not compacted.
    """
    commits, missing = find_replayed(objects, read_manifest)
    if missing:
        place = objects.address.text
        raise CorruptionError(
            f"{place} has lost commits: {len(missing)} objects are missing, and {missing[0]} is the "
            "first of them; nothing was changed. `millstream doctor` names them all; restore them, "
            "if the bucket keeps versions",
            what="object",
            where=missing[0],
        )
    return commits
