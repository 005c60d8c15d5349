"""The objects of commits that are not gathered yet: numbered, without a gap.

SlateDB looks for the last one by a few guesses, and may take a gap for the end. It would then go on
there, and drop the commits behind it without a word. So a store with a gap is refused.

Opening a store replays these commits, two requests for each. Their number is known before, so that a
writer gathers them in one object when they are many.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, NamedTuple

from millstream.errors import CorruptionError
from millstream.objects.folder import ObjectFolder

_NAME = re.compile(r"wal/([0-9]{20})\.sst")


class Replayed(NamedTuple):
    """The commits that the next writer replays."""

    commits: int
    missing: list[str]
    """The names of objects that are missing between others."""


def find_replayed(objects: ObjectFolder, read_manifest: Callable[[], Any]) -> Replayed:
    """Look which commits are not gathered yet.

    The manifest is read after the listing: commits that are gathered meanwhile are not needed any
    more.
    """
    found = [_NAME.fullmatch(one.name) for one in objects.list("wal")]
    numbers = {int(name[1]) for name in found if name is not None}
    manifest = read_manifest() if numbers else None
    if manifest is None:
        return Replayed(0, [])
    needed = range(manifest.replay_after_wal_id + 1, max(numbers) + 1)
    missing = [f"wal/{number:020}.sst" for number in needed if number not in numbers]
    return Replayed(len(needed), missing)


def check_commits(objects: ObjectFolder, read_manifest: Callable[[], Any]) -> int:
    """Refuse a store that has lost commits between others; `CorruptionError` names the first.

    Returns how many commits are not gathered yet.
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
