"""Which logs the conditions of a query leave: known before anything is planned."""

from __future__ import annotations

from collections.abc import Iterable

from msgspec import Struct
from msgspec.structs import replace

from millstream.errors import InvalidName
from millstream.log.names import check_name


class Topics(Struct, frozen=True, kw_only=True):
    """Conditions on the names of logs, all of which must hold."""

    names: frozenset[str] | None = None
    """The only names that may be read; None for any."""
    starts: tuple[str, ...] = ()
    ends: tuple[str, ...] = ()
    contains: tuple[str, ...] = ()

    def keeps(self, name: str) -> bool:
        """Whether a log may be read."""
        return (
            (self.names is None or name in self.names)
            and all(map(name.startswith, self.starts))
            and all(map(name.endswith, self.ends))
            and all(part in name for part in self.contains)
        )

    def among(self, names: Iterable[object]) -> Topics:
        """Only these names, of those that were left."""
        some = frozenset(name for name in names if isinstance(name, str) and _is_name(name))
        return replace(self, names=some if self.names is None else self.names & some)


ANY = Topics()
"""Leaves every log."""


def _is_name(text: str) -> bool:
    """Whether a log can have this name: a condition may compare with anything."""
    try:
        check_name(text)
    except InvalidName:
        return False
    return True
