# Generated from src/millstream/aio/metadata.py by `make generate`: change that file, not this one.

"""The metadata of a log as threads hold them: a small map of JSON values."""

from __future__ import annotations

from typing import Any

from millstream.command import Session
from millstream.format.packing import check_json
from millstream.log import commands as c
from millstream.log.model.names import check_name
from millstream.threads.runtime import Entries


class Metadata(Entries):
    """The metadata of a log; an access sends a command."""

    def __init__(self, session: Session, log: str) -> None:
        self._session = session
        self._log = log

    def all(self) -> dict[str, Any]:
        """Every entry."""
        return self._session.execute(c.GetMetadata(self._log))

    def get(self, key: str, default: Any = None) -> Any:
        """Return an entry, or `default` (None) if it is absent."""
        return self.all().get(key, default)

    def set(self, key: str, value: Any) -> None:
        """Set an entry."""
        checked = check_name(key, "metadata")
        self._session.execute(c.SetMetadata(self._log, checked, check_json(value)))

    def delete(self, key: str) -> None:
        """Delete an entry; a missing one is a `KeyError`."""
        if key not in self.all():
            raise KeyError(key)
        self._session.execute(c.SetMetadata(self._log, key, delete=True))

    def compare_and_set(self, key: str, *, expect: Any, value: Any) -> None:
        """Set an entry if it has the expected value (None: absent), else raise `MetadataConflict`."""
        checked, value, expect = check_name(key, "metadata"), check_json(value), check_json(expect)
        self._session.execute(c.SetMetadata(self._log, checked, value, expect=expect, compare=True))
